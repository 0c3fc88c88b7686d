"""The contribution of each gene to a logit: exact for the linear branch, integrated gradients for the encoder.

docs/explain.md describes them: the contributions and a bias add up to the logit. The contribution of a gene to the
encoder is the product of its change on a path and the mean gradient of the logit (Sundararajan et al. 2017, arXiv
1703.01365, equation 1). The path cannot scale down the expression: the network scales each cell to the same length, so
the logits would not change. With `head=weighted`, the weights of the vectors are constant on the path.

Shape letters: B cells, L tokens, D model width, C labels, V views of the expression, G genes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn.functional import pad

from scperformer.attention.tokens import Batch
from scperformer.base.errors import InputError
from scperformer.base.progress import progress
from scperformer.model.imported import ImportedNetwork
from scperformer.model.inference import fast_cpu, predicting, seeing_genes_of, torch_state_kept
from scperformer.model.minibatches import Cells, prediction_batches
from scperformer.model.network import CellTypeModel, Head
from scperformer.model.performer import Performer, expression_weights

# Largest error of the sum of the encoder's contributions, relative to the change of its logit (or to 1, if smaller).
SUM_TOLERANCE = 0.01
MIN_STEPS = 32  # steps of the path
# steps are doubled up to this number for cells whose sum is not within the tolerance
MAX_STEPS = 1024
BATCH_CELLS = 64
BATCH_TOKENS = 2**14  # a gradient keeps the activations of all layers in memory
# maps points, and the numbers of their cells, to one logit per cell
Logits = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Contributions:
    """The contributions to the logit of one label per cell, for N cells and G genes."""

    genes: csr_matrix  # float32 N x G, with an entry for each gene that a cell expresses
    bias: np.ndarray  # float64 N, the rest of the logits, which no expressed gene adds
    logits: np.ndarray  # float64 N, logits of the model
    # float32 N x G, with the same entries and a sum of 1; None unless cells read genes
    attention: csr_matrix | None

    @property
    def errors(self) -> np.ndarray:
        """Contributions plus bias minus logit of each cell; float64 N."""
        return (
            np.asarray(self.genes.sum(axis=1, dtype=np.float64)).ravel() + self.bias - self.logits
        )


def find_contributions(
    network: CellTypeModel | ImportedNetwork, cells: Cells, labels: np.ndarray
) -> Contributions:
    """Find the contribution of each gene to the logit of one label per cell; `labels` are indices, int64 N."""
    if isinstance(network, ImportedNetwork):
        try:
            values, rest = network.contributions(cells.x, cells.measured, labels)
        except ValueError as error:
            remedy = "explain an annotation by a model of scperformer or CellTypist"
            found = f"an imported model with {error}"
            raise InputError(
                "no-contributions", found, "scores that are sums over genes", remedy
            ) from error
        exact = csr_matrix(
            (values.astype(np.float32), cells.x.indices, cells.x.indptr), shape=cells.x.shape
        )
        scores = network.scored(cells.x, cells.measured).scores
        return Contributions(exact, rest, scores[np.arange(len(labels)), labels], None)
    indptr = cells.x.indptr
    contributions = np.zeros(cells.x.nnz, dtype=np.float32)
    performer = (
        network.performer
        if network.performer is not None and network.performer.mechanisms
        else None
    )
    attention = None if performer is None else np.zeros(cells.x.nnz, dtype=np.float32)
    bias = np.zeros(len(cells))
    logits = np.zeros(len(cells))
    with (
        torch_state_kept(threads=1),
        predicting(network),
        fast_cpu("cpu"),
        seeing_genes_of(network, cells),
        progress("genes behind the calls", total=len(cells), unit="cells") as shown,
    ):
        for rows, length in prediction_batches(cells.lengths, BATCH_CELLS, BATCH_TOKENS):
            batch = cells.batch(rows, length)
            labels_B = torch.from_numpy(labels[rows])
            sum_BL = torch.zeros_like(batch.x_BL)
            # the views of the expression times their weights, summed over the views
            if network.linear is not None:
                with torch.no_grad():
                    w_BLVC = network.linear.weight(batch.genes_BL).unflatten(
                        -1, (len(network.linear.powers), -1)
                    )
                    w_BLV = w_BLVC[torch.arange(len(labels_B)), :, :, labels_B]
                    sum_BL += (network.linear.power_transforms(batch) * w_BLV).sum(-1)
                bias[rows] += network.linear.bias[labels_B].detach().numpy()
            if network.encoder is not None:
                encoder_BL, bias_B = encoder_contributions(
                    network, batch, labels_B, cells.tokens.unexpressed != "skip"
                )
                sum_BL += encoder_BL
                bias[rows] += bias_B.numpy()
            with torch.no_grad():
                logits[rows] = _chosen(network(batch)[0], labels_B).numpy()
            places = np.concatenate([np.arange(indptr[row], indptr[row + 1]) for row in rows])
            contributions[places] = sum_BL[batch.x_BL > 0].numpy()
            if performer is not None and attention is not None:
                weights_BL = pad(performer.gene_weights(batch), (0, 1)).gather(1, batch.genes_BL)
                attention[places] = weights_BL[batch.x_BL > 0].numpy()
            shown.update(len(rows))
    genes, weights = (
        None
        if values is None
        else csr_matrix((values, cells.x.indices, indptr), shape=cells.x.shape)
        for values in (contributions, attention)
    )
    return Contributions(genes, bias, logits, weights)


def encoder_contributions(
    network: CellTypeModel, batch: Batch, labels_B: Tensor, sees_all: bool
) -> tuple[Tensor, Tensor]:
    """Return the contributions of tokens to the encoder's logit, B x L, and its logit at the start of the path, B."""
    encoder = network.encoder
    pool = network.pool
    head = network.head
    if isinstance(encoder, Performer):
        return performer_contributions(encoder, head, batch, labels_B)
    assert encoder is not None
    assert pool is not None
    with torch.no_grad():
        stop = encoder.embedding(batch)
        unexpressed = replace(batch, values_BL=torch.zeros_like(batch.values_BL))
        start_BLD = encoder.embedding(unexpressed) if sees_all else torch.zeros_like(stop)
        start = torch.where((batch.x_BL > 0).unsqueeze(-1), start_BLD, stop)

    def logits(points: Tensor, rows: Tensor) -> Tensor:
        part = Batch(*(tensor[rows] for tensor in batch.tensors))
        return _chosen(head(pool(encoder.encode(points, part), part))[0], labels_B[rows])

    gradient, bias_B = mean_gradient(logits, start, stop)
    return ((stop - start) * gradient).sum(-1), bias_B


