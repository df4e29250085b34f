"""Memory that was freed goes back to the system where the C library is glibc, and nothing breaks elsewhere."""

import ctypes
import platform
import subprocess
import sys
import textwrap

import pytest

from bridgemem.storage import allocator

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")


def ran(code: str) -> list[int]:
    """What a process of its own prints; resident() is its resident memory in MiB."""
    resident = """
        import numpy as np
        from pathlib import Path
        from bridgemem.storage.allocator import return_freed, return_large
        def resident():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(resident) + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [int(value) for value in found.stdout.split()]


@glibc
def test_what_lies_free_between_blocks_in_use_goes_back():
    full, kept, trimmed = ran(
        """
        blocks = [np.ones(12_000) for _ in range(2_000)]  # 96 kB each, below what is mapped on its own
        print(resident())
        pinned = blocks[::50]
        del blocks
        print(resident())
        return_freed()
        print(resident())
        """
    )
    assert full - trimmed > 120, (full, kept, trimmed)


@glibc
def test_large_blocks_go_back_at_once():
    full, after = ran(
        """
        return_large()
        blocks = [np.ones(500_000) for _ in range(40)]  # 4 MB each
        pinned = np.ones(1_000)
        print(resident())
        del blocks
        print(resident())
        """
    )
    assert full - after > 140, (full, after)


@glibc
def test_what_a_training_frees_stays_until_it_ends():
    apart, kept, held, after = ran(
        """
        from resource import RUSAGE_SELF, getrusage
        from bridgemem.storage.allocator import freed_is_kept
        def faults():
            before = getrusage(RUSAGE_SELF).ru_minflt
            for _ in range(20):
                np.ones(8_000_000)  # 64 MB, above what glibc learns to keep
            return getrusage(RUSAGE_SELF).ru_minflt - before
        before = resident()
        print(faults())
        with freed_is_kept():
            np.ones(8_000_000)
            print(faults())
            print(resident() - before)
        print(resident() - before)
        """
    )
    assert kept * 10 < apart, (apart, kept)
    assert held > 50 > 20 > after, (held, after)


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    for function in (allocator.few_arenas.__wrapped__, allocator.return_large.__wrapped__, allocator.return_freed):
        function()
    with allocator.freed_is_kept():
        pass
