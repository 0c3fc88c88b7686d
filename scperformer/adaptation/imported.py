"""Imported models with labelled cells: the evidence for their scores, and their adaptation to a file.

The model was not trained on the labelled cells, so they are held out. Its scores of them say how probable its
labels are and how accurate it is, and the cells themselves what known cells look like.

Adapted to a file, an imported model becomes a linear model of the genes of the file, which gives the labelled cells,
reduced to the genes and the depth of the file, the scores that the whole model gives them at full depth (ridge
regression on the differences; the weights that the model has for these genes are where it starts). So all labels of
the model stay, also those without labelled cells.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_matrix

from scperformer.adaptation.coverage import Coverage, adapted_model, reduced
from scperformer.adaptation.fitted import FittedModel
from scperformer.base.metrics import negative_log_likelihood, score
from scperformer.base.progress import progress
from scperformer.fits.folds import evidence_folds
from scperformer.fits.scales import branch_scale
from scperformer.model.arrays import HeldOut, ReferenceCells
from scperformer.model.bundle import Metrics, OutOfFold
from scperformer.model.imported import StandardisedLinear
from scperformer.model.saved_model import CLIP, STANDARDISED, SavedModel
from scperformer.trust.confidence import calibration
from scperformer.trust.novelty import fit_novelty

KEPT_SCORES = "kept.scores"  # weights of a model folder: the scores of its kept cells by the whole model, N x C
# labelled cells that are kept; the time of an adaptation grows with their number cubed
MAX_KEPT = 2000
# Of the ridge regression, relative to the mean inner product of a cell with itself.
PENALTIES = 10.0 ** np.arange(-3, 4)
BLOCK_GENES = 1024


def evidence_of(
    scores: np.ndarray, x: csr_matrix, labels: np.ndarray, seed: int
) -> tuple[float, Metrics, HeldOut]:
    """Return the scale of the scores of labelled cells, the metrics of the labels, and the held-out calls.

    `scores` are by the model, which was not trained on these cells, N x C; `x` is their expression, CSR float32 N x G,
    ln(1 + cp10k); `labels` has the index of the true label of each, int64 N; not all have to occur.
    """
    scale = max(branch_scale(scores, labels), 1e-6)
    logits = (scale * scores).astype(np.float32)
    folds = evidence_folds(labels, seed)
    rows = folds.rows
    dealt = folds.is_dealt
    codes = np.unique(labels[rows], return_inverse=True)[1]
    novelty_model, novelty = fit_novelty(x[rows], codes, folds.fold_of_row, seed)
    held_out = HeldOut(logits[rows][dealt], labels[rows][dealt], novelty[dealt], novelty_model)
    loss, found = negative_log_likelihood(logits, labels), score(labels, scores.argmax(axis=1))
    fold = OutOfFold(
        num_cells=len(labels), **found, loss=loss, branches={}, baseline=None, batches=None
    )
    return (
        scale,
        Metrics(scales={}, out_of_fold=fold, calibration=calibration(logits, labels)),
        held_out,
    )


@dataclass(repr=False)
class ImportedModel(FittedModel):
    """A model of a different tool, which predicts cells as this tool does."""

    corrects_batch_effects = False
    normalises_over_own_genes = True

    @property
    def has_independent_labels(self) -> bool:
        return isinstance(self.network, StandardisedLinear)

    @property
    def how_to_complete(self) -> str:
        return "import it with reference=FILE and label_key=COLUMN"

    @progress("fitting the imported model to the genes and the depth of a file")
    def refit(self, stored: ReferenceCells, coverage: Coverage) -> SavedModel:
        """Return a linear model of the measured genes that scores labelled cells as this model does with all genes.

        Its evidence is from scores of each cell by a fit without this cell, in closed form.
        """
        saved = self.saved
        seed = saved.provenance.seed
        wanted = saved.weights[KEPT_SCORES].astype(np.float64)
        x = reduced(stored, coverage, saved.config.target_sum, seed)
        weights = _starting_weights(saved, x, coverage.measured)
        network = StandardisedLinear(x.shape[1], len(saved.labels), {"clip": CLIP})
        network.load_state_dict(
            {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in weights.items()}
        )
        products = np.zeros((x.shape[0], x.shape[0]))  # of the standardised cells with each other
        for z in _blocks(x, weights):
            products += z @ z.T
        # The bias is fitted as the weight of one more gene: a mean over all cells would not leave out any of them.
        of_bias = float(products.diagonal().mean())
        alpha, left_out = _ridge(products + of_bias, wanted - network.scored(x, None).scores)
        weights["weight"] = weights["weight"] + np.concatenate(
            [z.T @ alpha for z in _blocks(x, weights)]
        )
        weights["bias"] = weights["bias"] + of_bias * alpha.sum(axis=0)
        scale, metrics, held_out = evidence_of(wanted - left_out, x, stored.labels, seed)
        network_config = {"name": STANDARDISED, "clip": CLIP, "scale": scale}
        return adapted_model(
            saved,
            coverage,
            x,
            metrics.known_accuracy,
            config=replace(saved.config, network=network_config, own_totals=True),
            metrics=metrics,
            weights={f"model.{name}": array for name, array in weights.items()},
            held_out=held_out,
        )


def _starting_weights(
    saved: SavedModel, x: csr_matrix, measured: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the weights of the model, from which the fit starts, standardised on its kept cells where these vary."""
    mean = np.asarray(x.mean(axis=0), dtype=np.float64).ravel()
    squares = np.asarray(x.multiply(x).mean(axis=0), dtype=np.float64).ravel()
    deviation = np.sqrt(np.maximum(squares - mean**2, 0))
    varies = deviation > 1e-6
    # a network of another kind has no weight for each gene
    if "model.deviation" not in saved.weights:
        nothing = {
            "weight": np.zeros((x.shape[1], len(saved.labels))),
            "bias": np.zeros(len(saved.labels)),
        }
        return nothing | {"mean": mean, "deviation": np.where(varies, deviation, 1.0)}
    return {
        "weight": saved.weights["model.weight"][measured].astype(np.float64),
        "bias": saved.weights["model.bias"].astype(np.float64),
        "mean": np.where(varies, mean, saved.weights["model.mean"][measured]),
        "deviation": np.where(varies, deviation, saved.weights["model.deviation"][measured]),
    }


def _blocks(x: csr_matrix, weights: dict[str, np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the standardised expression of blocks of genes, dense."""
    columns = x.tocsc()
    for start in range(0, x.shape[1], BLOCK_GENES):
        genes = slice(start, min(start + BLOCK_GENES, x.shape[1]))
        z = (columns[:, genes].toarray() - weights["mean"][genes]) / weights["deviation"][genes]
        yield np.minimum(z, CLIP)


def _ridge(products: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit a ridge regression from inner products of cells; return the factors of the cells, and left-out errors, N x C.

    The penalty has the smallest sum of squared errors, each of a cell by a fit without it: the factor of the cell
    divided by the diagonal of the inverse (Allen 1974, Technometrics 16:125).
    """
    values, vectors = np.linalg.eigh(products)
    values = np.maximum(values, 0)
    turned = vectors.T @ wanted
    fits = []
    for penalty in PENALTIES * max(float(values.mean()), 1e-12):
        inverse = 1 / (values + penalty)
        alpha = vectors @ (inverse[:, None] * turned)
        fits.append((alpha, alpha / ((vectors**2) @ inverse)[:, None]))
    return min(fits, key=lambda fit: float((fit[1] ** 2).sum()))
