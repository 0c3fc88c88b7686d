"""Dense layers of another tool as the steps of our network `dense` (network/imported.py), and their weights."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Steps:
    """Steps and their weights; value 0 is the expression, and value i the result of step i."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The number of the last value."""
        return len(self.steps)

    def add(self, kind: str, of: Sequence[int] | None = None, **options: Any) -> int:
        """Add a step on some values, by default on the last one; return its number."""
        self.steps.append({"kind": kind, "of": [self.last] if of is None else list(of), **options})
        return self.last

    def dense(self, weight: np.ndarray, bias: np.ndarray, of: Sequence[int] | None = None) -> int:
        """Add a product with weights, in x out, and a bias."""
        number = self.add("dense", of, width=weight.shape[1])
        self.weights[f"weight_{number}"] = np.ascontiguousarray(weight, dtype=np.float64)
        self.weights[f"bias_{number}"] = bias.astype(np.float64)
        return number

    def affine(self, factor: np.ndarray, shift: np.ndarray, of: Sequence[int] | None = None) -> int:
        """Add a factor and a shift for each number."""
        number = self.add("affine", of)
        self.weights[f"factor_{number}"] = factor.astype(np.float64)
        self.weights[f"shift_{number}"] = shift.astype(np.float64)
        return number

    def network(self, scores: int, embedding: int) -> dict[str, Any]:
        """Return the description of the network, in which these values are the scores and the embedding of a cell."""
        return {"name": "dense", "steps": self.steps, "scores": scores, "embedding": embedding}


def batch_norm(
    factor: np.ndarray, shift: np.ndarray, mean: np.ndarray, variance: np.ndarray, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the factor and the shift of a trained batch norm as one factor and one shift, float64."""
    if len({array.shape for array in (factor, shift, mean, variance)}) > 1 or factor.ndim != 1:
        raise ValueError("a batch norm of shapes that do not fit")
    if not (variance >= 0).all():
        raise ValueError("a batch norm with a variance below 0")
    whole = factor / np.sqrt(variance.astype(np.float64) + epsilon)
    return whole, shift - mean * whole
