"""The C heap's manners: freed memory is kept for the next step, or goes back to the kernel."""

import ctypes


def keep_memory() -> None:
    """Tells glibc to keep freed memory for the next step instead of giving it back to the kernel.

    XLA's CPU backend allocates and frees hundreds of megabytes a step. By default each of those pages is faulted in and
    zeroed again every step: a quarter of the time of a small model. To be called before the process starts threads, since
    it also keeps them to two heaps. By default every thread has its own, and what one has freed another cannot take; in a single
    one XLA looks for room among all the small things that Python leaves. Elsewhere than on glibc it does nothing.
    """
    trim_threshold, top_pad, mmap_max, arena_max = -1, -2, -4, -8  # names of mallopt(3), from malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in ((trim_threshold, -1), (top_pad, 2**26), (mmap_max, 0), (arena_max, 2)):
            mallopt(option, value)


def return_memory() -> None:
    """Gives the kernel what is free, which `keep_memory` has the heap keep. Work whose blocks are of many sizes, on several threads, leaves
    ever more holes in it: 50,000 pictures some gigabytes. Elsewhere than on glibc it does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
