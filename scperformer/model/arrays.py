"""Read arrays from the .npz files of a model folder, which may come from anywhere: nothing in them is executed."""

import lzma
import math
import tokenize
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.lib import format as npy

MAX_UNPACKED = 2 * 2**30  # bytes; 20,000 cells with 5,000 expressed genes have .4 GB
MAX_HEADER = 1000  # characters; those that NumPy writes for our arrays have 118
BYTES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (4, 8)}  # of the numbers of each kind
# Of zipfile and NumPy; a RuntimeError is one about a password, or about a way of packing that zipfile does not have.
ERRORS = (
    *(OSError, KeyError, ValueError, TypeError, EOFError, RuntimeError, OverflowError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError),
)
READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  # by the version of the header


def read_arrays(path: Path, kinds: Mapping[str, str], most_values: int) -> dict[str, np.ndarray]:
    """Read these arrays; the text of a ValueError says how they are damaged.

    Types and sizes are compared as they are declared, before anything is unpacked.

    Parameters
    ----------
    kinds
        The kinds of numbers (`dtype.kind`) that each array may have, such as "iu".
    most_values
        Of all these arrays together.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            wrong = _wrong(archive, kinds, most_values)
            if not wrong:
                return {name: _array(archive, name) for name in kinds}
    except ERRORS as error:
        raise ValueError(f"'{path.name}' unreadable") from error
    raise ValueError(f"'{path.name}' {wrong}")


def _wrong(archive: zipfile.ZipFile, kinds: Mapping[str, str], most_values: int) -> str:
    """Return what is wrong with the types and sizes that arrays declare; "" if nothing is."""
    num_bytes = 0
    num_values = 0
    for name, allowed in kinds.items():
        info = archive.getinfo(f"{name}.npy")
        with archive.open(info) as file:
            shape, _, dtype = READERS[npy.read_magic(file)](file, max_header_size=MAX_HEADER)
            start = file.tell()
        if dtype.kind not in allowed or dtype.itemsize not in BYTES[dtype.kind]:
            return f"with {name} of type {dtype}"
        if start + math.prod(shape) * dtype.itemsize != info.file_size:
            return "unreadable"
        num_bytes += info.file_size
        num_values += math.prod(shape)
    is_large = num_bytes > MAX_UNPACKED or num_values > most_values
    return f"of {num_values:,} numbers and {num_bytes:,} bytes when unpacked" if is_large else ""


def _array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(f"{name}.npy") as file:
        return npy.read_array(file, allow_pickle=False, max_header_size=MAX_HEADER)
