"""What glibc does with the memory of large arrays that are freed: keep it, or give it back to the system.

By itself glibc gives back an array of up to 32 MiB only if it is at the end of the heap. A command that reads a file
block by block then grows with the number of blocks. Other systems and C libraries are left alone.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD, MMAP_MAX = -1, -3, -4  # parameters of mallopt
GLIBC_DEFAULTS = {
    MMAP_MAX: 65536,
    MMAP_THRESHOLD: 32 * 2**20,
    TRIM_THRESHOLD: 64 * 2**20,
}  # the largest that glibc sets itself
# Arrays of 8 MiB or more, such as those of a block of cells, have memory of their own, which goes back at once.
GIVEN_BACK = {MMAP_MAX: 65536, MMAP_THRESHOLD: 8 * 2**20, TRIM_THRESHOLD: 8 * 2**20}
# None has, and nothing goes back: with 16,907 tokens, a third of the time of an attention layer was spent on clearing.
KEPT = {MMAP_MAX: 0, TRIM_THRESHOLD: -1}

_settings = [GLIBC_DEFAULTS]  # of the blocks that are open


@contextmanager
def freed_memory(setting: dict[int, int]) -> Iterator[None]:
    """Set what happens to freed memory during a block; afterwards it is as before, and free memory is given back."""
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if libc is None or not hasattr(libc, "gnu_get_libc_version"):
        yield
        return

    def apply() -> None:
        for parameter, value in _settings[-1].items():
            libc.mallopt(parameter, value)

    _settings.append(setting)
    apply()
    try:
        yield
    finally:
        _settings.pop()
        apply()
        libc.malloc_trim(0)
