"""Imported models with labelled cells: the evidence for their scores, and their adaptation to a file.

The labelled cells are held out by nature: the model was trained elsewhere. Its scores of them say how probable its
labels are and how accurate it is, and the cells themselves what known cells look like.

Adapted to a file, an imported model becomes a linear model of the genes of the file, which gives the labelled cells,
reduced to the genes and the depth of the file, the scores that the whole model gives them at full depth (ridge
regression on the differences; the weights that the model has for these genes are where it starts). So all labels of
the model stay, also those without labelled cells.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from scperformer.base.metrics import negative_log_likelihood, score
from scperformer.base.progress import progress
from scperformer.model.confidence import calibration
from scperformer.model.held_out import HeldOut
from scperformer.model.imported import StandardisedLinear
from scperformer.model.load import Model
from scperformer.model.network import LinearModel
from scperformer.model.novelty import fit_novelty
from scperformer.model.reference_cells import ReferenceCells
from scperformer.model.saved_model import SavedModel
from scperformer.training.condition import Condition, provenance_of_adapted, reduced
from scperformer.training.evidence import branch_scales, evidence_folds
from scperformer.training.fit_linear import SOLVER_TOLERANCE, fit_logistic

KEPT_SCORES = "kept.scores"  # weights of a model folder: the scores of its kept cells by the whole model, N x C
MAX_KEPT = 2000  # labelled cells that are kept; the time of an adaptation grows with their number cubed
CLIP = 10.0  # of standardised expression, as in CellTypist
PENALTIES = 10.0 ** np.arange(
    -3, 4
)  # of the ridge regression, relative to the mean inner product of a cell with itself
BLOCK_GENES = 1024
ABSENT = -1e6  # bias of a label that logistic regression has not seen


def evidence_of(
    scores: np.ndarray, x: csr_matrix, labels: np.ndarray, names: list[str], seed: int
) -> tuple[float, dict[str, Any], HeldOut]:
    """Return the scale of the scores of labelled cells, the metrics of the labels, and the held-out calls.

    Parameters
    ----------
    scores
        Of N cells by the model, which was not trained on them, N x C.
    x
        Their expression, CSR float32 N x G, ln(1 + cp10k).
    labels
        The index of the true label of each cell, int64 N; not all labels have to occur.
    names
        The C labels.
    """
    scale = max(branch_scales(scores, np.zeros_like(scores), labels)[0], 1e-6)
    logits = (scale * scores).astype(np.float32)
    evidence = evidence_folds(labels, seed)
    rows = evidence.rows
    folds = evidence.fold_of_row
    codes = np.unique(labels[rows], return_inverse=True)[1]
    profile, novelty = fit_novelty(x[rows], codes, folds, seed)
    dealt = folds >= 0
    held_out = HeldOut(logits[rows][dealt], labels[rows][dealt], novelty[dealt], vars(profile))
    fold = score(labels, scores.argmax(axis=1)) | {"num_cells": len(labels), "branches": {}}
    fold["loss"] = negative_log_likelihood(logits, labels)
    metrics = {"scales": {}, "out_of_fold": fold, "calibration": calibration(logits, labels, names)}
    return scale, metrics, held_out


def baseline_weights(x: csr_matrix, labels: np.ndarray, num_labels: int) -> dict[str, np.ndarray]:
    """Return the weights of logistic regression on labelled cells; labels without cells get no cell."""
    present, codes = np.unique(labels, return_inverse=True)
    fitted = fit_logistic(x, codes, tolerance=SOLVER_TOLERANCE)
    weight = np.zeros((x.shape[1], num_labels), dtype=np.float32)
    bias = np.full(num_labels, ABSENT, dtype=np.float32)
    weight[:, present] = fitted.weight
    bias[present] = fitted.bias
    return {"baseline.weight": weight, "baseline.bias": bias}


def baseline_scores(x: csr_matrix, labels: np.ndarray, seed: int) -> dict[str, float]:
    """Return the scores of logistic regression, each cell called by a fit to the cells of other folds."""
    dealt = evidence_folds(labels, seed)
    rows = dealt.rows
    folds = dealt.fold_of_row
    called = labels[rows].copy()
    for fold in range(folds.max(initial=-1) + 1):
        is_called = folds == fold
        present, codes = np.unique(labels[rows][~is_called], return_inverse=True)
        fitted = fit_logistic(x[rows[~is_called]], codes)
        called[is_called] = present[LinearModel(fitted.weight, fitted.bias).predict(x[rows[is_called]])]
    return score(labels[rows][folds >= 0], called[folds >= 0])


@progress("fitting the imported model to the genes and the depth of a file")
def distilled(model: Model, reference_cells: ReferenceCells, condition: Condition) -> SavedModel:
    """Return a linear model of the measured genes that scores labelled cells as an imported model does with all genes.

    Its evidence is from scores of each cell by a fit without this cell, in closed form.
    """
    saved = model.saved
    seed = int(saved.provenance["seed"])
    labels = reference_cells.labels
    wanted = saved.weights[KEPT_SCORES].astype(np.float64)
    x = reduced(reference_cells, condition, saved.config["target_sum"], seed)
    weights = _starting_weights(saved, x, condition.measured)
    network = StandardisedLinear(x.shape[1], len(saved.labels), {"clip": CLIP})
    fill(network, weights)
    products = _inner_products(x, weights)
    # The bias is fitted as the weight of one more gene: a mean over all cells would not leave out any of them.
    of_bias = float(products.diagonal().mean())
    alpha, left_out = _ridge(products + of_bias, wanted - network.scored(x, None).scores)
    weights["weight"] = weights["weight"] + _to_genes(x, weights, alpha)
    weights["bias"] = weights["bias"] + of_bias * alpha.sum(axis=0)
    scale, metrics, held_out = evidence_of(wanted - left_out, x, labels, saved.labels, seed)
    return replace(
        saved,
        genes=[gene for gene, is_measured in zip(saved.genes, condition.measured, strict=True) if is_measured],
        gene_means=np.asarray(x.mean(axis=0), dtype=np.float32).ravel(),
        config=saved.config | {"network": {"name": "standardised", "clip": CLIP, "scale": scale}, "own_totals": True},
        metrics=metrics,
        provenance=provenance_of_adapted(saved, condition, len(labels), metrics["out_of_fold"]["accuracy"]),
        weights={f"model.{name}": array for name, array in weights.items()}
        | baseline_weights(x, labels, len(saved.labels)),
        reference_cells=None,
        has_reference_cells=False,
        held_out=held_out,
    )


def fill(network: StandardisedLinear, weights: dict[str, np.ndarray]) -> None:
    """Put weights into a network."""
    network.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in weights.items()})


def _starting_weights(saved: SavedModel, x: csr_matrix, measured: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weights from which the fit starts: those of the model, for expression standardised on its kept cells.

    A gene that does not vary in these cells keeps the mean and the deviation that it has in the model.
    """
    mean = np.asarray(x.mean(axis=0), dtype=np.float64).ravel()
    squares = np.asarray(x.multiply(x).mean(axis=0), dtype=np.float64).ravel()
    deviation = np.sqrt(np.maximum(squares - mean**2, 0))
    varies = deviation > 1e-6
    if "model.deviation" not in saved.weights:  # a network of another kind has no weight for each gene
        nothing = {"weight": np.zeros((x.shape[1], len(saved.labels))), "bias": np.zeros(len(saved.labels))}
        return nothing | {"mean": mean, "deviation": np.where(varies, deviation, 1.0)}
    return {
        "weight": saved.weights["model.weight"][measured].astype(np.float64),
        "bias": saved.weights["model.bias"].astype(np.float64),
        "mean": np.where(varies, mean, saved.weights["model.mean"][measured]),
        "deviation": np.where(varies, deviation, saved.weights["model.deviation"][measured]),
    }


