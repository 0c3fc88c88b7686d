"""Read h5ad files with clear errors; write them whole or not at all."""

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import anndata as ad
import h5py
from anndata import AnnData
from anndata._io.specs.registry import IORegistryError  # public nowhere; a subclass of Exception only

from scperformer.errors import InputError
from scperformer.files.old_h5ad import has_lost_categories, quiet_anndata, read_parts
from scperformer.files.safety import require_contained, require_usable
from scperformer.outputs import new_file, new_folder, require_absent

__all__ = [
    "READ_ERRORS",
    "damaged",
    "fingerprint",
    "new_file",
    "new_folder",
    "read_h5ad",
    "require_absent",
    "require_h5ad",
    "require_unchanged",
    "sha256",
    "write_h5ad",
]

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"

# What h5py and anndata raise on damaged or foreign content. MemoryError is not among them on purpose.
READ_ERRORS = (
    OSError,
    KeyError,
    ValueError,
    TypeError,
    IndexError,
    AttributeError,
    RuntimeError,
    IORegistryError,
)


def read_h5ad(path: str | Path) -> AnnData:
    """The content of an h5ad file, in memory.

    Cell names may repeat: they are kept and a warning says so.

    Raises
    ------
    InputError
        The file is missing, a folder, not h5ad, truncated, damaged, or has no cells or no genes.
    """
    path = Path(path)
    require_h5ad(path)
    try:
        with h5py.File(path, "r") as file:
            if has_lost_categories(file):  # anndata would take the codes for numbers
                raise ValueError("columns of codes without their categories")
        with quiet_anndata():
            adata = ad.read_h5ad(path)
    except READ_ERRORS as error:
        adata = _read_leniently(path, error)
    require_usable(adata, path)
    return adata


def _read_leniently(path: Path, error: Exception) -> AnnData:
    """The parts of a file that anndata refused with `error`, if what counts can be read."""
    try:
        with h5py.File(path, "r") as file, quiet_anndata():
            adata, left_out = read_parts(file, READ_ERRORS)
    except READ_ERRORS:
        raise damaged(path, error) from error
    without = f" without {', '.join(left_out[:5])}" if left_out else ""
    warnings.warn(f"{path} is no regular h5ad file ({_reason(error)}); it is read{without}", stacklevel=3)
    return adata


def require_h5ad(path: str | Path) -> None:
    """Fail unless `path` can be opened and has the parts of an h5ad; its content is not read.

    Raises
    ------
    InputError
        The file is missing, a folder, not h5ad, or truncated.
    """
    path = Path(path)
    expected = "an h5ad file"
    if not path.exists():
        raise InputError(f"no file {path}", expected, "check the path")
    if path.is_dir():
        raise InputError(f"{path} is a folder", expected, "name the h5ad file itself")
    try:
        with path.open("rb") as file:
            start = file.read(len(HDF5_SIGNATURE))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", expected, "check its permissions") from error
    if start != HDF5_SIGNATURE:
        what = "is empty (0 bytes)" if not start else "is not an HDF5 file"
        raise InputError(f"{path} {what}", expected, "read it with scanpy and save it with write_h5ad")
    try:
        with h5py.File(path, "r") as file:
            require_contained(file, path)
            parts = sorted(file)
    except InputError:
        raise
    except READ_ERRORS as error:
        raise damaged(path, error) from error
    if not {"obs", "var"} <= set(parts):
        raise InputError(
            f"{path} is an HDF5 file without obs and var (it holds {', '.join(parts[:5]) or 'nothing'})",
            expected,
            "10x .h5 files: read with scanpy.read_10x_h5 and save with write_h5ad",
        )


def damaged(path: str | Path, error: Exception, expected: str = "a complete h5ad file") -> InputError:
    """The error for a file on whose content h5py or anndata failed with one of `READ_ERRORS`."""
    reason = _reason(error)
    # HDF5 names the two lengths, and gzip its marker, in a way that nobody understands; the word is what helps.
    is_cut = any(words in reason for words in ("truncated file", "end-of-stream", "Truncated file"))
    what = "is truncated" if is_cut else f"is damaged ({reason})"
    return InputError(f"{path} {what}", expected, "copy or download it again, or write it anew")


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def fingerprint(path: str | Path) -> dict[Path, tuple[int, int, int]]:
    """What says whether a file, or one in a folder, was written anew: size, time of change and number on its disk."""
    path = Path(path)
    files = sorted(entry for entry in path.rglob("*") if entry.is_file()) if path.is_dir() else [path]
    seen = {file: file.stat() for file in files if file.exists()}
    return {file: (state.st_size, state.st_mtime_ns, state.st_ino) for file, state in seen.items()}


def require_unchanged(path: str | Path, seen: dict[Path, tuple[int, int, int]]) -> None:
    """Fail when an input is not the one that `fingerprint` has seen.

    Raises
    ------
    InputError
        It was changed, replaced or taken away meanwhile.
    """
    if fingerprint(path) != seen:
        expected = "the same input from beginning to end"
        raise InputError(f"{path} was changed while it was read", expected, "run the step again and leave it alone")


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file, as 64 hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_h5ad(adata: AnnData, path: str | Path, overwrite: bool = False) -> None:
    """Write `adata` to a new file that appears complete or not at all.

    Raises
    ------
    InputError
        As `new_file`.
    """
    with new_file(path, overwrite) as temporary:
        adata.write_h5ad(temporary)


def keys_in(file: h5py.File) -> dict[str, set[str]]:
    """The names of what obs, obsm and uns of an h5ad file hold."""
    places = {place: set(file.get(place, {})) for place in ("obsm", "uns")}
    return places | {"obs": set(file["obs"].attrs["column-order"])}


def require_new_keys(
    existing: Mapping[str, set[str]],
    new: Mapping[str, Sequence[str]],
    path: str | Path = "the data",
    mends: Sequence[str] = ("overwrite=true",),
) -> None:
    """Fail when anything that is to be added is there already.

    Parameters
    ----------
    existing, new
        Names by place: obs, obsm and uns.
    mends
        Options that the error offers.

    Raises
    ------
    InputError
        Names what is there.
    """
    there = [f"{place}['{name}']" for place, names in new.items() for name in names if name in existing[place]]
    if there:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        raise InputError(
            f"{path} already has {', '.join(there[:3])}{more}",
            "no earlier annotation of this name",
            "add overwrite=true to replace it, or key_added=... to keep both",
            mends,
        )
