"""How much each branch of the network is to be trusted, and how sure the sum may be: two scales from held-out cells."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from scperformer.metrics import cell_losses, negative_log_likelihood

LARGEST = 10.0  # of a scale: held-out cells that are all right would drive it to infinity


def branch_scales(wide: np.ndarray, deep: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """Scales a, b from 0 to `LARGEST` that make a * wide + b * deep most likely on held-out cells.

    Each branch alone is surer than it should be, and the encoder of a small reference is often worse than the
    linear branch: their plain sum then loses to the linear branch. With b = 0 nothing of the encoder is left; the
    common size of a and b is a temperature (Guo et al. 2017, arXiv 1706.04599). The objective is convex.

    Parameters
    ----------
    wide, deep
        Logits of the two branches on held-out cells, N x C; all 0 for a branch that is off.
    labels
        True label indices, N.

    Returns
    -------
    a and b.
    """
    wide, deep = np.asarray(wide, dtype=np.float64), np.asarray(deep, dtype=np.float64)
    # Without a word from the data: the linear branch as it was fitted, the encoder only if it is alone.
    prior = np.array([1.0, 0.0 if wide.any() else 1.0])
    true = np.arange(len(labels)), labels

    def objective(scales: np.ndarray) -> tuple[float, np.ndarray]:
        logits = scales[0] * wide + scales[1] * deep
        proba = np.exp(logits - logits.max(axis=1, keepdims=True))
        proba /= proba.sum(axis=1, keepdims=True)
        slopes = [float(((proba * branch).sum(axis=1) - branch[true]).mean()) for branch in (wide, deep)]
        # A prior as heavy as one cell keeps a handful of held-out cells from saying anything extreme.
        off = scales - prior
        loss = negative_log_likelihood(logits, labels) + (off**2).sum() / (2 * len(labels))
        return loss, np.array(slopes) + off / len(labels)

    found = minimize(objective, prior + 0.1, jac=True, method="L-BFGS-B", bounds=[(0.0, LARGEST)] * 2)
    return float(found.x[0]), float(found.x[1])


@dataclass(frozen=True)
class Gain:
    """What the encoder adds to the linear branch on held-out cells: mean fall of the loss of a cell."""

    mean: float
    standard_error: float


def earned_scales(
    wide: np.ndarray, deep: np.ndarray, labels: np.ndarray, min_gain: float
) -> tuple[float, float, Gain | None]:
    """Scales of the branches, where an encoder beside a linear branch has to earn its share.

    Held-out cells are few, and of the study that the encoder was trained on: a share that they only seem to want is
    paid for with cells of other studies. So the encoder counts only if the loss falls by more than chance.

    Parameters
    ----------
    wide, deep, labels
        As for `branch_scales`.
    min_gain
        How many standard errors the fall must be above 0; at 0, `branch_scales` decides alone.

    Returns
    -------
    The scales, and the gain, which is None for a branch alone.
    """
    both = branch_scales(wide, deep, labels)
    if not wide.any() or not deep.any():
        return *both, None
    alone, _ = branch_scales(wide, np.zeros_like(deep), labels)
    falls = cell_losses(alone * wide, labels) - cell_losses(both[0] * wide + both[1] * deep, labels)
    gain = Gain(float(falls.mean()), float(falls.std(ddof=1) / len(labels) ** 0.5) if len(labels) > 1 else 0.0)
    kept = min_gain == 0 or gain.mean > min_gain * gain.standard_error
    return (*both, gain) if kept else (alone, 0.0, gain)
