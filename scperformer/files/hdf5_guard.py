"""Open an HDF5 file only after a child process has inspected it: libhdf5 hangs or crashes on some damaged files.

libhdf5 loops forever on zeros in a heap of strings, and allocates 4 GiB for a string with a damaged length. So the
child reads, within limits of time and memory, all parts that can cause this: strings, attributes and the indexes of
chunks. It reads no numbers, as no damage to them caused this in benchmarks/damage.py. The inspection takes 0.05 to
0.1 s of CPU time, and 0.9 s for a million cell names.

The child is a fork of this process, as a new interpreter needs 0.26 s to import h5py. Forking is safe beside other
threads: h5py takes its lock before a fork, so that no thread is inside libhdf5; the child calls nothing else and exits.
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

CPU_SECONDS = 5  # limit of CPU time; unlike wall time, it does not depend on a slow disk or a busy machine
BYTES_PER_SECOND = 10 * 2**20  # the limit grows by a second for so many bytes; a file of strings takes a fifth of that
EXTRA_MEMORY = 2**30  # bytes beyond those of this process; a block of strings takes some megabytes
MAX_COMPRESSION = 2000  # ratio of a dataset's size in memory to its size on disk; gzip reaches 1032
STRINGS_AT_ONCE = 2**16
# Exit statuses of the child.
FAILED = 1
NO_MEMORY = 3

_inspected: set[tuple[int, ...]] = set()  # device, inode, size and modification time of each file


@contextmanager
def _ignore_damage() -> Iterator[None]:
    """Ignore errors of a damaged part, which the reader may not need, but not a lack of memory."""
    try:
        yield
    except READ_ERRORS as error:
        if "memory allocation failed" in str(error):
            raise MemoryError from error


def inspect(path: str | Path) -> None:
    """Read all attributes and strings of an HDF5 file, and the chunk index of each dataset, but no numbers."""
    for node in require_contained(h5py.File(path, "r"), path):
        names: list[str] = []
        with _ignore_damage():
            names = list(node.attrs)
        for name in names:
            with _ignore_damage():
                node.attrs[name]
        with _ignore_damage():
            if isinstance(node, h5py.Dataset):
                stored = node.id.get_storage_size()  # reads the chunk index
                if node.shape and node.nbytes > EXTRA_MEMORY + MAX_COMPRESSION * stored:
                    raise MemoryError
                if node.dtype.hasobject and node.shape:
                    for start in range(0, len(node), STRINGS_AT_ONCE):
                        node[start : start + STRINGS_AT_ONCE]
                elif node.dtype.hasobject:
                    node[()]


def _inspect_and_exit(path: str | Path, size: int) -> None:
    """Inspect a file of `size` bytes within the limits, then exit; runs in the child process."""
    import resource  # not on Windows

    status = FAILED
    try:
        gc.disable()  # it might close files that the parent writes
        faulthandler.disable()
        # Signals to all processes of a job are for the parent alone; only those that damage causes end the child.
        faults = signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGXCPU
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - set(faults))
        silent = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(silent, stream)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limits = {"CORE": 0, "CPU": CPU_SECONDS + size // BYTES_PER_SECOND, "AS": mapped + EXTRA_MEMORY}
        for name, limit in limits.items():
            kind = getattr(resource, f"RLIMIT_{name}")
            _, hard = resource.getrlimit(kind)
            resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
        with _ignore_damage():
            inspect(path)
        status = 0
    except MemoryError:
        status = NO_MEMORY
    finally:
        os._exit(status)


def _watch(path: Path, size: int) -> None:
    """Inspect a file of `size` bytes in a child process, and refuse the file if the child was killed."""
    status = FAILED
    reason = "its limits cannot be set"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # about threads; see the top of this file
            child = os.fork()
        if child == 0:
            _inspect_and_exit(path, size)
        try:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        except BaseException:  # Ctrl-C, or the end of a job
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise
    except OSError as error:
        reason = str(error.strerror)
    if status == FAILED:
        log.warning("%s is opened although a child process could not inspect it (%s)", path, reason)
    if status in (0, FAILED):
        return
    effects = {
        NO_MEMORY: "it takes far more memory than its size explains",
        -signal.SIGXCPU: "the HDF5 library hangs on it",
    }
    effect = effects.get(status) or f"it crashes the HDF5 library, {signal.Signals(-status).name}"
    raise InputError(f"{path} is damaged ({effect})", "a complete HDF5 file", "copy or download it again")


def open_hdf5(path: str | Path) -> h5py.File:
    """Open an HDF5 file for reading; if it has not been opened before, a child process inspects it first.

    On macOS and Windows, which cannot fork safely, the file is opened without inspection.

    Raises
    ------
    InputError
        The file is damaged, and libhdf5 would hang, crash or take too much memory. Other damage raises one of
        `READ_ERRORS`, here or when the file is read.
    """
    path = Path(path)
    state = path.stat()
    identity = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns
    if sys.platform == "linux" and identity not in _inspected:
        _watch(path, state.st_size)
        _inspected.add(identity)
    return h5py.File(path, "r")