def _blocks(x: csr_matrix, weights: dict[str, np.ndarray]) -> Iterator[tuple[slice, np.ndarray]]:
    """Yield the standardised expression of blocks of genes, dense, with their places."""
    columns = x.tocsc()
    for start in range(0, x.shape[1], BLOCK_GENES):
        genes = slice(start, min(start + BLOCK_GENES, x.shape[1]))
        z = (columns[:, genes].toarray() - weights["mean"][genes]) / weights["deviation"][genes]
        yield genes, np.minimum(z, CLIP)


def _inner_products(x: csr_matrix, weights: dict[str, np.ndarray]) -> np.ndarray:
    """Return the inner products of the standardised cells, N x N."""
    products = np.zeros((x.shape[0], x.shape[0]))
    for _, z in _blocks(x, weights):
        products += z @ z.T
    return products


def _to_genes(x: csr_matrix, weights: dict[str, np.ndarray], alpha: np.ndarray) -> np.ndarray:
    """Return the weights of genes that factors of cells make, G x C."""
    return np.concatenate([z.T @ alpha for _, z in _blocks(x, weights)])


def _ridge(products: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit a ridge regression from inner products of cells; return the factors of the cells, and left-out errors, N x C.

    The penalty has the smallest sum of squared errors, each of a cell by a fit without it: the factor of the cell
    divided by the diagonal of the inverse (Allen 1974, Technometrics 16:125).
    """
    values, vectors = np.linalg.eigh(products)
    values = np.maximum(values, 0)
    turned = vectors.T @ wanted
    best = None
    for penalty in PENALTIES * max(float(values.mean()), 1e-12):
        inverse = 1 / (values + penalty)
        alpha = vectors @ (inverse[:, None] * turned)
        errors = alpha / ((vectors**2) @ inverse)[:, None]
        loss = float((errors**2).sum())
        if best is None or loss < best[0]:
            best = (loss, alpha, errors)
    assert best is not None
    return best[1], best[2]
