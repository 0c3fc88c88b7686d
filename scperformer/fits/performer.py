"""The default encoder: gene vectors from co-expression, and a Performer that reads them for a cell.

Genes whose expression varies together over cells get similar vectors, which no label decides: a singular value
decomposition of cells x genes, in which genes are weighted by 1 / standard deviation. The layers that read the genes
and the head are trained on the sums over the genes of each cell. Several copies are trained at the same time, each on
cells of its own: one for the model, and one for each fold of the evidence.
"""

import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from scperformer.base.progress import progress
from scperformer.base.sparse import gene_deviation, inverse_deviation
from scperformer.config.training import NetworkOptions
from scperformer.fits.steps import LabelLoss, StepBatch, device_of, take_steps
from scperformer.model.bundle import EncoderFacts
from scperformer.model.linear import power_transform
from scperformer.model.minibatches import seed_of, seed_sequence
from scperformer.model.network import Head, Readout
from scperformer.model.performer import CrossAttention, Performer

log = logging.getLogger(__name__)

SPREAD = 2.0  # standard deviation of the widest number of the cells' vectors
# The tokens of an encoder whose tokens read each other, by `tokens.unexpressed`.
TOKENS = dict.fromkeys(("full", "all"), "all genes as tokens") | {
    "skip": "expressed genes as tokens"
}
TOKENS["memory"] = "expressed genes as tokens, the others as memory"


def gene_vectors(x: csr_matrix, dim: int, seed: int) -> np.ndarray:
    """Find vectors of genes, float32 G x dim, from cells CSR N x G, ln(1 + cp10k).

    The first component, which follows the number of expressed genes, is left out. If there are fewer cells or genes
    than components, the last ones are 0.
    """
    # Not `principal_axes`: with other axes of small variance, the training of the encoder takes another way.
    from sklearn.utils.extmath import randomized_svd

    v = power_transform(x, 1.0)
    weights = inverse_deviation(gene_deviation(v))
    num = min(dim + 1, *x.shape)
    _, _, components = randomized_svd(
        (v @ diags(weights)).astype(np.float32), num, n_iter=4, random_state=seed
    )
    vectors = np.zeros((x.shape[1], dim))
    vectors[:, : num - 1] = (weights * components[1:]).T
    return scaled_vectors(vectors, x)


def scaled_vectors(vectors: np.ndarray, x: csr_matrix) -> np.ndarray:
    """Scale vectors of genes, G x D, to the usual width of the cells' sums over genes."""
    z = power_transform(x, 1.0) @ vectors
    return (vectors * (SPREAD / max(z.std(axis=0).max(), 1e-6))).astype(np.float32)


def start_performer(vectors: np.ndarray, x: csr_matrix, cfg: NetworkOptions) -> Performer:
    """Make a Performer with these gene vectors, G x D, for cells like `x`, CSR N x G, ln(1 + cp10k)."""
    generator = torch.Generator().manual_seed(seed_of("performer", cfg.seed))
    torch.manual_seed(seed_of("layers of the performer", cfg.seed))
    performer = Performer(x.shape[1], cfg.tokens, cfg.model, cfg.attention, generator)
    performer.embedding.set_gene_vectors(torch.from_numpy(vectors))
    performer.start(x, generator)
    return performer


class Copies(nn.Module):
    """Copies of a readout that are trained at the same time; one product computes all of them.

    Shape letters: K copies, B cells, X sums over genes, C labels.
    """

    def __init__(
        self, performer: Performer, copies: list[Readout], labels: np.ndarray, cfg: NetworkOptions
    ):
        super().__init__()
        self.num_copies = len(copies)
        self.weight_decay = cfg.optim.weight_decay
        stacked, _ = stack_module_state(copies)  # type: ignore[arg-type]
        self.names = [
            name for name, parameter in copies[0].named_parameters() if parameter.requires_grad
        ]
        self.stacked = nn.ParameterList(nn.Parameter(stacked[name].detach()) for name in self.names)
        self.template = [copies[0]]  # in a list, so that its own parameters are not trained
        self.k_GD = nn.Buffer(performer.keys_GD.detach(), persistent=False)
        self.v_GD = nn.Buffer(performer.vectors_GD.detach(), persistent=False)
        self.loss = LabelLoss(labels, copies[0].head.labels.out_features, cfg.optim)

    def start(self, device: torch.device) -> None:
        self.template[0].to(device).train()

    def forward(self, sums_KBX: Tensor) -> Tensor:
        """Return the logits of each copy for cells of its own, K x B x C."""

        def logits(parameters: dict[str, Tensor], sums_BX: Tensor) -> Tensor:
            return functional_call(self.template[0], parameters, (sums_BX, self.k_GD, self.v_GD))

        parameters = dict(zip(self.names, self.stacked, strict=True))
        return vmap(logits, randomness="different")(parameters, sums_KBX)

    def loss_of(self, batch: StepBatch) -> Tensor:
        """Return the sum of the losses of all copies."""
        sums_KBX, labels_KB = batch
        return self.loss(self(sums_KBX).flatten(0, 1), labels_KB.flatten()) * len(sums_KBX)

    @torch.no_grad()
    def write_to(self, copies: list[Readout]) -> None:
        for number, copy in enumerate(copies):
            parameters = dict(copy.named_parameters())
            for name, stacked in zip(self.names, self.stacked, strict=True):
                parameters[name].copy_(stacked[number])
            copy.eval().cpu()


