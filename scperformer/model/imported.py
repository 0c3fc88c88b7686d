"""Networks of other tools, which give cells the scores that those tools give them; each kind is a class in `KINDS`.

A model folder names the kind and its options in `config["network"]`. The weights are the buffers of the class, so that
a folder is compared with them as any other model is (model/load.py).

Shape letters: N cells, G genes, C labels.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.special import expit, softmax
from torch import nn
from torch.nn.functional import layer_norm

from scperformer.base.sparse import with_values
from scperformer.model.saved_model import STANDARDISED

CELLS_PER_PRODUCT = 256  # scored at a time
MAX_STEPS = 1000  # of dense layers
MAX_WIDTH = 2**20  # numbers of a cell between layers


class Scored(NamedTuple):
    """The scores of N cells, of which the label has the largest, and their embedding."""

    scores: np.ndarray  # float64 N x C
    embedding: np.ndarray  # float64 or float32 N x D


class ImportedNetwork(nn.Module):
    """A network of another tool; a subclass has weights as buffers.

    The probabilities of labels are the softmax of the scores times `scale`, which is 1 unless labelled cells have
    calibrated it.
    """

    encoder = None
    linear = None
    only_sums = True  # no tokens are needed
    has_both = False
    needs_own_batch = False

    def __init__(self, num_genes: int, num_labels: int, options: Mapping[str, Any]):
        super().__init__()
        self.num_labels = num_labels
        self.scale = require_number(options, "scale", 1.0)

    def scored(self, x: csr_matrix, measured: np.ndarray | None) -> Scored:
        """Return the scores of cells, one by one.

        `x` is ln(1 + counts per 10,000), CSR float32 N x G; `measured` (boolean, G) marks the genes of their file,
        None: all.
        """
        raise NotImplementedError

    def contributions(
        self, x: csr_matrix, measured: np.ndarray | None, labels: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        """Return the contribution of each entry of `x` to the score of one label per cell, and the rest of each score.

        A ValueError is raised if there are no contributions that add up to the score.
        """
        raise ValueError("no contributions of genes")

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities of labels, which sum to 1: float32, N x C."""
        return softmax(self.scale * scores, axis=1).astype(np.float32)

    def require_length(self, num_tokens: int, where: str = "a cell") -> None:
        """Accept cells with any number of expressed genes."""


