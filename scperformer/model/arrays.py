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
MAX_HEADER = 1000  # characters; NumPy writes 118 for our arrays
BYTES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (4, 8)}  # of a number of each kind
# Of zipfile and NumPy; a RuntimeError is about a password, or about compression that zipfile does not have.
ERRORS = (
    *(OSError, KeyError, ValueError, TypeError, EOFError, RuntimeError, OverflowError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, tokenize.TokenError),
)
READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}  # by the version of the header


def read_arrays(path: Path, kinds: Mapping[str, str], most_values: int) -> dict[str, np.ndarray]:
    """Read arrays after their declared types and sizes have been checked; the text of a ValueError is the problem.

    `kinds` are the kinds of numbers (`dtype.kind`) that each array may have, such as "iu"; `most_values` are of all
    arrays together.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if not (problem := _problem(archive, kinds, most_values)):
                arrays = {}
                for name in kinds:
                    with archive.open(f"{name}.npy") as file:
                        arrays[name] = npy.read_array(file, allow_pickle=False, max_header_size=MAX_HEADER)
                return arrays
    except ERRORS as error:
        raise ValueError(f"'{path.name}' unreadable") from error
    raise ValueError(f"'{path.name}' {problem}")


def _problem(archive: zipfile.ZipFile, kinds: Mapping[str, str], most_values: int) -> str:
    """Return the problem of the types and sizes that arrays declare; "" if there is none."""
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
