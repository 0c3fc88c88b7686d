"""Open an HDF5 file only after a child process has inspected it: libhdf5 hangs or crashes on some damaged files.

libhdf5 loops forever on zeros in a heap of strings, and allocates 4 GiB for a string with a damaged length. So the
child (base/child.py) reads, within limits of time and memory, all parts that can cause this: strings, attributes and
the indexes of chunks. It reads no numbers, as no damage to them caused this in benchmarks/robustness.py. The inspection
takes 0.05 to 0.1 s of CPU time, and 0.9 s for a million cell names; a file of strings takes a fifth of its limit.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from scperformer.base.child import CAN_FORK, EXTRA_MEMORY, run_in_child
from scperformer.base.errors import InputError
from scperformer.io.safety import READ_ERRORS, require_contained

log = logging.getLogger(__name__)

MAX_COMPRESSION = 2000  # ratio of a dataset's size in memory to its size on disk; gzip reaches 1032
STRINGS_AT_ONCE = 2**16

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
    """Read all attributes and strings of an HDF5 file, and the chunk index of each dataset, but no numbers.

    A MemoryError says that all datasets together declare far more than is stored.
    """
    surplus = -EXTRA_MEMORY  # bytes that are declared, beyond those that compression can explain
    num_text = -Path(path).stat().st_size
    for node in require_contained(h5py.File(path, "r"), path):
        names: list[str] = []
        with _ignore_damage():
            names = list(node.attrs) if h5py.h5a.get_num_attrs(node.id) else []
        for name in names:
            with _ignore_damage():
                node.attrs[name]
        with _ignore_damage():
            if isinstance(node, h5py.Dataset):
                stored = node.id.get_storage_size()  # reads the chunk index
                surplus += max(0, node.nbytes - MAX_COMPRESSION * stored) if node.shape else 0
                if max(surplus, num_text) > 0:
                    raise MemoryError
                if node.dtype.hasobject and node.shape:
                    for start in range(0, len(node), STRINGS_AT_ONCE):
                        texts = node[start : start + STRINGS_AT_ONCE]
                        # many strings may be one that is stored
                        if h5py.check_string_dtype(node.dtype):
                            num_text += sum(map(len, texts.flat))
                elif node.dtype.hasobject:
                    node[()]


def open_hdf5(path: str | Path) -> h5py.File:
    """Open an HDF5 file for reading; if it has not been opened before, a child process inspects it first.

    On macOS and Windows, which cannot fork safely, the file is opened without inspection. A file on which libhdf5 would
    hang, crash or take too much memory is refused, and a file that does not hold all of its data (`require_contained`);
    other damage raises one of `READ_ERRORS`, here or when it is read.
    """
    path = Path(path)
    state = path.stat()
    identity = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns

    def work() -> None:
        with _ignore_damage():
            inspect(path)

    is_new = identity not in _inspected
    if CAN_FORK and is_new:
        try:
            if not run_in_child(work, state.st_size, "the HDF5 library"):
                log.warning("%s is opened although a child process could not inspect it", path)
        except ValueError as error:
            found = f"{path} is damaged ({error})"
            raise InputError(
                "damaged-file", found, "a complete HDF5 file", "copy or download it again"
            ) from error
    file = h5py.File(path, "r")
    if is_new:
        require_contained(file, path)
        _inspected.add(identity)
    return file
