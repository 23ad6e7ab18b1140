/* A clock that jumps: preloaded into a process, it shifts the time of day by a day and five hours forth and back, every some hundred calls.
   The monotonic clocks go on as they should. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

static long shift(void) {
  static const long shifts[] = {0, 104400, 0, -104400}; /* seconds */
  static _Atomic unsigned calls;
  return shifts[++calls / 300 % 4];
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  int status = real(clock, now);
  if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift();
  return status;
}

int gettimeofday(struct timeval *now, void *zone) {
  static int (*real)(struct timeval *, void *);
  if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
  int status = real(now, zone);
  if (!status) now->tv_sec += shift();
  return status;
}

time_t time(time_t *into) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (into) *into = now.tv_sec;
  return now.tv_sec;
}
