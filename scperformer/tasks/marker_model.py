"""The model that a list of marker genes makes for a file, of cells that show them clearly.

Beside the profiles of a tissue, cells without the markers of any type of the list have the label of the profiles.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anndata import AnnData

from scperformer.adaptation.fitted import Model
from scperformer.adaptation.load import load_model
from scperformer.annotation.predict import annotate_cells, annotate_file
from scperformer.config.annotation import PredictConfig
from scperformer.config.compose import make_options
from scperformer.config.options import ExpressionOptions
from scperformer.config.training import TrainOptions
from scperformer.tasks.train import train_model

CALLS = "profiles"  # prefix of the calls by the profiles of a tissue


@contextmanager
def model_of_markers(source: str | AnnData, cfg: PredictConfig) -> Iterator[Model]:
    """Make the model of the list `cfg.types` for a file, or for cells in memory; it is removed after the block."""
    cells = source if isinstance(source, AnnData) else None
    path = "AnnData" if isinstance(source, AnnData) else source
    values: dict[str, Any] = {
        field.name: getattr(cfg, field.name) for field in fields(ExpressionOptions)
    }
    values |= {
        "inputs": [path],
        "types": cfg.types,
        "ontology": cfg.ontology or "packaged",
        "studies": "false",
    }
    with TemporaryDirectory(prefix="scperformer-") as folder:
        if cfg.tissue is not None:
            usual = replace(cfg, types=None, relabel="auto", shift="auto")
            of_tissue = replace(
                usual, key_added=CALLS, umap=False, markers_output=None, output=None
            )
            calls = Path(folder, "calls.csv")
            if cells is None:
                annotate_file(path, calls, None, of_tissue, {})
            else:
                copy = AnnData(
                    cells.X, obs=cells.obs.copy(), var=cells.var, layers=dict(cells.layers)
                )
                annotate_cells(copy, None, of_tissue)
                copy.obs[[f"{CALLS}_call"]].to_csv(calls)
            values |= {"labels": str(calls), "label_key": f"{CALLS}_call"}
        output = Path(folder, Path(str(cfg.types)).stem)
        train_model(make_options(TrainOptions, values | {"output": str(output)}), cells)
        yield load_model(output)
