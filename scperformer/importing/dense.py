"""Dense layers of another tool as the steps of our network `dense` (model/imported.py), and their weights."""

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

    def add(self, kind: str, **options: Any) -> None:
        """Add a step on the last value."""
        self.steps.append({"kind": kind, **options})

    def dense(self, weight: np.ndarray, bias: np.ndarray) -> None:
        """Add a product with weights, in x out, and a bias."""
        self.add("dense", width=weight.shape[1])
        self.weights[f"weight_{self.last}"] = np.ascontiguousarray(weight, dtype=np.float64)
        self.weights[f"bias_{self.last}"] = bias.astype(np.float64)

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
