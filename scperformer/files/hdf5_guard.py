"""Open HDF5 files after a first look at them in a child process: some damage keeps libhdf5 busy for ever.

Zeros in a heap of strings do so; a string with a damaged length takes 4 GiB of memory. The look reads all that can do
this, within limits of time and memory: strings, attributes and indexes of chunks, but no numbers, of which no damage in
benchmarks/damage.py did so. It takes 0.05 to 0.1 s of CPU time, and 0.9 s for a million names of cells.

The child is a fork of this process, as a new interpreter takes 0.26 s to import h5py. It is safe beside other threads:
h5py takes its lock before a fork, so that no thread is inside libhdf5; the child calls nothing else and leaves at once.
"""

import faulthandler
import gc
import logging
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from scperformer.base.errors import InputError
from scperformer.files.safety import READ_ERRORS, require_contained

log = logging.getLogger(__name__)

SECONDS = 5  # of CPU time, not of the clock: on a slow disk or a busy machine a sound file takes no more of it
BYTES_PER_SECOND = 10 * 2**20  # of the file, for each of which a second is added; one of strings takes a fifth of it
MEMORY = 2**30  # bytes in addition to those of this process; a block of strings takes some megabytes
MOST_SHRUNK = 2000  # times that a dataset may be larger than it is stored; gzip comes to 1032
BLOCK = 2**16  # strings that are read at a time
FAILED, NO_MEMORY = 1, 3  # exit statuses of the child

_seen: set[tuple[int, ...]] = set()  # the files that were looked at: device, inode, size, time of change


@contextmanager
def _for_the_reader() -> Iterator[None]:
    """Let errors of a damaged part pass, as the reader may not need it; but not a lack of memory."""
    try:
        yield
    except READ_ERRORS as error:
        if "memory allocation failed" in str(error):
            raise MemoryError from error


def look(path: str | Path) -> None:
    """Read all attributes and strings of an HDF5 file and the index of the chunks of each dataset; no numbers."""
    for node in require_contained(h5py.File(path, "r"), path):
        names: list[str] = []
        with _for_the_reader():
            names = list(node.attrs)
        for name in names:
            with _for_the_reader():
                node.attrs[name]
        with _for_the_reader():
            if isinstance(node, h5py.Dataset):
                stored = node.id.get_storage_size()  # goes through the index
                if node.shape and node.nbytes > MEMORY + MOST_SHRUNK * stored:
                    raise MemoryError
                if node.dtype.hasobject and node.shape:
                    for start in range(0, len(node), BLOCK):
                        node[start : start + BLOCK]
                elif node.dtype.hasobject:
                    node[()]


def _look_and_leave(path: str | Path, size: int) -> None:
    """Look at a file of `size` bytes within the limits, then end this process, a child."""
    import resource  # not on Windows

    status = FAILED
    try:
        gc.disable()  # it might close files that the parent writes
        faulthandler.disable()
        # Other signals than those that damage causes may go to all processes of a job: they are for the parent alone.
        faults = signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGXCPU
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - set(faults))
        silent = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silent, stream)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limits = {"CORE": 0, "CPU": SECONDS + size // BYTES_PER_SECOND, "AS": mapped + MEMORY}
        for name, limit in limits.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            _, most = resource.getrlimit(kind)
            resource.setrlimit(kind, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
        with _for_the_reader():
            look(path)
        status = 0
    except MemoryError:
        status = NO_MEMORY
    finally:
        os._exit(status)


def _watch(path: Path, size: int) -> None:
    """Have a child look at a file of `size` bytes, and refuse the file if the child did not come to its end."""
    status = FAILED
    why = "its limits cannot be set"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads; see above
            child = os.fork()
        if child == 0:
            _look_and_leave(path, size)
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except BaseException:  # Ctrl-C, or the end of a job
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
    except OSError as error:
        why = str(error.strerror)
    if status == FAILED:
        log.warning("%s is opened without a look at it in a child process (%s)", path, why)
    if status in (0, FAILED):
        return
    reasons = {
        NO_MEMORY: "it takes far more memory than its size explains",
        -signal.SIGXCPU: "the HDF5 library does not come to an end with it",
    }
    reason = reasons.get(status) or f"it crashes the HDF5 library, {signal.Signals(-status).name}"
    raise InputError(f"{path} is damaged ({reason})", "a complete HDF5 file", "copy or download it again")


def open_hdf5(path: str | Path) -> h5py.File:
    """Open an HDF5 file to read it; a file that was not opened before is looked at in a child process first.

    macOS and Windows cannot fork safely: there, the file is opened at once.

    Raises
    ------
    InputError
        It is damaged so that libhdf5 would not come to an end, crash or take too much memory. Other damage raises one
        of `READ_ERRORS`, here or when the file is read.
    """
    path = Path(path)
    state = path.stat()
    identity = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
    if sys.platform == "linux" and identity not in _seen:
        _watch(path, state.st_size)
        _seen.add(identity)
    return h5py.File(path, "r")
