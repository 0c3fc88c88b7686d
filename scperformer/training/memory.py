"""Time and memory in words; how much memory was used, and how much there is."""

import os
import resource
import sys
from pathlib import Path


def peak_memory() -> int:
    """The most memory that this process has had in use at a time, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that this process can still get: what is free on the machine, and what its control groups leave it.

    Parameters
    ----------
    root
        Where `proc` and `sys` are. Without them (not Linux) it is half of the machine's memory.
    """
    table = root / "proc" / "meminfo"
    if not table.is_file():
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    lines = dict(line.split(":", 1) for line in table.read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    return max(0, min([free, *_left_in_groups(root)]))


def _left_in_groups(root: Path) -> list[int]:
    """What the limits of the control groups (version 2) that this process is in leave, from the inmost outwards."""
    own = root / "proc" / "self" / "cgroup"
    lines = own.read_text().splitlines() if own.is_file() else []
    names = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")] or [""]
    top = root / "sys" / "fs" / "cgroup"
    left = []
    for folder in (top / names[0], *(top / names[0]).parents):
        limit, used = folder / "memory.max", folder / "memory.current"
        if limit.is_file() and used.is_file() and (text := limit.read_text().strip()) != "max":
            # Pages of files that nobody is using count as used, but make room when it is needed.
            stat = folder / "memory.stat"
            lines = stat.read_text().splitlines() if stat.is_file() else []
            cached = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
            left.append(int(text) - int(used.read_text()) + cached)
        if folder == top:
            break
    # Version 1, as one group.
    old = top / "memory"
    limit, used = old / "memory.limit_in_bytes", old / "memory.usage_in_bytes"
    return left + ([int(limit.read_text()) - int(used.read_text())] if limit.is_file() and used.is_file() else [])
