"""Read files that torch has saved (.pt, .pth) without torch and without executing anything.

Since version 1.6 such a file is an uncompressed zip archive: `data.pkl` is a pickle in which each tensor refers to its
numbers in a file of its own, `data/KEY`. The pickle is read by pickles.py, and arrays are made of the numbers, if their
type, shape and strides fit the bytes that are there.
"""

import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scperformer.importing.pickles import NUMPY, Global, Made, Persistent, unpickled

PICKLE = "/data.pkl"  # in the folder that is named for the file
HEAD_BYTES = 256  # the name of the pickle, which comes first, is within these
OLD_START = bytes.fromhex("8002 8a0a 6cfc 9c46 f920 6aa8 5019")  # of torch before 1.6
TYPES = {
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "HalfStorage": "<f2",
    "LongStorage": "<i8",
    "IntStorage": "<i4",
    "ShortStorage": "<i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
REBUILT = "_rebuild_tensor_v2"  # a tensor: numbers, offset, shape and strides
PARAMETER = "_rebuild_parameter"  # a parameter: the tensor
GLOBALS = {
    *(("torch", name) for name in (*TYPES, "Size", "device")),
    *(("torch._utils", name) for name in (REBUILT, PARAMETER)),
    *(("collections", name) for name in ("OrderedDict", "defaultdict")),
    *NUMPY,
}


def is_torch_file(path: Path) -> bool:
    """Whether a file begins as one that torch has saved; it may end too early."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    return head.startswith(OLD_START) or (head.startswith(b"PK") and PICKLE.encode() in head)


def read_torch(path: Path, others: Callable[[Global], bool] = lambda _: False) -> Any:
    """Return the content of a file that torch has saved: mappings, lists, plain values, and tensors as arrays.

    Parameters
    ----------
    others
        Whether the file may name a global beside those of torch and NumPy; objects of these stay `Made`.

    Raises
    ------
    ValueError
        The file is damaged, of torch before 1.6, or has globals that it may not have; the text says which.
    """
    with path.open("rb") as file:
        if file.read(len(OLD_START)) == OLD_START:
            raise ValueError("the form of torch before 1.6 (save it again with a newer torch)")
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(PICKLE)]
            entries = archive.infolist()
            size = sum(entry.file_size for entry in entries)
            if len(names) != 1 or any(entry.compress_type for entry in entries) or size > path.stat().st_size:
                raise ValueError("another content than torch saves")
            content = unpickled(archive.read(names[0]), lambda found: _is_torch(found) or others(found))
            return _Tensors(archive, names[0].removesuffix("data.pkl")).within(content)
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, UnicodeDecodeError) as error:
        raise ValueError("a damaged archive") from error


def _is_torch(found: Global) -> bool:
    return (found.module, found.name) in GLOBALS


class _Tensors:
    """The numbers of the tensors of an archive; each entry is read once, when it is asked for."""

    def __init__(self, archive: zipfile.ZipFile, folder: str):
        self.archive = archive
        self.folder = folder
        self.read: dict[str, bytes] = {}

    def within(self, content: Any) -> Any:
        """Return a mapping or an object with arrays in place of the tensors in it, and in mappings within it."""
        if isinstance(content, Made) and content.maker.module == "torch._utils":
            return self.array(content)
        if isinstance(content, Made) and content.maker.module == "collections":  # kinds of dict
            return self.within(content.items)
        if isinstance(content, dict):
            return {name: self.within(value) for name, value in content.items()}
        return content

    def array(self, made: Made) -> np.ndarray:
        """Return the array of a tensor or parameter."""
        if made.maker.name == PARAMETER and made.args and isinstance(made.args[0], Made):
            made = made.args[0]
        if made.maker.name != REBUILT or len(made.args) < 4 or not isinstance(made.args[0], Persistent):
            raise ValueError("a tensor that is not described by its numbers")
        storage, offset, shape, strides = made.args[:4]
        sizes = (offset, *shape, *strides) if isinstance(shape, tuple) and isinstance(strides, tuple) else (-1,)
        if not all(type(size) is int and size >= 0 for size in sizes) or len(shape) != len(strides) or len(shape) > 32:
            raise ValueError("a tensor of a shape that no array has")
        numbers = self.numbers(storage.content)
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if math.prod(shape) > len(numbers) or (math.prod(shape) and last >= len(numbers)):
            raise ValueError("a tensor that does not fit its numbers")
        steps = [stride * numbers.itemsize for stride in strides]
        # A view: tensors that share their numbers take no memory of their own.
        return np.lib.stride_tricks.as_strided(numbers[offset:], shape, steps, writeable=False)

    def numbers(self, storage: Any) -> np.ndarray:
        """Return the numbers to which a tensor refers: their type, name, device and count are given."""
        fits = isinstance(storage, tuple) and len(storage) == 5 and storage[0] == "storage"
        kind = storage[1].name if fits and isinstance(storage[1], Global) else None
        if kind not in TYPES or not isinstance(storage[2], str):
            raise ValueError(f"numbers of a type that is not known ({str(kind)[:50]})")
        try:
            if storage[2] not in self.read:
                self.read[storage[2]] = self.archive.read(f"{self.folder}data/{storage[2]}")
        except KeyError as error:
            raise ValueError("a tensor without its numbers") from error
        data = self.read[storage[2]]
        dtype = np.dtype(TYPES[kind])
        if len(data) % dtype.itemsize or len(data) // dtype.itemsize != storage[4]:
            raise ValueError("a tensor that does not fit its numbers")
        return np.frombuffer(data, dtype=dtype)


def weights_of(content: Any, name: str) -> Mapping[str, np.ndarray]:
    """Return the weights in an entry of a checkpoint, without those that are no arrays."""
    weights = content.get(name) if isinstance(content, dict) else None
    if not isinstance(weights, dict):
        raise ValueError(f"no {name}")
    return {str(key): value for key, value in weights.items() if isinstance(value, np.ndarray)}
