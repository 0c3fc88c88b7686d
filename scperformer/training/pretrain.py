"""Pretraining on unlabelled files: from a corpus to an encoder that learned to predict hidden expression."""

import hashlib
import logging
import math
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anndata import AnnData

from scperformer.config import PretrainConfig
from scperformer.dataset import (
    Corpus,
    Sample,
    make_corpus,
    read_genes,
    require_loadable,
    settle_in_memory,
    split_cells,
    stream_corpus,
)
from scperformer.errors import InputError
from scperformer.files import beside, checksum, read_cells
from scperformer.model import ENCODER, INFO, Bundle, save_bundle
from scperformer.network import Cells, Encoder, gene_means, load_encoder, require_encoder, row_subset, torch_state_kept
from scperformer.outputs import require_absent
from scperformer.training.encoder_start import start_attention, start_gene_vectors
from scperformer.training.masked_model import MaskedModel
from scperformer.training.run_folder import (
    changed_options,
    hush_helper,
    is_helper,
    open_run,
    recorded_options,
    recorded_versions,
)
from scperformer.training.streaming import StreamedCells
from scperformer.training.transfer import adopt_options, init_hash, load_init, origin, place_new_genes

log = logging.getLogger(__name__)


def new_masked_model(corpus: Corpus, train: Cells, cfg: PretrainConfig) -> MaskedModel:
    """The untrained network for a corpus, or that of `init`; the same for the same seed."""
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    encoder = Encoder(len(corpus.genes), cfg.tokens, cfg.model, cfg.attention, generator)
    start_gene_vectors(encoder, corpus.genes, cfg)
    start_attention(encoder, train, cfg)
    if cfg.init is not None:
        bundle = load_init(cfg.init)
        known = load_encoder(encoder, bundle, corpus.genes, cfg.init)
        place_new_genes(encoder, known, len(bundle.genes), cfg.model.positions, learns=True)
    network = MaskedModel(encoder, tied=cfg.masking.tied, mean_x=float(train.x.data.mean()))
    if cfg.init is not None:
        network.load_pretraining({name: torch.from_numpy(array) for name, array in bundle.weights.items()})
    return network


