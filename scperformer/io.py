"""Read h5ad files with clear errors; write them whole or not at all."""

import hashlib
import warnings
from pathlib import Path
from typing import Any

import anndata as ad
import h5py
from anndata import AnnData
from anndata._io.specs.registry import IORegistryError  # public nowhere; a subclass of Exception only

from scperformer.errors import InputError
from scperformer.outputs import new_file, new_folder, require_absent

__all__ = [
    "READ_ERRORS",
    "damaged",
    "new_file",
    "new_folder",
    "read_h5ad",
    "require_absent",
    "require_h5ad",
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
    with warnings.catch_warnings():
        # Repeated cell names are announced below, repeated genes are added up when they are used.
        warnings.filterwarnings("ignore", message=".*names are not unique", category=UserWarning)
        # How anndata maps its older formats to today's is nothing that the user can act on.
        for category in (ad.OldFormatWarning, FutureWarning):
            warnings.simplefilter("ignore", category)
        try:
            adata = ad.read_h5ad(path)
        except READ_ERRORS as error:
            raise damaged(path, error) from error
    require_cells_and_genes(adata, path)
    if not adata.obs_names.is_unique:
        num = int(adata.obs_names.duplicated().sum())
        warnings.warn(f"{num} cell names in {path} repeat earlier ones; they are kept as they are", stacklevel=2)
    return adata


def require_cells_and_genes(adata: Any, path: str | Path) -> None:
    """Fail when there is nothing in an AnnData, or in what stands for one (`n_obs`, `n_vars`).

    Raises
    ------
    InputError
        It has no cells or no genes.
    """
    for what, size in (("cell", adata.n_obs), ("gene", adata.n_vars)):
        if size == 0:
            raise InputError(
                f"no {what}s in {path} ({adata.n_obs} cells x {adata.n_vars} genes)",
                f"at least one {what}",
                "check the step that wrote this file, for example a filter that dropped everything",
            )


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
            parts = sorted(file)
    except READ_ERRORS as error:
        raise damaged(path, error) from error
    if not {"obs", "var"} <= set(parts):
        raise InputError(
            f"{path} is an HDF5 file without obs and var (it holds {', '.join(parts[:5]) or 'nothing'})",
            expected,
            "10x .h5 files: read with scanpy.read_10x_h5 and save with write_h5ad",
        )


def damaged(path: str | Path, error: Exception) -> InputError:
    """The error for a file on whose content h5py or anndata failed with one of `READ_ERRORS`."""
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    # HDF5 names the two lengths in a way that nobody understands; the word is what helps.
    what = "is truncated" if "truncated file" in reason else f"is damaged ({reason[:200]})"
    return InputError(f"{path} {what}", "a complete h5ad file", "copy or download it again, or write it anew")


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
