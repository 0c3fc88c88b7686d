"""What an annotation depends on: `resume=true` keeps a finished annotation, or continues one, if this is the same."""

import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import zarr
from anndata.io import read_elem

from scperformer.config.annotation import AnnotationOptions
from scperformer.io.hdf5_guard import open_hdf5
from scperformer.io.safety import reading
from scperformer.model.saved_model import SavedModel

# Options that change nothing in an annotation, or whose effect is in the identity in another way.
WITHOUT_EFFECT = {
    *("inputs", "model_path", "output", "output_dir", "sample_sheet", "condition_of", "key_added"),
    *("overwrite", "replace_annotation", "resume", "keep_going", "adapted_folder"),
    *("batch_size", "threads", "device"),
}


def identity_of(
    cfg: AnnotationOptions, saved: SavedModel, sha256: str, condition_sha256: str, sample: dict[str, str]
) -> dict[str, Any]:
    """Return everything that the annotation of a file depends on, as JSON has it.

    Parameters
    ----------
    sha256, condition_sha256
        Of the file, and of the file `condition_of` ("" without).
    sample
        The columns that a sample sheet adds, with their values.
    """
    options = {name: value for name, value in asdict(cfg).items() if name not in WITHOUT_EFFECT}
    identity = {
        "input": sha256,
        "model": saved.hash,
        "version": version("scperformer"),
        "condition_of": condition_sha256,
        "sheet": sample,
    }
    return dict(json.loads(json.dumps(identity | options)))


def why_other(identity: dict[str, Any], found: dict[str, Any]) -> str:
    """Return how an earlier run differs, such as "other model"; "" if it does not."""
    others = [name for name in identity if found.get(name) != identity[name]]
    return f"other {', '.join(others)}" if others else ""


def recorded_identity(output: Path, key: str) -> dict[str, Any] | None:
    """Return the identity that an annotation in a file or zarr store records; None without an annotation."""
    place = f"uns/{key}/run/identity"
    text: Any = None
    with reading(output, "a complete annotation"):
        if output.suffix == ".parquet":
            from pyarrow.parquet import read_schema

            record = json.loads((read_schema(output).metadata or {}).get(b"scperformer", b"{}"))
            text = record.get("run", {}).get("identity")
        elif output.suffix in (".h5ad", ".zarr"):
            root = zarr.open_group(output, mode="r") if output.suffix == ".zarr" else open_hdf5(output)
            text = read_elem(root[place]) if place in root else None
        return None if text is None else dict(json.loads(text))
