"""The memory of freed arrays is kept or returned to the system, as a block says."""

import ctypes
import sys
from pathlib import Path

import numpy as np
import pytest

from scperformer.base.memory import GIVEN_BACK, KEPT, freed_memory

MIB = 2**20
# Of 256 MiB; the process also has arrays of other tests, and of its libraries.
MAX_LEFT = 100
MIN_KEPT = 200
is_glibc = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")


def resident_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory_after_freeing() -> float:
    """Allocate 256 MiB in arrays of 16 MiB, free them, and return how many MiB of them the process still has."""
    before = resident_memory()
    arrays = [np.ones(16 * MIB, dtype=np.uint8) for _ in range(16)]
    still_used = np.ones(MIB // 2, dtype=np.uint8)  # at the end of the heap, where glibc would otherwise cut it
    arrays.clear()
    left = (resident_memory() - before) / MIB
    del still_used
    return left


@pytest.mark.skipif(not is_glibc, reason="only glibc has these settings")
def test_freed_memory_is_kept_or_returned_as_the_innermost_block_says():
    with freed_memory(GIVEN_BACK):
        assert memory_after_freeing() < MAX_LEFT
        outside = resident_memory()
        with freed_memory(KEPT):
            assert memory_after_freeing() > MIN_KEPT
        assert (resident_memory() - outside) / MIB < MAX_LEFT  # returned at the end of the block
        assert memory_after_freeing() < MAX_LEFT
        with pytest.raises(ValueError, match="stop"), freed_memory(KEPT):
            raise ValueError("stop")
        assert memory_after_freeing() < MAX_LEFT


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail("the C library was loaded"))
    with freed_memory(KEPT):
        pass
