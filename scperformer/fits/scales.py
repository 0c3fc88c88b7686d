"""The scales of the logits of the branches: they have the lowest loss on held-out cells."""

import numpy as np

from scperformer.base.metrics import cell_losses, negative_log_likelihood, score

# a scale would be infinite without a limit if all held-out cells are predicted correctly
MAX_SCALE = 10.0
# By how much an encoder has to lower the loss of held-out cells, else it is left out: in all, and in standard errors,
# as attention between tokens with a smaller gain lowers the accuracy on cells of other studies.
MIN_GAIN = 1e-3  # a smaller one changes no label, but takes a third of the time of a prediction
MIN_ERRORS = 2.0  # of attention between tokens


def branch_scales(
    linear: np.ndarray, encoder: np.ndarray, labels: np.ndarray
) -> tuple[float, float]:
    """Find a and b, from 0 to `MAX_SCALE`, for which a * linear + b * encoder has the lowest loss on held-out cells.

    `linear` and `encoder` are logits, N x C, all 0 for a branch that is off. Their unscaled sum is often worse than the
    linear branch. The common size of a and b acts as a temperature (Guo et al. 2017, arXiv 1706.04599).
    """
    from scipy.optimize import minimize  # takes a while to import, and a prediction seldom needs it

    linear, encoder = (np.asarray(branch, dtype=np.float64) for branch in (linear, encoder))
    # The scales without data: 1 for the linear branch; for the encoder 1 if it is alone, else 0. The prior has the
    # weight of one cell and prevents extreme scales if there are few held-out cells.
    prior = np.array([1.0, 0.0 if linear.any() else 1.0])
    true = np.arange(len(labels)), labels

    def objective(scales: np.ndarray) -> tuple[float, np.ndarray]:
        logits = scales[0] * linear + scales[1] * encoder
        proba = np.exp(logits - logits.max(axis=1, keepdims=True))
        proba /= proba.sum(axis=1, keepdims=True)
        slopes = [
            float(((proba * branch).sum(axis=1) - branch[true]).mean())
            for branch in (linear, encoder)
        ]
        off = scales - prior
        loss = negative_log_likelihood(logits, labels) + (off**2).sum() / (2 * len(labels))
        return loss, np.array(slopes) + off / len(labels)

    best = minimize(
        objective, prior + 0.1, jac=True, method="L-BFGS-B", bounds=[(0.0, MAX_SCALE)] * 2
    ).x
    return float(best[0]), float(best[1])


def scales_if_significant(
    linear: np.ndarray, encoder: np.ndarray, labels: np.ndarray, min_errors: float = MIN_ERRORS
) -> tuple[float, float, dict[str, float] | None]:
    """Scale the branches as `branch_scales`, but leave out an encoder without a significant gain.

    The loss has to decrease by `MIN_GAIN` and by `min_errors` standard errors. The third result is the mean decrease of
    a cell's loss with its standard error; None if a branch is off.
    """
    both = branch_scales(linear, encoder, labels)
    if not linear.any() or not encoder.any():
        return *both, None
    alone, _ = branch_scales(linear, np.zeros_like(encoder), labels)
    decreases = cell_losses(alone * linear, labels) - cell_losses(
        both[0] * linear + both[1] * encoder, labels
    )
    mean = float(decreases.mean())
    error = float(decreases.std(ddof=1) / len(labels) ** 0.5) if len(labels) > 1 else 0.0
    is_significant = mean > max(MIN_GAIN, min_errors * error)
    return *(both if is_significant else (alone, 0.0)), {"mean": mean, "standard_error": error}


def branch_scale(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the scale of the logits of one branch, N x C, as in `branch_scales`."""
    return branch_scales(logits, np.zeros_like(logits), labels)[0]


def score_alone(logits: dict[str, np.ndarray], name: str, labels: np.ndarray) -> dict[str, float]:
    """Return the scores of one of the branches without the other, and its loss with the best scale of its own.

    `logits` of the branches `linear` and `encoder` are for held-out cells, N x C.
    """
    alone = {
        other: branch if other == name else np.zeros_like(branch)
        for other, branch in logits.items()
    }
    scales = dict(zip(("linear", "encoder"), branch_scales(**alone, labels=labels), strict=True))
    return scaled_score(scales[name] * logits[name], labels)


def scaled_score(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """Return the scores and the loss of scaled logits, N x C."""
    return score(labels, logits.argmax(axis=1)) | {"loss": negative_log_likelihood(logits, labels)}