def performer_contributions(
    performer: Performer, head: Head, batch: Batch, labels_B: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the contributions of tokens to the logit of a Performer, B x L, and the rest of the logit, B.

    The sums over the genes of a cell are linear in its expression, so they follow the path of its expression. With
    attention, it starts at the mean cell of the training; its part in the change is in the rest.
    """
    with torch.no_grad():
        stop_BX = performer.sums(batch)
        start_BX = performer.reader.mean_X.expand_as(stop_BX)
        if not performer.mechanisms:
            start_BX = torch.zeros_like(stop_BX)

    def logits(points_BX: Tensor, rows: Tensor) -> Tensor:
        return _chosen(head(performer.from_sums(points_BX))[0], labels_B[rows])

    gradient_BX, bias_B = mean_gradient(logits, start_BX, stop_BX)
    with torch.no_grad():
        contributions_BG = performer.table_product(gradient_BX)
        of_tokens_BL = pad(contributions_BG, (0, 1)).gather(1, batch.genes_BL) * expression_weights(
            batch
        )
    return of_tokens_BL, bias_B - (start_BX * gradient_BX).sum(1)


def mean_gradient(logits: Logits, start_BX: Tensor, stop_BX: Tensor) -> tuple[Tensor, Tensor]:
    """Return each cell's gradient, averaged over the line from `start_BX` to `stop_BX`, and its logit at the start, B.

    The mean is a Gauss-Legendre quadrature. It is repeated with twice the steps for cells whose sum is not within the
    tolerance. (Captum's `IntegratedGradients` has one number of steps for all cells. With 32, some sums are wrong by
    5 %.)
    """
    left_B = torch.arange(len(stop_BX))  # cells that are not finished
    mean_BX = torch.zeros_like(stop_BX)
    with torch.no_grad():
        bias_B = logits(start_BX, left_B)
        change_B = logits(stop_BX, left_B) - bias_B
    num_steps = MIN_STEPS
    while len(left_B) and num_steps <= MAX_STEPS:
        nodes, weights = np.polynomial.legendre.leggauss(num_steps)
        # The cubes make steps shorter at the start, where layer norms change the logit most.
        places = ((nodes + 1) / 2) ** 3
        weights = 1.5 * weights * ((nodes + 1) / 2) ** 2
        mean_BX[left_B] = 0
        for place, weight in zip(places, weights, strict=True):
            point_BX = torch.lerp(start_BX[left_B], stop_BX[left_B], float(place)).requires_grad_()
            (gradient_BX,) = torch.autograd.grad(logits(point_BX, left_B).sum(), point_BX)
            mean_BX[left_B] += float(weight) * gradient_BX
        sum_B = ((stop_BX - start_BX) * mean_BX).flatten(1).sum(1)
        is_off_B = (sum_B - change_B).abs() > SUM_TOLERANCE * change_B.abs().clamp(min=1)
        left_B = left_B[is_off_B[left_B]]
        num_steps = 2 * num_steps
    return mean_BX, bias_B


def _chosen(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Return the logit of one label per cell, B."""
    return logits_BC.gather(1, labels_B.unsqueeze(1)).squeeze(1)
