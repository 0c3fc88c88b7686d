"""The encoder in its simplest form: gene vectors from co-expression, pooled with the expression as weights, and a head.

Genes whose expression varies together over cells get similar vectors, which no label decides: a singular value
decomposition of cells x genes, in which genes are weighted by 1 / standard deviation. Layers of attention can be added
to it; they start as nothing.
"""

from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags
from torch import nn
from torch.nn.functional import cross_entropy, dropout, relu

from scperformer.config import HeadConfig
from scperformer.model import power_transform
from scperformer.network import Head, seed_of

# Training of the head, by AdamW with one cycle. Small and large references need the same number of steps.
NUM_STEPS = 600
BATCH_CELLS = 128
LR = 5e-3
WEIGHT_DECAY = 0.05
SMOOTHING = 0.05  # of the labels
SPREAD = 2.0  # standard deviation of the widest number of the cells' vectors


@dataclass
class CoexpressionEncoder:
    """An encoder without layers: float32 gene vectors G x D, the mean D of the cells' sums, and the head."""

    vectors: np.ndarray
    centre: np.ndarray
    head: Head | None = None

    def cells(self, x: csr_matrix) -> np.ndarray:
        """Return the vectors of cells, float32 N x D, from ln(1 + cp10k)."""
        return np.asarray(power_transform(x, 1.0) @ self.vectors - self.centre, dtype=np.float32)


def gene_vectors(x: csr_matrix, dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Find vectors of genes, float32 G x dim, and the mean of the cells' sums, from cells CSR N x G, ln(1 + cp10k).

    The first component, which follows the number of expressed genes, is left out. If there are fewer cells or genes
    than components, the last ones are 0.
    """
    from sklearn.utils.extmath import randomized_svd

    v = power_transform(x, 1.0)
    mean = np.asarray(v.mean(axis=0)).ravel()
    deviation = np.sqrt(np.maximum(np.asarray(v.multiply(v).mean(axis=0)).ravel() - mean**2, 0))
    varying = deviation[deviation > 0]
    weights = np.where(deviation > 0, 1 / (deviation + (np.median(varying) if len(varying) else 1.0)), 0)
    num = min(dim + 1, *x.shape)
    _, _, components = randomized_svd((v @ diags(weights)).astype(np.float32), num, n_iter=4, random_state=seed)
    vectors = np.zeros((x.shape[1], dim))
    vectors[:, : num - 1] = (weights * components[1:]).T
    return scaled_vectors(vectors, x)


def scaled_vectors(vectors: np.ndarray, x: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
    """Scale vectors of genes, G x D, to the usual width of the cells' sums; also return the mean of these sums."""
    z = power_transform(x, 1.0) @ vectors
    scale = SPREAD / max(z.std(axis=0).max(), 1e-6)
    return (vectors * scale).astype(np.float32), (z * scale).mean(axis=0).astype(np.float32)


def fit_heads(
    z: np.ndarray, labels: np.ndarray, sides: np.ndarray, num_labels: int, head: HeadConfig, seed: int
) -> list[Head]:
    """Train heads at the same time on different rows of the same vectors of cells.

    Parameters
    ----------
    z
        Vectors of cells, float32 N x D.
    labels
        Index of the label of each cell, int64 N.
    sides
        Which cells each of K heads is trained on, boolean K x N.
    """
    torch.manual_seed(seed_of("pooled head", seed))
    heads = [Head(z.shape[1], num_labels, head) for _ in sides]
    z_ND = torch.from_numpy(z)
    labels_N = torch.from_numpy(labels)
    rows_of = [torch.from_numpy(np.flatnonzero(side)) for side in sides]
    # One product for all heads: K small ones would take K times as long.
    layers = [
        tuple(torch.stack([part(made)[i] for made in heads]).detach().requires_grad_() for part in (_weights, _biases))
        for i in range(len(head.hidden) + 1)
    ]
    parameters = [parameter for layer in layers for parameter in layer]
    optimizer = torch.optim.AdamW(parameters, lr=LR, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LR, NUM_STEPS)
    counts = np.bincount(labels, minlength=num_labels)
    weights_C = torch.from_numpy(np.where(counts > 0, 1 / np.sqrt(np.maximum(counts, 1)), 0)).float()
    weights_C /= weights_C.mean()
    for _ in range(NUM_STEPS):
        rows_KB = torch.stack([rows[torch.randint(0, len(rows), (BATCH_CELLS,))] for rows in rows_of])
        h_KBD = z_ND[rows_KB]
        for number, (weight_KOI, bias_KO) in enumerate(layers):
            h_KBD = torch.baddbmm(bias_KO.unsqueeze(1), h_KBD, weight_KOI.transpose(1, 2))
            if number < len(head.hidden):
                h_KBD = dropout(relu(h_KBD), head.dropout)
        targets_KB = labels_N[rows_KB]
        loss = cross_entropy(h_KBD.flatten(0, 1), targets_KB.flatten(), weights_C, label_smoothing=SMOOTHING)
        optimizer.zero_grad()
        (loss * len(heads)).backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        for number, made in enumerate(heads):
            for i, layer in enumerate(layers):
                for part, stacked in zip((_weights, _biases), layer, strict=True):
                    part(made)[i].copy_(stacked[number])
    return [made.eval() for made in heads]


def _weights(head: Head) -> list[torch.Tensor]:
    return [layer.weight for layer in [*head.hidden, head.labels] if isinstance(layer, nn.Linear)]


def _biases(head: Head) -> list[torch.Tensor]:
    return [layer.bias for layer in [*head.hidden, head.labels] if isinstance(layer, nn.Linear)]


def head_logits(head: Head, z: np.ndarray) -> np.ndarray:
    """Return the logits of cells, float32 N x C."""
    with torch.inference_mode():
        return head(torch.from_numpy(z))[0].numpy()
