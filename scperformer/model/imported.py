"""The network of CellTypist's models, which gives cells the scores that CellTypist gives them.

A model folder has its options in `config["network"]`. The weights are buffers, so that a folder is compared with them
as any other model is (model/load.py).

Shape letters: N cells, G genes, C labels.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.special import expit, softmax
from torch import nn

from scperformer.model.saved_model import STANDARDISED


class ImportedNetwork(nn.Module):
    """A linear model of standardised expression, as of CellTypist (Domínguez Conde et al. 2022, Science 376:eabl5197).

    z = min((x - mean) / deviation, clip), and scores = z @ weight + bias. Genes that a file lacks have z = 0; genes
    that a cell does not express have z = -mean / deviation. So the scores of a cell are the scores without expression,
    plus a sparse product with the differences of z.

    The probability of each label on its own is the sigmoid of its score. Those among all labels are the softmax of the
    scores times `scale`, which is 1 unless labelled cells have calibrated it.

    In its methods, `x` is ln(1 + counts per 10,000), CSR float32 N x G; `measured` (boolean, G) marks the genes of
    their file, None: all.
    """

    encoder = None
    linear = None
    only_sums = True  # no tokens are needed
    has_both = False
    needs_own_batch = False
    weight: torch.Tensor
    bias: torch.Tensor
    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, num_genes: int, num_labels: int, options: Mapping[str, Any]):
        """Make a network without weights; a ValueError says which option cannot be used."""
        super().__init__()
        if options.get("name") != STANDARDISED:
            raise ValueError(f"a network of the unknown kind {str(options.get('name'))[:50]!r}: update scperformer")
        self.num_labels = num_labels
        self.scale = _number(options, "scale", 1.0)
        self.clip = _number(options, "clip", math.inf)
        of_genes = {"weight": (num_genes, num_labels), "mean": (num_genes,), "deviation": (num_genes,)}
        for name, shape in (of_genes | {"bias": (num_labels,)}).items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def scored(self, x: csr_matrix, measured: np.ndarray | None) -> np.ndarray:
        """Return the scores of cells, one by one, of which the label has the largest: float64 N x C."""
        differences, start = self._differences(x, measured)
        return np.asarray(differences @ self.weight.numpy()) + start

    def contributions(self, x: csr_matrix, measured: np.ndarray | None, labels: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the contribution of each entry of `x` to the score of one label per cell, and the rest of each score.

        `labels` are indices, N.
        """
        differences, start = self._differences(x, measured)
        label_of_entry = np.repeat(labels, np.diff(x.indptr))
        return differences.data * self.weight.numpy()[x.indices, label_of_entry], start[labels]

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities of labels, which sum to 1: float32, N x C."""
        return softmax(self.scale * scores, axis=1).astype(np.float32)

    def require_length(self, num_tokens: int, where: str = "a cell") -> None:
        """Accept cells with any number of expressed genes."""

    def _differences(self, x: csr_matrix, measured: np.ndarray | None) -> tuple[csr_matrix, np.ndarray]:
        """Return the differences of z of each entry from no expression, and the scores without expression, C."""
        mean = self.mean.numpy()
        deviation = self.deviation.numpy()
        unexpressed = np.minimum(-mean / deviation, self.clip)
        values = (x.data.astype(np.float64) - mean[x.indices]) / deviation[x.indices]
        values = np.minimum(values, self.clip) - unexpressed[x.indices]
        known = slice(None) if measured is None else measured
        start = unexpressed[known] @ self.weight.numpy()[known] + self.bias.numpy()
        return csr_matrix((values, x.indices, x.indptr), shape=x.shape), start


def own_probabilities(scores: np.ndarray) -> np.ndarray:
    """Return the probability of each label on its own, the sigmoid of its score: float64, N x C."""
    return expit(scores.astype(np.float64))


def _number(options: Mapping[str, Any], name: str, default: float) -> float:
    """Return an option that is a number above 0, or its default."""
    value = options.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"a network whose {name} is not a number above 0")
    return float(value)
