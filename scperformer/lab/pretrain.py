"""Pretraining: an encoder learns to predict hidden expression of unlabelled cells, and is written as a model folder.

The encoder predicts hidden values of tokens; a naive guess is scored beside it.

Every random choice is a function of (seed, step), and in validation of (seed, batch): a run that was cut off repeats
the lost part exactly, and all epochs are compared on the same hidden values.

Shape letters: B cells, L tokens, K hidden tokens, D model width, G genes, N bins.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anndata import AnnData
from scipy.sparse import csr_matrix
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from scperformer.attention.tokens import (
    EMBEDDING_STD,
    Batch,
    ContinuousEmbedding,
    log2_bins,
    mask_token,
)
from scperformer.base.sparse import gene_means
from scperformer.cells.collection import choose_storage, reference_cells
from scperformer.cells.corpus import Corpus, make_corpus
from scperformer.cells.opened import OpenedCells
from scperformer.config.training import PretrainOptions, TokensConfig
from scperformer.fits.steps import device_of
from scperformer.io.gene_lists import read_genes
from scperformer.lab import epochs
from scperformer.lab.encoder import Encoder
from scperformer.lab.epochs import EncoderLearner, Labelled, StreamedCells
from scperformer.lab.initialise import (
    Init,
    adopt_options,
    load_init,
    start_attention,
    start_encoder,
)
from scperformer.model.bundle import Metrics, Provenance
from scperformer.model.inference import torch_state_kept
from scperformer.model.load import ENCODER_PREFIX
from scperformer.model.minibatches import Cells, row_subset, seed_of
from scperformer.model.saved_model import SavedModel
from scperformer.training.run_folder import Diverged, RunFolder, training_run
from scperformer.training.train import settled

log = logging.getLogger(__name__)

MASK = "embedding.expression.mask_D"
PRETRAINING = "pretraining."  # prefix of weights in a model folder that only pretraining uses
HIDDEN_SHARE = 0.15  # of a cell's expressed genes, as in scBERT
MASK_SHARE = 0.9  # of the values to be predicted, those that the encoder sees as the mask
HIDDEN = -1.0  # stands for a hidden value among continuous ones, which are 0 or more


def hide_values(
    batch: Batch, tokens: TokensConfig, share: float, seed: int
) -> tuple[Batch, Tensor]:
    """Hide some values of a batch; also return bool B x L, True where the true value is to be predicted.

    A `share` of the expressed genes of each cell is chosen, at least one. Most of these are shown as the mask, and the
    others as they are (Yang et al. 2022, Methods). All devices draw the same.
    """
    candidates_BL = batch.keep_BL & (batch.x_BL > 0)
    generator = torch.Generator().manual_seed(seed)
    order_BL, kind_BL = torch.rand(2, *candidates_BL.shape, generator=generator).to(
        candidates_BL.device
    )
    wanted_B1 = (share * candidates_BL.sum(1, keepdim=True)).round().clamp_min(1)
    rank_BL = order_BL.masked_fill(~candidates_BL, float("inf")).argsort(1).argsort(1)
    chosen_BL = candidates_BL & (rank_BL < wanted_B1)
    masked_BL = chosen_BL & (kind_BL < MASK_SHARE)
    values_BL = batch.values_BL.masked_fill(
        masked_BL, HIDDEN if tokens.name == "continuous" else mask_token(tokens)
    )
    return Batch(
        batch.genes_BL, values_BL, batch.x_BL.masked_fill(masked_BL, 0.0), batch.keep_BL
    ), chosen_BL


class MaskableValues(nn.Module):
    """Embeds continuous values; hidden ones, which are below 0, become one learned vector."""

    def __init__(self, values: ContinuousEmbedding, dim: int):
        super().__init__()
        self.values = values
        self.mask_D = nn.Parameter(EMBEDDING_STD * torch.randn(dim))

    def forward(self, x_BL: Tensor) -> Tensor:
        h_BLD = self.values(x_BL.clamp_min(0))
        return torch.where((x_BL < 0).unsqueeze(-1), self.mask_D.to(h_BLD.dtype), h_BLD)


class MaskedModel(nn.Module):
    """Predicts the hidden values of tokens from the encoder's output; continuous ones start from `mean_x`."""

    def __init__(self, encoder: Encoder, *, mean_x: float = 0.0):
        super().__init__()
        self.encoder = encoder
        expression: Any = encoder.embedding.expression
        if isinstance(expression, nn.Embedding):
            self.decoder = nn.Sequential(
                nn.Linear(expression.embedding_dim, expression.num_embeddings)
            )
        else:
            dim = expression.layers[-1].out_features
            encoder.embedding.expression = MaskableValues(expression, dim)
            output = nn.Linear(dim, 1)
            nn.init.constant_(output.bias, mean_x)
            self.decoder = nn.Sequential(output, nn.Flatten(0))

    def forward(self, batch: Batch, chosen_BL: Tensor) -> Tensor:
        """Predict the chosen tokens, in the order of the batch: logits, K x N, or values, K."""
        return self.decoder(self.encoder(batch)[chosen_BL])

    def weights(self) -> dict[str, Tensor]:
        """Return all weights by their names in a model folder; the encoder's are named as in a trained model."""
        state = self.encoder.state_dict()
        mask = {"mask_D": state.pop(MASK)} if MASK in state else {}
        encoder = {
            name.replace(".expression.values.", ".expression."): tensor
            for name, tensor in state.items()
        }
        decoder = {f"decoder.{name}": tensor for name, tensor in self.decoder.state_dict().items()}
        named = {ENCODER_PREFIX: encoder, PRETRAINING: mask | decoder}
        return {
            prefix + name: tensor
            for prefix, group in named.items()
            for name, tensor in group.items()
        }


