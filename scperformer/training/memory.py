"""The memory that this process has used, and the memory that it can still get."""

import os
import resource
import sys
from pathlib import Path


def peak_memory() -> int:
    """The most memory that this process has had in use at a time, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def available_memory(root: Path = Path("/")) -> int:
    """The bytes that this process can still get: free on the machine, and within the limits of its control groups.

    They are read from `proc` and `sys` in the folder `root`; without these (not Linux), half of the machine's memory.
    """
    table = root / "proc" / "meminfo"
    if not table.is_file():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    lines = dict(line.split(":", 1) for line in table.read_text().splitlines())
    free = [int(lines["MemAvailable"].split()[0]) * 1024]
    # Control groups of version 2: the limits of this process's group and of all groups around it count.
    own = root / "proc" / "self" / "cgroup"
    own_lines = own.read_text().splitlines() if own.is_file() else []
    names = [line.removeprefix("0::/") for line in own_lines if line.startswith("0::/")]
    top = root / "sys" / "fs" / "cgroup"
    group = top / (names or [""])[0]
    for folder in (group, *group.parents):
        limit, used = folder / "memory.max", folder / "memory.current"
        if limit.is_file() and used.is_file() and (text := limit.read_text().strip()) != "max":
            # Inactive pages of cached files count as used, but the kernel frees them when memory is needed.
            stat = folder / "memory.stat"
            rows = stat.read_text().splitlines() if stat.is_file() else []
            cached = sum(int(row.split()[1]) for row in rows if row.startswith("inactive_file "))
            free.append(int(text) - int(used.read_text()) + cached)
        if folder == top:
            break
    # Version 1, as one group.
    limit, used = (top / "memory" / f"memory.{name}_in_bytes" for name in ("limit", "usage"))
    if limit.is_file() and used.is_file():
        free.append(int(limit.read_text()) - int(used.read_text()))
    return max(0, min(free))
