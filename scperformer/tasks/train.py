"""Train and pretrain, with the kind of training that the options ask for."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from anndata import AnnData

from scperformer.adaptation.joint import JointModel
from scperformer.adaptation.load import single_model
from scperformer.annotation.predict import Session, predict_all
from scperformer.base.lab import from_lab
from scperformer.cells.marker_types import level_keys
from scperformer.cells.opened import OpenedCells, open_cells
from scperformer.cells.profiles import added_profiles
from scperformer.cells.reference_labels import curated_column
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.training import PretrainOptions, TrainOptions
from scperformer.io.marker_lists import read_marker_list
from scperformer.io.read import default_output
from scperformer.model.inference import torch_state_kept
from scperformer.model.saved_model import SavedModel
from scperformer.training.strategies import is_learned
from scperformer.training.studies import train_studies, trains_studies
from scperformer.training.train import train_cells


def train_model(cfg: TrainOptions, cells: AnnData | None = None) -> Path:
    """Train a model on the files `cfg.inputs` or on cells in memory; write the model folder and return its path."""
    output = Path(cfg.output) if cfg.output else default_output(cfg.inputs[0], ".model")
    if cfg.types is not None:  # a person decides on labels, below too
        keys = level_keys(str(cfg.label_key), read_marker_list(cfg.types))
        cfg = replace(cfg, label_keys=keys or cfg.label_keys, relabel_reference=False)
    elif (
        cfg.label_key is None
        and cfg.labels is None
        and (cells is not None or cfg.inputs[0].endswith(".h5ad"))
    ):
        with open_cells(cfg.inputs[0] if cells is None else cells, cfg) as first:
            key = curated_column(first.keys()["obs"])
        cfg = replace(cfg, label_key=key, relabel_reference=cfg.relabel_reference and key is None)
    # other libraries change the number of threads, too, when they are imported
    with torch_state_kept():
        profiles = added_profiles(cfg) if cells is None and cfg.studies != "true" else []
        if trains_studies(cfg, len(cfg.inputs) - len(profiles) if cells is None else 1):
            return train_studies(cells, cfg, output, call_jointly)
        has_layers = cfg.init is not None or is_learned(cfg)
        return train_cells(
            cells, cfg, output, from_lab("training")(cfg) if has_layers else None, profiles
        )


def call_jointly(
    saved: SavedModel, cells: OpenedCells, options: AnnotationOptions
) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities of the labels of several studies, N x C, and the novelty scores of opened cells, N."""
    members = [single_model(study.saved, Path()) for study in saved.studies]
    session = Session(cells, JointModel(saved, Path(), members), options)
    blocks = list(predict_all(session.adapted(), "annotating")())
    return np.concatenate([block.proba for block in blocks]), np.concatenate(
        [block.scores for block in blocks]
    )


def pretrain_encoder(cfg: PretrainOptions, cells: Sequence[AnnData] | None = None) -> Path:
    """Pretrain on the files `cfg.inputs` or on cells in memory; write the model folder and return its path."""
    output = Path(cfg.output) if cfg.output else default_output(cfg.inputs[0], ".encoder")
    with torch_state_kept():
        return from_lab("pretrain")(cells, cfg, output)