def new_masked_model(
    corpus: Corpus, train: Cells, cfg: PretrainOptions, init: Init | None
) -> tuple[MaskedModel, int]:
    """Make the network for a corpus, untrained or from `init`; also count the genes that `init` knows."""
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    encoder = Encoder(len(corpus.genes), cfg.tokens, cfg.model, cfg.attention, generator)
    num_known_genes = start_encoder(encoder, corpus.genes, cfg.model, init)
    start_attention(encoder, train, cfg)
    network = MaskedModel(encoder, mean_x=float(train.x.data.mean()))
    earlier = {} if init is None else init.saved.weights
    with torch.no_grad():
        for name, tensor in network.weights().items():
            if (
                name.startswith(PRETRAINING)
                and name in earlier
                and earlier[name].shape == tensor.shape
            ):
                tensor.copy_(torch.from_numpy(earlier[name]))
    return network, num_known_genes


def hidden_loss(predicted: Tensor, true_K: Tensor) -> Tensor:
    """Compute the mean loss of predictions of hidden values: logits of bins, K x N, or values, K; 0 if K is 0."""
    if not len(true_K):
        return predicted.sum()
    loss = cross_entropy if predicted.dim() == 2 else mse_loss
    return loss(predicted.float(), true_K)


def naive_table(x: csr_matrix, tokens: TokensConfig) -> Tensor:
    """Tabulate the values of each gene where cells x, N x G, express it: what a naive guess says of its hidden values.

    float32: mean values, G, with continuous tokens; else logarithms of the shares of bins, G x N. Genes that few cells
    express are shrunk towards all genes together, which count as one more cell.
    """
    num_genes = x.shape[1]
    if tokens.name == "continuous":
        totals = np.asarray(x.sum(axis=0), dtype=np.float64).ravel()
        mean = x.data.mean(dtype=np.float64)
        return torch.tensor(
            (totals + mean) / (np.bincount(x.indices, minlength=num_genes) + 1), dtype=torch.float32
        )
    size = mask_token(tokens) + 1
    places = x.indices.astype(np.int64) * size + log2_bins(x.data, tokens)
    counts = np.bincount(places, minlength=num_genes * size).reshape(-1, size).astype(np.float64)
    shares = (counts.sum(0) + 1) / (counts.sum() + counts.shape[1])
    return torch.tensor(
        np.log((counts + shares) / (counts.sum(1, keepdims=True) + 1)), dtype=torch.float32
    )