def fit(corpus: Corpus, cfg: PretrainConfig, run_folder: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Pretrain on a corpus: the weights of a bundle and the losses on the validation cells.

    Returns
    -------
    Arrays by name (`model.encoder.*`, `pretraining.*`); losses, chosen epoch, seconds. None in the processes of a
    distributed run that only help.

    Raises
    ------
    InputError
        Training diverged.
    """
    from scperformer.training.masked_learner import train_masked  # Lightning takes seconds to import

    start = time.perf_counter()
    # The loader hands a label on with every cell: here it is the cell's file, which only data.balance looks at.
    split = corpus.split or split_cells(corpus.file_of_cell, cfg.data.val_fraction, cfg.seed)
    train, val = (Cells(row_subset(corpus.x, rows), cfg.tokens, corpus.file_of_cell[rows]) for rows in split)
    cells = train if corpus.stream is None else StreamedCells(corpus.stream, cfg.tokens, train)
    network = new_masked_model(corpus, train, cfg)
    network.encoder.require_length(int(max(train.lengths.max(), val.lengths.max())))
    log.info(
        "pretraining on %d cells, validating on %d: %d genes, %d parameters, attention %s, tokens %s",
        len(cells),
        len(val),
        len(corpus.genes),
        sum(p.numel() for p in network.parameters()),
        cfg.attention["name"],
        cfg.tokens.name,
    )
    found = train_masked(network, cells, val, cfg, run_folder)
    if found is None:
        return None
    if not math.isfinite(found.loss):
        shutil.rmtree(run_folder / "checkpoints")  # resume=true must not go on from here
        raise InputError(
            "pretraining that diverged (a loss that is not finite)",
            "a loss that falls",
            f"lower optim.lr (now {cfg.optim.lr:g})",
        )
    weights = {name: tensor.cpu().numpy() for name, tensor in network.weights().items()}
    seconds = round(time.perf_counter() - start, 1)
    return weights, {"num_val_cells": len(val), **asdict(found), "seconds": seconds}


def to_bundle(
    corpus: Corpus, cfg: PretrainConfig, *, name: str, fitted: tuple[dict[str, np.ndarray], dict[str, Any]]
) -> Bundle:
    """Everything that a later training and a reader need to know, in one place.

    Parameters
    ----------
    fitted
        Weights and losses, as `fit` returns them.
    """
    weights, metrics = fitted
    groups = {group: asdict(cfg)[group] for group in ("tokens", "model", "attention", "masking")}
    if cfg.model.gene2vec_path is not None:
        groups["model"]["gene2vec_path"] = Path(cfg.model.gene2vec_path).name
    provenance = {
        "corpus": corpus.files,
        "num_cells": corpus.num_cells,
        **origin(cfg, corpus.genes),
        "seed": cfg.seed,
        "command": command(cfg, corpus),
        "options": recorded_options(cfg),
        "versions": recorded_versions(),
    }
    return Bundle(
        name=name,
        kind=ENCODER,
        genes=corpus.genes,
        gene_means=gene_means(corpus.x),
        labels=[],
        ontology_term_ids=[],
        config={"target_sum": cfg.data.target_sum, **groups},
        metrics=metrics,
        provenance=provenance,
        weights=weights,
    )


def command(cfg: PretrainConfig, corpus: Corpus) -> str:
    """What pretrains such an encoder again: a line for a shell or, for cells in memory, a call in Python."""
    options = changed_options(cfg)
    if all(file["sha256"] for file in corpus.files):
        return shlex.join(["scperformer", "pretrain", *(file["name"] for file in corpus.files), *options])
    return f"scperformer.pretrain(adatas, overrides={options})"


def run_pretrain(cfg: PretrainConfig) -> Path:
    """Pretrain an encoder on the files `cfg.inputs`; writes the model folder and returns its path.

    Raises
    ------
    InputError
        A file or its expression cannot be used, or the output exists.
    """
    hush_helper(cfg)
    paths = [Path(name) for name in cfg.inputs]
    cfg = settle_in_memory(cfg, paths)
    output = Path(cfg.output) if cfg.output else beside(paths[0], ".encoder")
    require_absent(output, cfg.overwrite, marker=INFO)
    _pretrain(lambda cfg, vocabulary: load_corpus(paths, cfg, vocabulary), cfg, output)
    return output


def load_corpus(paths: Sequence[Path], cfg: PretrainConfig, vocabulary: Sequence[str] | None) -> Corpus:
    """The cells of files in memory or, as `data.in_memory` says, on disk."""
    if cfg.data.in_memory is False:
        return stream_corpus(paths, cfg, vocabulary)
    samples = (Sample(read_cells(path, cfg.orientation), path, checksum(path)) for path in paths)
    return make_corpus(samples, cfg, vocabulary)


def pretrain(adatas: AnnData | Sequence[AnnData], *, output: str | Path, overrides: Sequence[str] = ()) -> Path:
    """Pretrain an encoder on cells in memory.

    Parameters
    ----------
    adatas
        One or more, each N cells x G genes: counts or log-normalised expression in X, a layer or `.raw`.
    output
        The model folder to write.
    overrides
        Options as on the command line, such as `["tokens=scbert", "trainer.max_epochs=5"]`.

    Returns
    -------
    The path of the model folder, for `train(..., overrides=["init=..."])`.
    """
    from scperformer.config import make_config, quoted

    cfg = make_config("pretrain", ["inputs=[adata]", f"output={quoted(str(output))}", *overrides])
    hush_helper(cfg)
    require_absent(output, cfg.overwrite, marker=INFO)
    every = [adatas] if isinstance(adatas, AnnData) else list(adatas)
    named = (Sample(adata, Path(f"AnnData {number} in memory"), "") for number, adata in enumerate(every, start=1))
    require_loadable(cfg)
    _pretrain(lambda cfg, vocabulary: make_corpus(named, cfg, vocabulary), cfg, Path(output))
    return Path(output)


def _vocabulary(cfg: PretrainConfig) -> list[str] | None:
    """The genes that the encoder is to have, if the user says so."""
    if cfg.init is not None:
        return load_init(cfg.init).genes
    return None if cfg.genes_path is None else read_genes(cfg.genes_path)


@torch_state_kept()  # other libraries change the number of threads, too, when they are imported
def _pretrain(
    load: Callable[[PretrainConfig, Sequence[str] | None], Corpus], cfg: PretrainConfig, output: Path
) -> None:
    cfg = adopt_options(cfg)
    require_encoder(cfg.tokens, cfg.model, cfg.attention)
    corpus = load(cfg, _vocabulary(cfg))
    checksums = " ".join([*(file["sha256"] for file in corpus.files), init_hash(cfg), *corpus.genes])
    run_folder = open_run(cfg, output, hashlib.sha256(checksums.encode()).hexdigest())
    try:
        with torch_state_kept(cfg.trainer.threads):
            fitted = fit(corpus, cfg, run_folder)
    except InputError:  # nothing worth keeping has been written
        if not is_helper(cfg) and not (run_folder / "checkpoints").exists():
            shutil.rmtree(run_folder)
        raise
    if fitted is None:  # a helping process of a distributed run
        return
    metrics = fitted[1]
    loss, naive_loss = metrics["loss"], metrics["naive_loss"]
    log.info("best epoch %d: validation loss %.4f, naive guess %.4f", metrics["best_epoch"], loss, naive_loss)
    if loss >= naive_loss:
        log.warning(
            "nothing is learned beyond what is usual for gene and cell: more epochs or cells, or another optim.lr?"
        )
    bundle = to_bundle(corpus, cfg, name=output.name.removesuffix(".encoder"), fitted=fitted)
    save_bundle(bundle, output, overwrite=cfg.overwrite)
    shutil.rmtree(run_folder / "checkpoints", ignore_errors=True)  # the logs stay
    log.info("written: %s", output)