class StandardisedLinear(ImportedNetwork):
    """A linear model of standardised expression, as of CellTypist (Domínguez Conde et al. 2022, Science 376:eabl5197).

    z = min((x - mean) / deviation, clip), and scores = z @ weight + bias. Genes that a file lacks have z = 0; genes
    that a cell does not express have z = -mean / deviation. So the scores of a cell are the scores without expression,
    plus a sparse product with the differences of z. The probability of each label is the sigmoid of its score.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    mean: torch.Tensor
    deviation: torch.Tensor

    def __init__(self, num_genes: int, num_labels: int, options: Mapping[str, Any]):
        super().__init__(num_genes, num_labels, options)
        self.clip = require_number(options, "clip", math.inf)
        of_genes = {
            "weight": (num_genes, num_labels),
            "mean": (num_genes,),
            "deviation": (num_genes,),
        }
        for name, shape in (of_genes | {"bias": (num_labels,)}).items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))

    def scored(self, x: csr_matrix, measured: np.ndarray | None) -> Scored:
        differences, start = self._differences(x, measured)
        scores = np.asarray(differences @ self.weight.numpy()) + start
        return Scored(scores, scores)

    def contributions(
        self, x: csr_matrix, measured: np.ndarray | None, labels: np.ndarray
    ) -> tuple[np.ndarray, ...]:
        differences, start = self._differences(x, measured)
        label_of_entry = np.repeat(labels, np.diff(x.indptr))
        return differences.data * self.weight.numpy()[x.indices, label_of_entry], start[labels]

    def _differences(
        self, x: csr_matrix, measured: np.ndarray | None
    ) -> tuple[csr_matrix, np.ndarray]:
        """Return the differences of z of each entry from no expression, and the scores without expression, C."""
        mean = self.mean.numpy()
        deviation = self.deviation.numpy()
        unexpressed = np.minimum(-mean / deviation, self.clip)
        values = (x.data.astype(np.float64) - mean[x.indices]) / deviation[x.indices]
        values = np.minimum(values, self.clip) - unexpressed[x.indices]
        known = slice(None) if measured is None else measured
        start = unexpressed[known] @ self.weight.numpy()[known] + self.bias.numpy()
        return with_values(x, values), start


class DenseLayers(ImportedNetwork):
    """Dense layers, as of scANVI (Xu et al. 2021, Mol. Syst. Biol. 17:e9620): steps from the expression to the scores.

    Each step is computed on the result of the one before it. The `kind` of a step is

        dense        a product with weights, and a bias; `width`: the number of results
        standardise  each cell to mean 0 and variance 1 over its numbers, as a layer norm; `epsilon`
        relu         the larger of 0 and each number

    `embedding` is the number of the step, from 1, whose result is the embedding.
    """

    def __init__(self, num_genes: int, num_labels: int, options: Mapping[str, Any]):
        super().__init__(num_genes, num_labels, options)
        steps = options.get("steps")
        if not isinstance(steps, list) or not 1 <= len(steps) <= MAX_STEPS:
            raise ValueError(f"a network without a list of steps (most: {MAX_STEPS})")
        widths = [num_genes]
        for number, step in enumerate(steps, start=1):
            kind = step.get("kind") if isinstance(step, dict) else None
            if kind not in ("dense", "standardise", "relu"):
                raise ValueError(f"a network with a step of the unknown kind {str(kind)[:50]!r}")
            widths.append(widths[-1])
            if kind == "standardise":
                require_number(step, "epsilon", 1e-5)
            elif kind == "dense":
                if not _is_number(step.get("width"), MAX_WIDTH):
                    raise ValueError(
                        "a network with layers of a width that is not a whole number above 0"
                    )
                widths[-1] = step["width"]
                for name, shape in {"weight": widths[-2:], "bias": widths[-1:]}.items():
                    self.register_buffer(
                        f"{name}_{number}", torch.zeros(shape, dtype=torch.float64)
                    )
        self.steps: list[dict[str, Any]] = steps
        self.embedding: Any = options.get("embedding")
        if not _is_number(self.embedding, len(steps)):
            raise ValueError("a network whose embedding is not the result of a step")
        if widths[-1] != num_labels:
            raise ValueError(f"a network of {widths[-1]} scores for {num_labels} labels")

    @torch.no_grad()
    def scored(self, x: csr_matrix, measured: np.ndarray | None) -> Scored:
        starts = range(0, x.shape[0], CELLS_PER_PRODUCT)
        parts = [self._scored(x[start : start + CELLS_PER_PRODUCT]) for start in starts]
        return Scored(*map(np.concatenate, zip(*parts, strict=True)))

    def _scored(self, x: csr_matrix) -> Scored:
        num_cells = x.shape[0]
        # Always so many cells at a time, as the last bits of a product depend on their number.
        filled = x.astype(np.float64)
        filled.resize((CELLS_PER_PRODUCT, x.shape[1]))
        values: list[torch.Tensor] = []
        for number, step in enumerate(self.steps, start=1):
            if step["kind"] == "dense":
                weight = self.get_buffer(f"weight_{number}")
                product = (
                    values[-1] @ weight if values else torch.from_numpy(filled @ weight.numpy())
                )
                values.append(product + self.get_buffer(f"bias_{number}"))
                continue
            value = values[-1] if values else torch.from_numpy(filled.toarray())
            if step["kind"] == "standardise":
                values.append(
                    layer_norm(value, value.shape[1:], eps=require_number(step, "epsilon", 1e-5))
                )
            else:
                values.append(torch.relu(value))
        scores, embedding = (
            values[place - 1][:num_cells].numpy() for place in (len(values), self.embedding)
        )
        return Scored(scores, embedding.astype(np.float32))


def _is_number(value: Any, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


KINDS: dict[str, type[ImportedNetwork]] = {STANDARDISED: StandardisedLinear, "dense": DenseLayers}


def imported_network(
    num_genes: int, num_labels: int, described: Mapping[str, Any]
) -> ImportedNetwork:
    """Make a network without weights from `config["network"]`; a ValueError says which option cannot be used."""
    kind = described.get("name")
    if kind not in KINDS:
        raise ValueError(f"a network of the unknown kind {str(kind)[:50]!r}: update scperformer")
    return KINDS[kind](num_genes, num_labels, described)


def own_probabilities(scores: np.ndarray) -> np.ndarray:
    """Return the probability of each label on its own, the sigmoid of its score: float64, N x C."""
    return expit(scores.astype(np.float64))


def require_number(options: Mapping[str, Any], name: str, default: float) -> float:
    """Return an option that is a number above 0, or its default."""
    value = options.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"a network whose {name} is not a number above 0")
    return float(value)
