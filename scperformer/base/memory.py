"""The memory of this machine; whether glibc keeps the memory of freed arrays or returns it to the system.

By default glibc returns the memory of an array of up to 32 MiB only if it is at the end of the heap, so the memory of a
command that reads a file block by block would grow with the number of blocks. Other C libraries are left alone.
"""

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Parameters of mallopt (see its man page).
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
MMAP_MAX = -4
# glibc raises both thresholds as arrays are freed; these are the highest values that it reaches by itself.
GLIBC_DEFAULTS = {MMAP_MAX: 65536, MMAP_THRESHOLD: 32 * 2**20, TRIM_THRESHOLD: 64 * 2**20}
# Arrays of 8 MiB or more, such as a block of cells, are mapped on their own and returned as soon as they are freed.
GIVEN_BACK = {MMAP_MAX: 65536, MMAP_THRESHOLD: 8 * 2**20, TRIM_THRESHOLD: 8 * 2**20}
# No array is mapped on its own, and no memory is returned: with 16,907 tokens, an attention layer otherwise spent a
# third of its time on clearing new pages.
KEPT = {MMAP_MAX: 0, TRIM_THRESHOLD: -1}

# of a container or job
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def machine_memory() -> float:
    """Return the bytes of memory that this process may use, by the machine and its limits; infinity if unknown."""
    sizes = [math.inf]
    with suppress(ImportError, AttributeError, ValueError, OSError):  # Windows has neither
        import resource

        sizes.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        sizes += [limit] if limit != resource.RLIM_INFINITY else []
    for path in CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # the text "max" is no limit
            sizes.append(int(Path(path).read_text()))
    return min(sizes)


_settings = [GLIBC_DEFAULTS]  # of the open blocks, innermost last


@contextmanager
def freed_memory(setting: dict[int, int]) -> Iterator[None]:
    """Apply `KEPT` or `GIVEN_BACK` within a block; then restore the previous setting and return all free memory."""
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