class MaskedLearner(EncoderLearner):
    """The network of pretraining with its loss, its optimiser and the naive guess, which is made of cells in memory."""

    network: MaskedModel
    monitor = "val_loss"
    mode = "min"
    columns = ("train_loss", "val_loss", "val_naive_loss")
    line = "training loss %(train_loss).4f, validation loss %(val_loss).4f, naive guess %(val_naive_loss).4f"

    def __init__(self, network: nn.Module, train: Cells, cfg: PretrainOptions):
        super().__init__(network, cfg)
        self.tokens = cfg.tokens
        self.naive: Tensor
        # It is computed from the cells: a checkpoint need not hold it.
        self.register_buffer("naive", naive_table(train.x, cfg.tokens), persistent=False)

    def training_step(self, batch: Labelled, batch_idx: int) -> Tensor:
        tokens = self.with_genes_dropped(batch[0])
        seed = seed_of("masked in training", self.seed, self.global_step, self.global_rank)
        hidden, chosen_BL = hide_values(tokens, self.tokens, HIDDEN_SHARE, seed)
        true_K = tokens.values_BL[chosen_BL]
        num_hidden = torch.tensor(float(len(true_K)), device=true_K.device)
        loss = hidden_loss(self.network(hidden, chosen_BL), true_K) * epochs.process_factor(
            num_hidden
        )
        loss = loss + self.network.encoder.penalty().to(loss.device)
        self.log(
            "train_loss",
            loss,
            on_step=True,
            on_epoch=True,
            batch_size=len(tokens.keep_BL),
            sync_dist=True,
        )
        return loss

    def losses(self, tokens: Batch, batch_idx: int) -> Tensor:
        """Sum over a batch of validation cells: the network's loss, the naive guess's, and the number of values."""
        seed = seed_of("masked in validation", self.seed, batch_idx)
        hidden, chosen_BL = hide_values(tokens, self.tokens, HIDDEN_SHARE, seed)
        true_K = tokens.values_BL[chosen_BL]
        ours = hidden_loss(self.network(hidden, chosen_BL), true_K)
        naive = hidden_loss(self.naive[tokens.genes_BL[chosen_BL]], true_K)
        means = torch.stack([ours, naive])
        num_hidden = torch.tensor(float(len(true_K)), device=means.device)
        return torch.cat([means * num_hidden, num_hidden[None]]).cpu().double()

    def mean_losses(self, val: Cells, batch_size: int) -> tuple[float, float]:
        """Return the loss and that of a naive guess on validation cells, anew: a run resumed after its end has none."""
        self.cpu().eval()
        batches = enumerate(epochs.validation_batches(val, batch_size))
        with torch.no_grad():
            sums = torch.stack(
                [self.losses(val.labelled_batch(rows)[0], index) for index, rows in batches]
            ).sum(0)
        return float(sums[0] / sums[2]), float(sums[1] / sums[2])

    def on_validation_epoch_start(self) -> None:
        self.sums = torch.zeros(3, dtype=torch.float64)

    def validation_step(self, batch: Labelled, batch_idx: int) -> None:
        self.sums += self.losses(batch[0], batch_idx)

    def on_validation_epoch_end(self) -> None:
        self.log(self.monitor, float(self.sums[0] / self.sums[2]), prog_bar=True)
        self.log("val_naive_loss", float(self.sums[1] / self.sums[2]))

    def configure_optimizers(self) -> Any:
        return self.scheduled(
            [{"params": self.network.parameters(), "weight_decay": self.optim.weight_decay}]
        )


