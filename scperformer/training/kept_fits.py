"""Finished fits of a training, kept in the run folder, so that an interrupted run does not make them again."""

import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from scperformer.base.outputs import new_file

FITS = "fits"  # the folder within the run folder

Arrays = dict[str, np.ndarray]


class KeptFits:
    """Arrays by the name of a fit; without a folder, nothing is kept."""

    def __init__(self, folder: Path | None = None):
        self.folder = None if folder is None else folder / FITS

    def load_or_make(self, name: str, make: Callable[[], Arrays]) -> Arrays:
        """Return the arrays of a fit, of an earlier run if they are there and not damaged; else make and keep them."""
        if self.folder is None:
            return make()
        file = self.folder / f"{name}.npz"
        try:
            with np.load(file, allow_pickle=False) as file_of_arrays:
                return dict(file_of_arrays)
        except (OSError, ValueError, EOFError, zipfile.BadZipFile):
            arrays = make()
        self.folder.mkdir(exist_ok=True)
        with new_file(file, overwrite=True) as temporary, temporary.open("wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
        return arrays
