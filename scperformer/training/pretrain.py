"""Pretrain an encoder on unlabelled files: it learns to predict hidden expression; written as a model folder."""

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from anndata import AnnData

from scperformer.config import PretrainConfig, make_config, quoted
from scperformer.dataset import (
    Corpus,
    Sample,
    make_corpus,
    read_genes,
    require_loadable,
    settle_in_memory,
)
from scperformer.files import beside, checksum, read_cells
from scperformer.model import ENCODER, INFO, Bundle
from scperformer.network import Cells, Encoder, gene_means, torch_state_kept
from scperformer.outputs import require_absent
from scperformer.training.masked_learner import MaskedModel, train_masked
from scperformer.training.run_folder import (
    Diverged,
    how_it_was_made,
    hush_helper,
    model_config,
    record_start,
    train_in_run_folder,
)
from scperformer.training.source import source_of_cells
from scperformer.training.start import start_attention, start_gene_vectors
from scperformer.training.transfer import adopt_options, init_hash, load_init, origin, start_from_init

log = logging.getLogger(__name__)


def new_masked_model(corpus: Corpus, train: Cells, cfg: PretrainConfig) -> MaskedModel:
    """Make the untrained network for a corpus, or start it from `init`; the same for the same seed."""
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed)
    encoder = Encoder(len(corpus.genes), cfg.tokens, cfg.model, cfg.attention, generator)
    start_gene_vectors(encoder, corpus.genes, cfg)
    start_attention(encoder, train, cfg)
    bundle = start_from_init(encoder, corpus.genes, cfg)
    network = MaskedModel(encoder, tied=cfg.masking.tied, mean_x=float(train.x.data.mean()))
    if bundle is not None:
        network.load_pretraining({name: torch.from_numpy(array) for name, array in bundle.weights.items()})
    return network


def fit(corpus: Corpus, cfg: PretrainConfig, name: str, run_folder: Path) -> Bundle | None:
    """Pretrain on a corpus; checkpoints and logs go into the run folder.

    Parameters
    ----------
    name
        Of the encoder.

    Returns
    -------
    The encoder as a model without labels; None in the helping processes of a distributed run.
    """
    begin = time.perf_counter()
    # The loader gives a label with every cell: here it is the cell's file, for data.balance.
    files = corpus.file_of_cell
    rows = corpus.split
    cells, val = source_of_cells(corpus.x, files, rows, stream=corpus.stream, tokens=cfg.tokens)
    train = cells.sample
    network = new_masked_model(corpus, train, cfg)
    network.encoder.require_length(int(max(train.lengths.max(), val.lengths.max())))
    in_files = all(file["sha256"] for file in corpus.files)
    provenance = {
        "corpus": corpus.files,
        "num_cells": corpus.num_cells,
        **origin(cfg, corpus.genes),
        **how_it_was_made(cfg, [file["name"] for file in corpus.files] if in_files else []),
    }
    record_start(run_folder, cfg, provenance)
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
        raise Diverged("loss", cfg)
    log.info("best epoch %d: validation loss %.4f, naive guess %.4f", found.best_epoch, found.loss, found.naive_loss)
    if found.loss >= found.naive_loss:
        log.warning(
            "the encoder predicts no better than the naive guess: train on more epochs or cells, or set optim.lr"
        )
    return Bundle(
        name=name,
        kind=ENCODER,
        genes=corpus.genes,
        gene_means=gene_means(corpus.x),
        labels=[],
        ontology_term_ids=[],
        config=model_config(cfg, ("tokens", "model", "attention", "masking")),
        metrics={"num_val_cells": len(val), **asdict(found), "seconds": round(time.perf_counter() - begin, 1)},
        provenance=provenance,
        weights={name: tensor.cpu().numpy() for name, tensor in network.weights().items()},
    )


@torch_state_kept()  # other libraries change the number of threads, too, when they are imported
def _pretrain(cells: Sequence[AnnData] | Sequence[Path], cfg: PretrainConfig, output: Path) -> Path:
    """Go the whole way from a corpus, in memory or in files, to a model folder."""
    hush_helper(cfg)
    paths = [path for path in cells if isinstance(path, Path)]
    if paths:
        cfg = settle_in_memory(cfg, paths)
    else:
        require_loadable(cfg)
    require_absent(output, cfg.overwrite, marker=INFO)
    cfg = adopt_options(cfg)
    vocabulary = None if cfg.genes_path is None else read_genes(cfg.genes_path)
    if cfg.init is not None:
        vocabulary = load_init(cfg.init).genes
    samples = [
        Sample(read_cells(item, cfg.orientation), item, checksum(item))
        if isinstance(item, Path)
        else Sample(item, Path(f"AnnData {number} in memory"), "")
        for number, item in enumerate(cells if cfg.data.in_memory is not False else (), start=1)
    ]
    corpus = make_corpus(samples or paths, cfg, vocabulary)
    text = " ".join([*(file["sha256"] for file in corpus.files), init_hash(cfg), *corpus.genes])
    name, data = output.name.removesuffix(".encoder"), hashlib.sha256(text.encode()).hexdigest()
    train_in_run_folder(cfg, output, data, lambda folder: fit(corpus, cfg, name, folder))
    return output


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
    cfg = make_config("pretrain", ["inputs=[adata]", f"output={quoted(str(output))}", *overrides])
    return _pretrain([adatas] if isinstance(adatas, AnnData) else list(adatas), cfg, Path(output))


def run_pretrain(cfg: PretrainConfig) -> Path:
    """Pretrain an encoder on the files `cfg.inputs`; write the model folder and return its path.

    Raises
    ------
    InputError
        A file or its expression cannot be used, or the output exists.
    """
    paths = [Path(name) for name in cfg.inputs]
    return _pretrain(paths, cfg, Path(cfg.output) if cfg.output else beside(paths[0], ".encoder"))
