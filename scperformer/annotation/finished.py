"""Annotations that an earlier run has finished: `resume=true` keeps them if file, model and options are the same."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zarr
from anndata.io import read_elem

from scperformer.annotation.several import keys_of
from scperformer.io.hdf5_guard import open_hdf5
from scperformer.io.read import checksum
from scperformer.io.safety import reading
from scperformer.model.load import Model

if TYPE_CHECKING:
    from scperformer.cli.predict import PredictConfig

# Options that change nothing in an annotation, or whose effect is recorded in another way.
NOT_IN_RESULT = {
    *("inputs", "model_path", "other_models", "output", "outputs", "output_dir", "sample_sheet", "condition_of"),
    *("key_added", "overwrite", "replace_annotation", "resume", "keep_going"),
    *("batch_size", "threads", "device", "adapted_folder"),
}
RECORDED = {
    "input": "input/sha256",
    "model": "model/hash",
    "version": "versions/scperformer",
    "options": "config_json",
    "condition_of": "condition/of_sha256",
    "models": "models/keys",
    "sheet": "sheet",
    "sheet_values": "sheet_values",
}  # entries of the record of an annotation


def why_other(output: Path, path: str, models: list[Model], cfg: PredictConfig, sample: dict[str, str]) -> str:
    """Return what an existing annotation has of another run, such as "other model"; "" if it is of this one.

    `sample` has the columns that the sample sheet adds to the file `path`.
    """
    others: dict[str, None] = {}
    keys = keys_of(models, cfg.key_added)
    for model, key in zip(models, keys, strict=True):
        found = _recorded(output, key)
        if found is None:
            return f"no record of an annotation '{key}'"
        described = sample if key == keys[0] else {}
        expected = {
            "input": checksum(path),
            "model": model.saved.hash,
            "version": version("scperformer"),
            "condition_of": [] if cfg.condition_of is None else checksum(cfg.condition_of),
            "models": keys if len(keys) > 1 and key == keys[0] else [],
            "sheet": list(described),
            "sheet_values": list(described.values()),
        }
        options = _that_matter(json.loads(found.pop("options")))
        wanted = _that_matter(json.loads(json.dumps(asdict(cfg))))
        others |= {name: None for name, value in expected.items() if found[name] != value}
        others |= {name: None for name in wanted if options.get(name) != wanted[name]}
    return f"other {', '.join(others)}" if others else ""


def _that_matter(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in NOT_IN_RESULT}


def _recorded(output: Path, key: str) -> dict[str, Any] | None:
    """Return the `RECORDED` entries of an annotation in a file or zarr store; None if there are none."""
    with reading(output, "a complete annotation"):
        if output.suffix == ".parquet":
            from pyarrow.parquet import read_schema

            record = json.loads((read_schema(output).metadata or {}).get(b"scperformer", b"null"))
            return None if record is None else {name: _inside(record, place) for name, place in RECORDED.items()}
        if output.suffix not in (".h5ad", ".zarr"):
            return None
        root = zarr.open_group(output, mode="r") if output.suffix == ".zarr" else open_hdf5(output)
        places = {name: f"uns/{key}/{place}" for name, place in RECORDED.items()}
        if places["options"] not in root:
            return None
        values = {name: read_elem(root[place]) if place in root else [] for name, place in places.items()}
        return {
            name: value if isinstance(value, str) else [str(part) for part in value] for name, value in values.items()
        }


def _inside(record: dict[str, Any], place: str) -> Any:
    """Return an entry of a nested dictionary; an empty list if it is missing."""
    for name in place.split("/"):
        record = record.get(name, []) if isinstance(record, dict) else []
    return record