def train_readouts(
    performer: Performer,
    sums: np.ndarray,
    labels: np.ndarray,
    sides: np.ndarray,
    cfg: NetworkOptions,
    folder: Path | None = None,
) -> list[Readout]:
    """Train K readouts of the same Performer at the same time, each on the cells of its row of `sides`, boolean K x N.

    `sums` over the genes of N cells, float32 N x X, are of `Performer.sums_of`; `labels` are indices, int64 N. `folder`
    is the run folder for logs and checkpoints, if there is one.
    """
    begin = time.perf_counter()
    torch.manual_seed(seed_of("readouts", cfg.seed))
    copies = []
    for _ in sides:
        reader = CrossAttention(
            len(performer.vectors_GD), cfg.model, cfg.attention, torch.Generator()
        )
        reader.start_like(performer.reader)
        copies.append(Readout(reader, Head(reader.dim, int(labels.max()) + 1, cfg.head)))
    sums_NX = torch.from_numpy(sums)
    labels_N = torch.from_numpy(labels)
    rows_of = [np.flatnonzero(side) for side in sides]

    def batches(first: int) -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(first, cfg.trainer.max_steps):
            rng = np.random.default_rng(seed_sequence("cells of readouts", cfg.seed, step))
            rows_KB = torch.from_numpy(
                np.stack([rng.choice(rows, cfg.trainer.batch_size) for rows in rows_of])
            )
            yield sums_NX[rows_KB], labels_N[rows_KB]

    trained = Copies(performer, copies, labels, cfg)
    device = device_of(cfg.trainer)
    with progress("training the Performer", total=cfg.trainer.max_steps, unit="steps") as shown:
        if folder is None and (device.kind, device.precision) == ("cpu", "32-true"):
            take_steps(trained, batches(0), cfg, shown.update)
        else:
            from scperformer.fits.trainer import train_steps  # Lightning takes seconds to import

            train_steps(trained, batches, cfg, folder, shown.update)
    trained.cpu().write_to(copies)
    made = encoder_facts(performer, cfg)
    text = "%s: %s, trained on %s in %.0f s (%d at the same time)"
    log.info(text, made.kind, made.size, device.kind, time.perf_counter() - begin, len(copies))
    return copies


def encoder_facts(encoder: Any, cfg: NetworkOptions) -> EncoderFacts:
    """Return a trained encoder in words, for the metrics of a model.

    They are its `kind` and `size`, such as "Performer" and "12,683 gene tokens, 2 heads x 16 features, 1 layer"; the
    name of its `attention` ("none" without layers); and the `device` that trained it, such as "cpu".
    """
    mechanisms = encoder.mechanisms
    kind = "encoder"
    size = TOKENS[cfg.tokens.unexpressed]
    if isinstance(encoder, Performer):
        kind = "Performer" if mechanisms else "pooled encoder"
        size = f"{int(encoder.has_vector_G.sum()):,} gene tokens"
    if mechanisms:
        features = f" x {mechanisms[0].size} features" if mechanisms[0].size else ""
        layers = f"{cfg.model.depth} layer{'s' if cfg.model.depth > 1 else ''}"
        size += f", {mechanisms[0].sizes.num_heads} heads{features}, {layers}"
    else:
        size += ", no attention"
    attention = str(cfg.attention["name"]) if mechanisms else "none"
    return EncoderFacts(
        kind=kind, size=size, attention=attention, device=device_of(cfg.trainer).kind
    )
