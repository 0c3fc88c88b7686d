"""The memory of freed arrays is kept or returned to the system, as a block says."""

import ctypes
import subprocess
import sys

import pytest

is_glibc = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")

# Allocates 256 MiB in arrays of 16 MiB, frees them, and prints how many MiB of them the process still has.
MEASURE = """
from pathlib import Path
import numpy as np
from scperformer.base.memory import GIVEN_BACK, KEPT, freed_memory

def resident_memory():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

def print_memory_after_freeing():
    before = resident_memory()
    arrays = [np.ones(16 * 2**20, dtype=np.uint8) for _ in range(16)]
    still_used = np.ones(2**19, dtype=np.uint8)  # at the end of the heap, where glibc would otherwise cut it
    arrays.clear()
    print(resident_memory() - before)
    del still_used

with freed_memory(GIVEN_BACK):
    print_memory_after_freeing()
    outside = resident_memory()
    with freed_memory(KEPT):
        print_memory_after_freeing()
    print(resident_memory() - outside)
    print_memory_after_freeing()
    try:
        with freed_memory(KEPT):
            raise ValueError("stop")
    except ValueError:
        print_memory_after_freeing()
"""


@pytest.mark.skipif(not is_glibc, reason="only glibc has these settings")
def test_freed_memory_is_kept_or_returned_as_the_innermost_block_says():
    # A process of its own: glibc gives arrays the gaps that other tests left in the heap before it asks for new memory.
    process = subprocess.run(
        [sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True
    )
    returned, kept, after_the_block, returned_again, after_an_error = map(
        float, process.stdout.split()
    )
    assert kept > 200
    assert max(returned, after_the_block, returned_again, after_an_error) < 100
