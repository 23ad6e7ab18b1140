/* A clock that jumps: preloaded into a process, it shifts the time of day by the number of seconds in the file
   $TORTURE_CLOCK, an int64 that may change at any time. Monotonic clocks are not affected. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t shift(void) {
  static const volatile int64_t *shared;
  if (!shared) {
    int file = open(getenv("TORTURE_CLOCK"), O_RDONLY);
    const volatile int64_t *found = mmap(NULL, sizeof *found, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || found == MAP_FAILED) abort();
    close(file);
    shared = found;
  }
  return *shared;
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
