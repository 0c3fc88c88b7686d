"""Read arrays from the .npz files of a model folder, which may come from anywhere: nothing in them is executed."""

import zipfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

MOST_UNPACKED = 2 * 2**30  # bytes; 20,000 cells with 5,000 expressed genes have .4 GB


def read_arrays(path: Path, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Read these arrays, after their size unpacked was checked; the text of a ValueError says how they are damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            if (size := sum(part.file_size for part in archive.infolist())) > MOST_UNPACKED:
                raise ValueError(f"'{path.name}' of {size:,} bytes when unpacked")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in names}
    except (OSError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"'{path.name}' unreadable") from error
