"""Names of genes or labels from a file beside a model: text, a pickled or saved array, or the genes of an h5ad file."""

from pathlib import Path

import numpy as np

from scperformer.base.errors import InputError
from scperformer.importing.pickles import NUMPY, Global, Made, array_of, looks_like_pickle, read_pickle, state_of
from scperformer.importing.reading import read_in_child
from scperformer.io.read import read_cells

EXPECTED = "a text file with one name in each line, a pickled array or list of names, a .npy file or an h5ad file"
SKLEARN = "sklearn.preprocessing"  # of a fitted LabelEncoder


def read_names(path: str, what: str) -> list[str]:
    """Return the names in a file, in their order; nothing in it is executed.

    Parameters
    ----------
    what
        The option that named the file, for messages: genes or labels.

    Raises
    ------
    InputError
        The file is missing or damaged, or has no names.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"no file {what}={path}", EXPECTED, "check the path")
    try:
        names = _names_in(file)
    except ValueError as error:
        raise InputError(f"{what}={path} with {error}", EXPECTED, "name another file") from error
    if not names:
        raise InputError(f"{what}={path} without names", EXPECTED, "name another file")
    return names


def _names_in(file: Path) -> list[str]:
    if file.suffix == ".h5ad":
        return [str(name) for name in read_cells(file, "auto").var_names]
    if file.suffix == ".npy":
        return [str(name) for name in np.load(file, allow_pickle=False).ravel()]
    if looks_like_pickle(file):
        return read_in_child(lambda: _pickled_names(file), file.stat().st_size)
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError("content that is not text") from error
    return [line.strip() for line in lines if line.strip()]


def _pickled_names(file: Path) -> list[str]:
    content = read_pickle(file, _is_encoder)
    if isinstance(content, Made) and content.maker.module.startswith(SKLEARN):
        content = state_of(content, "label encoder").get("classes_")
    return [str(name) for name in array_of(content, "names").ravel()]


def _is_encoder(found: Global) -> bool:
    """Whether a pickle of names, of a table's index or of label encoders may name a global."""
    return (found.module, found.name) in NUMPY or found.module.startswith((SKLEARN, "pandas."))
