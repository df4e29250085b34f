"""How the C library keeps memory that was freed, where it is glibc; elsewhere nothing happens."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

# of glibc's mallopt
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -3, -4, -8
MAPS, MOST = 1 << 16, 1 << 25  # what glibc begins with, and the largest block that it learns to keep
LARGE = 1 << 20
ARENAS = 2


@cache
def few_arenas() -> None:
    """Let all threads share two arenas: each thread's own keeps its largest batch for good."""
    _tell(M_ARENA_MAX, ARENAS)


@cache
def return_large() -> None:
    """Have large blocks that are freed go back to the system at once.

    By default glibc keeps blocks of up to 32 MB for later, in pieces for each thread: on 2.5 million events that was
    half a gigabyte of 1.2 that nothing used.
    """
    few_arenas()
    _tell(M_MMAP_THRESHOLD, LARGE)


def return_freed() -> None:
    """Give pages that are free inside the arenas back to the system; they come back, zeroed, when they are needed."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def freed_is_kept() -> Iterator[None]:
    """Inside, memory that is freed stays for the next of its size.

    By default every large tensor is a map of its own, whose pages the system takes back and zeroes anew: up to a third
    of the time of a training that makes the same large tensors at every step.
    """
    _tell(M_MMAP_MAX, 0)
    _tell(M_TRIM_THRESHOLD, 2**31 - 1)
    try:
        yield
    finally:
        size = LARGE if return_large.cache_info().currsize else MOST
        _tell(M_MMAP_MAX, MAPS)
        _tell(M_MMAP_THRESHOLD, size)
        _tell(M_TRIM_THRESHOLD, 2 * size)
        return_freed()


def _tell(option: int, value: int) -> None:
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(option, value)
