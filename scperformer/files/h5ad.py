"""Read h5ad files with clear errors; write them whole or not at all."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import anndata as ad
import h5py
from anndata import AnnData

from scperformer.errors import InputError
from scperformer.files.old_h5ad import has_lost_categories, read_parts
from scperformer.files.safety import READ_ERRORS, damaged, quiet_anndata, reason_of
from scperformer.outputs import new_file


def read_h5ad(path: str | Path) -> AnnData:
    """Read an h5ad file that `require_readable` has accepted into memory.

    If anndata refuses the file but its expression, obs and var can be read, the rest is left out with a warning.
    """
    try:
        with h5py.File(path, "r") as file:
            if has_lost_categories(file):  # anndata would take the codes for numbers
                raise ValueError("columns of codes without their categories")
        with quiet_anndata():
            adata = ad.read_h5ad(path)
    except READ_ERRORS as error:
        try:
            with h5py.File(path, "r") as file, quiet_anndata():
                adata, left_out = read_parts(file)
        except READ_ERRORS:
            raise damaged(path, error) from error
        without = f" without {', '.join(left_out[:5])}" if left_out else ""
        warnings.warn(f"{path} is not a regular h5ad file ({reason_of(error)}); it is read{without}", stacklevel=2)
    return adata


def write_h5ad(adata: AnnData, path: str | Path, overwrite: bool = False) -> None:
    """Write `adata` to a new file that appears complete or not at all; errors as `new_file`."""
    with new_file(path, overwrite) as temporary:
        adata.write_h5ad(temporary)


def keys_in(file: h5py.File) -> dict[str, set[str]]:
    """Return the names in obs, obsm and uns of an open h5ad file."""
    places = {place: set(file.get(place, {})) for place in ("obsm", "uns")}
    return places | {"obs": set(file["obs"].attrs["column-order"])}


def require_new_keys(
    existing: Mapping[str, set[str]],
    new: Mapping[str, Sequence[str]],
    path: str | Path = "the data",
    mends: Sequence[str] = ("overwrite=true",),
) -> None:
    """Refuse to add a name that exists already.

    Parameters
    ----------
    existing, new
        Names by place: obs, obsm and uns.
    mends
        Options that the error offers.

    Raises
    ------
    InputError
        Lists the existing names.
    """
    there = [f"{place}['{name}']" for place, names in new.items() for name in names if name in existing[place]]
    if there:
        more = f" and {len(there) - 3} more" if len(there) > 3 else ""
        found, expected = f"{path} already has {', '.join(there[:3])}{more}", "no earlier annotation of this name"
        raise InputError(found, expected, "add overwrite=true to replace it, or key_added=... to keep both", mends)
