"""What a trained model is worth: its scores on validation and test cells, and its size."""

import itertools
import logging
from dataclasses import fields
from pathlib import Path

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from scperformer.adaptation.fitted import Model
from scperformer.adaptation.load import load_model
from scperformer.annotation.predict import annotate_cells
from scperformer.base.metrics import score
from scperformer.cells.reference_labels import CellLabels
from scperformer.cells.splits import TEST
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.options import ExpressionOptions
from scperformer.config.training import TrainOptions
from scperformer.io.read import read_cells
from scperformer.labels.texts import label_texts
from scperformer.model.folder import load_reference_cells
from scperformer.model.minibatches import Cells
from scperformer.model.network import CellTypeModel

# torch counts the fused softmax attention of a GPU, but not that of a CPU.
SOFTMAX = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
OF_CPU = {SOFTMAX: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)}


def measure(cfg: TrainOptions) -> dict[str, float]:
    """Return the scores of the model in `cfg.output`, and its size."""
    logging.getLogger("scperformer").setLevel(logging.WARNING)
    model = load_model(cfg.output)
    parts = {"val": "model", "baseline": "baseline", "encoder": "encoder_alone"}
    metrics = {
        part: scores
        for part, name in parts.items()
        if (scores := getattr(model.saved.metrics, name))
    }
    if cfg.data.split == "column":
        metrics["test"] = score_on_test_cells(model, cfg)
    names = itertools.product(metrics, ("accuracy", "macro_f1"))
    return {
        f"{part}_{name}": metrics[part][name] for part, name in names if metrics[part]
    } | size_of(model)


def score_on_test_cells(model: Model, cfg: TrainOptions) -> dict[str, float]:
    """Return the scores on labelled cells that `data.split_key` names `test`; {} without them."""
    options = {entry.name: getattr(cfg, entry.name) for entry in fields(ExpressionOptions)}
    how = AnnotationOptions(**options, adapt="false")
    truth: list[str] = []
    predicted: list[str] = []
    for name in cfg.inputs:
        cells = read_cells(Path(name), cfg.orientation)
        table = CellLabels.of(cells.obs, cfg, name).joined()
        is_test = (label_texts(cells.obs[cfg.data.split_key]) == TEST).to_numpy() & table.is_known
        if is_test.any():
            cells = cells[is_test].copy()
            annotate_cells(cells, model, how)
            truth += table.labels[is_test].tolist()
            predicted += cells.obs[f"{how.key_added}_label"].tolist()
    return score(truth, predicted) if truth else {}


@torch.no_grad()
def size_of(model: Model) -> dict[str, float]:
    """Return the numbers of `parameters`, and of FLOPs in matrix products for a cell of median length (`gflops`).

    The cell is one that the model stores: without stored cells there are no `gflops`.
    """
    network = getattr(model, "own_network", None)
    if not isinstance(network, CellTypeModel):  # several studies
        return {}
    found: dict[str, float] = {"parameters": sum(each.numel() for each in network.parameters())}
    stored = load_reference_cells(model.saved, model.path)
    if stored is None:
        return found
    cells = Cells(stored.values, model.tokens)
    cell = cells.batch(np.argsort(cells.lengths, kind="stable")[[len(cells) // 2]])
    network.branches(cell)  # computes what all cells share
    with FlopCounterMode(display=False, custom_mapping=OF_CPU) as counter:
        network.branches(cell)
    return found | {"gflops": counter.get_total_flops() / 1e9}
