"""Tuning of glibc's heap: keep freed memory for reuse, or return it to the kernel. No-ops on other C libraries."""

import ctypes


def retain_freed_memory() -> None:
    """Keeps freed memory for the next step instead of returning it to the kernel.

    XLA's CPU backend allocates and frees hundreds of megabytes per step. By default these pages are faulted in and zeroed again
    every step, a quarter of the time of a small model. Call this before the process starts threads, since it also limits them to
    two heaps: by default every thread has its own and cannot reuse what another has freed, while in a single heap XLA's blocks
    compete with Python's many small ones.
    """
    trim_threshold, top_pad, mmap_max, arena_max = -1, -2, -4, -8  # names of mallopt(3), from malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((trim_threshold, -1), (top_pad, 2**26), (mmap_max, 0), (arena_max, 2)):
            mallopt(option, value)


def release_freed_memory() -> None:
    """Returns free memory to the kernel, which `retain_freed_memory` prevents.

    Allocations of many sizes on several threads fragment the heap: by some gigabytes for 50,000 images.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
