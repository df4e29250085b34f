"""How the C library keeps memory that was freed, where it is glibc; elsewhere nothing happens."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # of glibc's mallopt
LARGE = 1 << 20
ARENAS = 2


@cache
def few_arenas() -> None:
    """Let all threads share two arenas: each thread's own keeps its largest batch for good."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)


@cache
def return_large() -> None:
    """Have large blocks that are freed go back to the system at once.

    By default glibc keeps blocks of up to 32 MB for later, in pieces for each thread: on 2.5 million events that was
    half a gigabyte of 1.2 that nothing used.
    """
    few_arenas()
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, LARGE)


def return_freed() -> None:
    """Give pages that are free inside the arenas back to the system; they come back, zeroed, when they are needed."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
