"""The scale of each branch of the network, fitted to held-out cells.

`wide` is the linear branch, `deep` the encoder.
"""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from scperformer.metrics import cell_losses, negative_log_likelihood

LARGEST = 10.0  # scale: without a limit it would be infinite if all held-out cells are called correctly


def branch_scales(wide: np.ndarray, deep: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Find a and b, from 0 to `LARGEST`, for which a * wide + b * deep has the lowest loss on held-out cells.

    Each branch alone is overconfident. The encoder of a small reference is often worse than the linear branch, and so
    is the unscaled sum of both. The common size of a and b acts as a temperature (Guo et al. 2017, arXiv 1706.04599).
    The objective is convex.

    Parameters
    ----------
    wide, deep
        Logits of the two branches on held-out cells, N x C; all 0 for a branch that is off.
    labels
        True label indices, N.
    """
    wide, deep = np.asarray(wide, dtype=np.float64), np.asarray(deep, dtype=np.float64)
    # The scales without data: 1 for the linear branch; for the encoder 1 if it is alone, else 0. The prior has the
    # weight of one cell and prevents extreme scales if there are few held-out cells.
    prior = np.array([1.0, 0.0 if wide.any() else 1.0])
    true = np.arange(len(labels)), labels

    def objective(scales: np.ndarray) -> tuple[float, np.ndarray]:
        logits = scales[0] * wide + scales[1] * deep
        proba = np.exp(logits - logits.max(axis=1, keepdims=True))
        proba /= proba.sum(axis=1, keepdims=True)
        slopes = [float(((proba * branch).sum(axis=1) - branch[true]).mean()) for branch in (wide, deep)]
        off = scales - prior
        loss = negative_log_likelihood(logits, labels) + (off**2).sum() / (2 * len(labels))
        return loss, np.array(slopes) + off / len(labels)

    found = minimize(objective, prior + 0.1, jac=True, method="L-BFGS-B", bounds=[(0.0, LARGEST)] * 2)
    return float(found.x[0]), float(found.x[1])


@dataclass(frozen=True)
class Gain:
    """The mean decrease of a held-out cell's loss by adding the encoder to the linear branch."""

    mean: float
    standard_error: float


def earned_scales(
    wide: np.ndarray, deep: np.ndarray, labels: np.ndarray, min_gain: float
) -> tuple[float, float, Gain | None]:
    """Scale the branches as `branch_scales`, but leave out an encoder without a significant gain.

    The loss must decrease by more than `min_gain` standard errors; with `min_gain=0` the scales of `branch_scales` are
    used. The held-out cells are few, and from the same study as the training cells: without this rule, accuracy on
    cells of other studies is lower.

    Returns
    -------
    The scales of the linear branch and the encoder, and the gain; None if a branch is off.
    """
    both = branch_scales(wide, deep, labels)
    if not wide.any() or not deep.any():
        return *both, None
    alone, _ = branch_scales(wide, np.zeros_like(deep), labels)
    falls = cell_losses(alone * wide, labels) - cell_losses(both[0] * wide + both[1] * deep, labels)
    gain = Gain(float(falls.mean()), float(falls.std(ddof=1) / len(labels) ** 0.5) if len(labels) > 1 else 0.0)
    kept = min_gain == 0 or gain.mean > min_gain * gain.standard_error
    return (*both, gain) if kept else (alone, 0.0, gain)
