"""Time and memory in words, and how much memory was used."""

import resource
import sys

GIB = 2**30


def in_time(seconds: float) -> str:
    """A duration as people say it: "0.8 s", "42 s", "3 min 20 s", "2 h 05 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left:02d} min" if hours else f"{minutes} min {rest:02d} s"


def in_gib(num_bytes: float) -> str:
    """A size as people say it: "0.42 GiB", "3.1 GiB", "24 GiB"."""
    size = num_bytes / GIB
    return f"{size:.2f} GiB" if size < 0.995 else f"{size:.1f} GiB" if size < 9.95 else f"{size:.0f} GiB"


def peak_memory() -> int:
    """The most memory that this process has had in use at a time, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB
