"""Constraints on probabilities: labels that can occur.

Shapes: N cells, C labels; `proba` is N x C, and each row sums to 1.
"""

from collections.abc import Sequence

import numpy as np

from scperformer.base.errors import InputError
from scperformer.base.messages import listed, shortened
from scperformer.labels.texts import spelled_as


def allowed_labels(labels: Sequence[str], allow: Sequence[str], deny: Sequence[str]) -> np.ndarray:
    """Return which labels can occur, boolean C: those in `allow` (if it is empty, all) that are not in `deny`."""
    allow = spelled_as(labels, allow)
    deny = spelled_as(labels, deny)
    for option, names in (("allow_labels", allow), ("deny_labels", deny)):
        if unknown := [name for name in names if name not in labels]:
            found = f"{option} with '{shortened(unknown[0])}'"
            expected = f"labels of the model ({listed(labels)})"
            raise InputError("unknown-label", found, expected, "write labels as the model does")
    allowed = np.array([(not allow or label in allow) and label not in deny for label in labels])
    if not allowed.any():
        found = "no label that is allowed and not denied"
        raise InputError("no-allowed-label", found, "at least one", "deny fewer labels")
    return allowed


def reweighted(proba: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return probabilities times the weight of each label, with row sums of 1; equal ones where all become 0."""
    products = proba * weights
    products = np.where(products.sum(axis=1, keepdims=True) > 0, products, weights > 0)
    return (products / products.sum(axis=1, keepdims=True)).astype(np.float32)
