"""Pretrain an encoder on unlabelled files: it learns to predict hidden expression; written as a model folder."""

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from anndata import AnnData

from scperformer.cells import Corpus, Sample, make_corpus, read_genes
from scperformer.config import PretrainConfig
from scperformer.files import checksum, default_output, read_cells
from scperformer.model import ENCODER, SavedModel
from scperformer.network import Cells, Encoder, gene_means
from scperformer.training.initialise import load_init, origin, start_attention, start_encoder
from scperformer.training.loaders import source_of_cells
from scperformer.training.masked import MaskedModel, train_masked
from scperformer.training.run_folder import Diverged, record_start, train_in_run_folder

log = logging.getLogger(__name__)


def new_masked_model(corpus: Corpus, train: Cells, cfg: PretrainConfig) -> MaskedModel:
    """Make the untrained network for a corpus, or start it from `init`; the same for the same seed."""
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    encoder = Encoder(len(corpus.genes), cfg.tokens, cfg.model, cfg.attention, generator)
    saved = start_encoder(encoder, corpus.genes, cfg)
    start_attention(encoder, train, cfg)
    network = MaskedModel(encoder, tied=cfg.masking.tied, mean_x=float(train.x.data.mean()))
    if saved is not None:
        network.load_pretraining({name: torch.from_numpy(array) for name, array in saved.weights.items()})
    return network


def fit(corpus: Corpus, cfg: PretrainConfig, run_folder: Path) -> SavedModel | None:
    """Pretrain on a corpus in the run folder; None in all processes of a distributed run but the first."""
    begin = time.perf_counter()
    # The loader gives a label with every cell: here it is the cell's file, for data.balance.
    cells, val = source_of_cells(corpus, corpus.file_of_cell, corpus.split, cfg.tokens)
    train = cells.sample
    network = new_masked_model(corpus, train, cfg)
    network.encoder.require_length(int(max(train.lengths.max(), val.lengths.max())))
    data = {"corpus": corpus.files, "num_cells": corpus.num_cells, **origin(cfg, corpus.genes)}
    files = [file["name"] for file in corpus.files] if all(file["sha256"] for file in corpus.files) else []
    recorded = record_start(run_folder, cfg, data, files)
    sizes = len(cells), len(val), len(corpus.genes), sum(p.numel() for p in network.parameters())
    text = "pretraining on %d cells, validating on %d: %d genes, %d parameters, attention %s, tokens %s"
    log.info(text, *sizes, cfg.attention["name"], cfg.tokens.name)
    found = train_masked(network, cells, val, cfg, run_folder)
    if found is None:
        return None
    if not math.isfinite(found["loss"]):
        raise Diverged("loss", cfg)
    log.info("best epoch %(best_epoch)d: validation loss %(loss).4f, naive guess %(naive_loss).4f", found)
    if found["loss"] >= found["naive_loss"]:
        remedy = "train on more epochs or cells, or set optim.lr"
        log.warning("the encoder predicts no better than the naive guess: %s", remedy)
    return SavedModel(
        name=run_folder.stem.removesuffix(".encoder"),
        kind=ENCODER,
        genes=corpus.genes,
        gene_means=gene_means(corpus.x),
        labels=[],
        ontology_term_ids=[],
        metrics={"num_val_cells": len(val), **found, "seconds": round(time.perf_counter() - begin, 1)},
        weights={name: tensor.cpu().numpy() for name, tensor in network.weights().items()},
        **recorded,
    )


def pretrain_cells(adatas: Sequence[AnnData] | None, cfg: PretrainConfig, output: Path) -> Path:
    """Pretrain on cells in memory or, without them, on the files `cfg.inputs`, and write the model folder."""
    paths = [Path(name) for name in cfg.inputs] if adatas is None else []

    def load(cfg: PretrainConfig) -> tuple[Corpus, str]:
        vocabulary = None if cfg.genes_path is None else read_genes(cfg.genes_path)
        if cfg.init is not None:
            vocabulary = load_init(cfg.init).genes
        given = enumerate(adatas or [], start=1)
        samples = [Sample(cells, Path(f"AnnData {number} in memory"), "") for number, cells in given]
        if cfg.data.in_memory is not False:
            samples += [Sample(read_cells(path, cfg.orientation), path, checksum(path)) for path in paths]
        corpus = make_corpus(samples or paths, cfg, vocabulary)
        text = " ".join([*(file["sha256"] for file in corpus.files), *corpus.genes])
        return corpus, hashlib.sha256(text.encode()).hexdigest()

    return train_in_run_folder(cfg, paths, output, load, fit)


def run_pretrain(cfg: PretrainConfig) -> Path:
    """Pretrain an encoder on the files `cfg.inputs`; write the model folder and return its path."""
    return pretrain_cells(
        None, cfg, Path(cfg.output) if cfg.output else default_output(Path(cfg.inputs[0]), ".encoder")
    )
