"""Do work on a file from elsewhere in a child process with limits of CPU time and memory.

Some damaged or hostile files make a library hang, crash or fill the memory: then the child ends, and not the command.
It is a fork of this process, as a new interpreter needs seconds to import what it has. Forking is safe beside other
threads if the work takes no lock that another thread may hold: h5py takes its lock before a fork.
"""

import faulthandler
import gc
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

CAN_FORK = sys.platform == "linux"  # macOS and Windows cannot fork safely
# limit of CPU time; unlike wall time, it does not depend on a slow disk or a busy machine
CPU_SECONDS = 10
# the limit grows by a second for so many bytes; 20 MB of 50,000 datasets take 6 s
BYTES_PER_SECOND = 4 * 2**20
EXTRA_MEMORY = 2**30  # bytes more than this process may use
# exit status of the child; a negative one is the number of the signal that ended it
MEMORY_STATUS = 3


def run_in_child(work: Callable[[], None], size: int, library: str, memory: int = 0) -> bool:
    """Do work on a file in a child process; return whether it was done: False if it failed or there is no process.

    CPU time is in proportion to `size`, the bytes of the file. `library` reads it, for messages, and may take `memory`
    bytes beyond `EXTRA_MEMORY`. A ValueError says that the work takes too much memory or time, or crashes.
    """
    with warnings.catch_warnings():
        # about threads; see the top of this file
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            child = os.fork()
        except OSError:
            return False
    if child == 0:
        _work_and_exit(work, CPU_SECONDS + size // BYTES_PER_SECOND, EXTRA_MEMORY + memory)
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except BaseException:  # Ctrl-C, or the end of a job
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    if status == MEMORY_STATUS:
        raise ValueError("it takes far more memory than its size explains")
    if status == -signal.SIGXCPU:
        raise ValueError(f"{library} hangs on it")
    if status < 0:
        raise ValueError(f"it crashes {library}, {signal.Signals(-status).name}")
    return status == 0


def _work_and_exit(work: Callable[[], None], seconds: int, memory: int) -> NoReturn:
    """Do the work within the limits, then exit; runs in the child process."""
    import resource  # not on Windows

    status = 1
    try:
        gc.disable()  # it might close files that the parent writes
        faulthandler.disable()
        # Signals to all processes of a job are for the parent alone; only those that damage causes end the child.
        faults = (
            signal.SIGSEGV,
            signal.SIGBUS,
            signal.SIGABRT,
            signal.SIGFPE,
            signal.SIGILL,
            signal.SIGXCPU,
        )
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - set(faults))
        silent = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silent, stream)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        for name, limit in {"CORE": 0, "CPU": seconds, "AS": mapped + memory}.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            _, hard = resource.getrlimit(kind)
            resource.setrlimit(
                kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
            )
        work()
        status = 0
    except MemoryError:
        status = MEMORY_STATUS
    finally:
        os._exit(status)