def pretrain_on(
    corpus: Corpus, cfg: PretrainOptions, run: RunFolder, init: Init | None
) -> SavedModel | None:
    """Pretrain on a corpus in the run folder; None in all processes of a distributed run but the first."""
    begin = time.perf_counter()
    # The loader gives a label with every cell: here it is the cell's file.
    parts = ((row_subset(corpus.x, rows), corpus.file_of_cell[rows]) for rows in corpus.split)
    train, val = (Cells(x, cfg.tokens, files) for x, files in parts)
    cells = train if corpus.stream is None else StreamedCells(corpus.stream, cfg.tokens)
    network, num_known_genes = new_masked_model(corpus, train, cfg, init)
    network.encoder.require_length(int(max(train.lengths.max(), val.lengths.max())))
    files = [vars(file) for file in corpus.files]
    started = None if init is None else init.facts(num_known_genes)
    made, config = run.record(
        cfg, Provenance(corpus=files, num_cells=corpus.num_cells, init=started, seed=cfg.seed)
    )
    sizes = (
        len(cells),
        len(val),
        len(corpus.genes),
        sum(parameter.numel() for parameter in network.parameters()),
    )
    text = "pretraining on %d cells, validating on %d: %d genes, %d parameters, attention %s, tokens %s"
    log.info(text, *sizes, cfg.attention["name"], cfg.tokens.name)
    learner = MaskedLearner(network, train, cfg)
    epochs.run_epochs(learner, cells, val, cfg, run.folder)
    if not run.is_first:
        return None
    best_epoch = epochs.load_best(network, run.folder)
    loss, naive_loss = learner.mean_losses(val, cfg.trainer.batch_size)
    if not math.isfinite(loss):
        raise Diverged("loss", cfg.optim.lr)
    log.info("best epoch %d: validation loss %.4f, naive guess %.4f", best_epoch, loss, naive_loss)
    if loss >= naive_loss:
        remedy = "train on more epochs or cells, or set optim.lr"
        log.warning("the encoder predicts no better than the naive guess: %s", remedy)
    metrics = Metrics(
        num_val_cells=len(val), loss=loss, naive_loss=naive_loss, best_epoch=best_epoch
    )
    metrics.seconds = round(time.perf_counter() - begin, 1)
    return SavedModel(
        name=run.folder.stem.removesuffix(".encoder"),
        genes=corpus.genes,
        gene_means=gene_means(corpus.x),
        labels=[],
        ontology_term_ids=[],
        config=config,
        metrics=metrics,
        provenance=made,
        weights={name: tensor.cpu().numpy() for name, tensor in network.weights().items()},
    )


def pretrain_cells(adatas: Sequence[AnnData] | None, cfg: PretrainOptions, output: Path) -> Path:
    """Pretrain on cells in memory or, without them, on the files `cfg.inputs`, and write the model folder."""
    device_of(cfg.trainer)  # refuses a missing GPU before any cell is read
    paths = [Path(name) for name in cfg.inputs] if adatas is None else []
    cfg = choose_storage(cfg, paths)
    init = load_init(cfg.init)
    cfg = settled(cfg) if init is None else adopt_options(cfg, init)
    init_hash = "" if init is None else init.saved.hash
    with training_run(cfg, output, paths, init_hash) as run:
        if run is not None:
            vocabulary = None if cfg.genes_path is None else read_genes(cfg.genes_path)
            if init is not None:
                vocabulary = init.saved.genes
            numbered = enumerate(adatas or [], start=1)
            files = [
                OpenedCells(cells, cfg, f"AnnData {number} in memory") for number, cells in numbered
            ]
            corpus = make_corpus(files + [reference_cells(path, cfg) for path in paths], vocabulary)
            # set here, as reading imports libraries that change it
            with torch_state_kept(cfg.trainer.threads):
                saved = pretrain_on(corpus, cfg, run, init)
            if saved is not None:
                run.write(saved)
    return output
