"""Description of the machine of a benchmark, and the peak memory of a process."""

import os
import platform
import re
from pathlib import Path

import torch


def machine() -> str:
    """Processor, cores, torch and, if there is one, the GPU."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    found = re.search(r"model name\s*:\s*(.+)", text)
    processor = found[1] if found else platform.processor()
    capability = torch.backends.cpu.get_cpu_capability()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{processor} ({capability}), {os.cpu_count()} cores, torch {torch.__version__}{gpu}"


def peak_gb() -> float:
    """Peak memory of this process in GB (10^9 bytes).

    `ru_maxrss` is not used, because a process inherits it from its parent.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s*(\d+) kB", status)
    assert found
    return int(found[1]) * 1024 / 1e9
