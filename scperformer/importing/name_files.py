"""Names of genes or labels from a file beside a model: text, a pickled array, or the genes of an h5ad file."""

from pathlib import Path

from scperformer.base.errors import InputError
from scperformer.io.pickles import NUMPY, Made, array_of, looks_like_pickle, read_in_child, read_pickle, state_of
from scperformer.io.read import read_cells

EXPECTED = "a text file with one name in each line, a pickled array or list of names, or an h5ad file"
ENCODER = "sklearn.preprocessing."  # of a fitted LabelEncoder


def read_names(path: str, what: str) -> list[str]:
    """Return the names in the file of the option `what`, in their order; nothing in it is executed."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"no file {what}={path}", EXPECTED, "check the path")

    def pickled() -> list[str]:
        content = read_pickle(file, (*NUMPY, ENCODER, "pandas."))
        if isinstance(content, Made) and content.maker.startswith(ENCODER):
            content = state_of(content, "label encoder").get("classes_")
        return list(array_of(content, "names").ravel())

    try:
        if file.suffix == ".h5ad":
            names = list(read_cells(file, "auto").var_names)
        elif looks_like_pickle(file):
            names = read_in_child(pickled, file.stat().st_size)
        else:
            names = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except ValueError as error:
        found = "content that is not text" if isinstance(error, UnicodeDecodeError) else error
        raise InputError(f"{what}={path} with {found}", EXPECTED, "name another file") from error
    if not names:
        raise InputError(f"{what}={path} without names", EXPECTED, "name another file")
    return [str(name) for name in names]
