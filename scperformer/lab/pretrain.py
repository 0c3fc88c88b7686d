"""Pretrain an encoder on unlabelled files: it learns to predict hidden expression; written as a model folder."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from anndata import AnnData

from scperformer.attention.encoder import Encoder
from scperformer.cells.corpus import Corpus, make_corpus
from scperformer.cells.on_disk import Sample, choose_storage
from scperformer.config.training import PretrainOptions
from scperformer.io.gene_lists import read_genes
from scperformer.io.read import checksum, read_cells
from scperformer.lab.initialise import Init, adopt_options, load_init, start_attention, start_encoder
from scperformer.lab.masked import MaskedLearner, MaskedModel, load_pretraining, train_masked
from scperformer.lab.masked_genes import MaskedGenesLearner, MaskedPerformer, new_masked_performer
from scperformer.lab.streaming import StreamedCells
from scperformer.model.batches import Cells, gene_means, row_subset
from scperformer.model.inference import torch_state_kept
from scperformer.model.saved_model import SavedModel
from scperformer.training.run_folder import Diverged, Run, training_run
from scperformer.training.train import settled
from scperformer.training.trainer import device_of

log = logging.getLogger(__name__)


def pretrain_cells(adatas: Sequence[AnnData] | None, cfg: PretrainOptions, output: Path) -> Path:
    """Pretrain on cells in memory or, without them, on the files `cfg.inputs`, and write the model folder."""
    device_of(cfg.trainer)  # refuses a missing GPU before any cell is read
    paths = [Path(name) for name in cfg.inputs] if adatas is None else []
    cfg = choose_storage(cfg, paths)
    init = load_init(cfg)
    cfg = settled(cfg) if init is None else adopt_options(cfg, init)
    init_hash = "" if init is None else init.saved.hash
    with training_run(cfg, output, paths, init_hash) as run:
        if run is not None:
            vocabulary = None if cfg.genes_path is None else read_genes(cfg.genes_path)
            if init is not None:
                vocabulary = init.saved.genes
            numbered = enumerate(adatas or [], start=1)
            samples = [Sample(cells, Path(f"AnnData {number} in memory"), "") for number, cells in numbered]
            if cfg.data.in_memory is not False:
                samples += [Sample(read_cells(path, cfg.orientation), path, checksum(path)) for path in paths]
            corpus = make_corpus(samples or paths, cfg, vocabulary)
            with torch_state_kept(cfg.trainer.threads):  # set here, as reading imports libraries that change it
                saved = pretrain_on(corpus, cfg, run, init)
            if saved is not None:
                run.write(saved)
    return output


def pretrain_on(corpus: Corpus, cfg: PretrainOptions, run: Run, init: Init | None) -> SavedModel | None:
    """Pretrain on a corpus in the run folder; None in all processes of a distributed run but the first."""
    begin = time.perf_counter()
    # The loader gives a label with every cell: here it is the cell's file.
    parts = ((row_subset(corpus.x, rows), corpus.file_of_cell[rows]) for rows in corpus.split)
    train, val = (Cells(x, cfg.tokens, files) for x, files in parts)
    cells = train if corpus.stream is None else StreamedCells(corpus.stream, cfg.tokens)
    network, num_known_genes = new_masked_model(corpus, train, cfg, init)
    network.encoder.require_length(int(max(train.lengths.max(), val.lengths.max())))
    facts = {"corpus": corpus.files, "num_cells": corpus.num_cells}
    if init is not None:
        facts["init"] = init.provenance(num_known_genes)
    files = [file["name"] for file in corpus.files] if all(file["sha256"] for file in corpus.files) else []
    recorded = run.record(cfg, facts, files)
    sizes = len(cells), len(val), len(corpus.genes), sum(parameter.numel() for parameter in network.parameters())
    text = "pretraining on %d cells, validating on %d: %d genes, %d parameters, attention %s, tokens %s"
    log.info(text, *sizes, cfg.attention["name"], cfg.tokens.name)
    learner = (MaskedGenesLearner if cfg.model.reads_genes else MaskedLearner)(network, train, cfg)
    result = train_masked(learner, cells, val, cfg, run.folder)
    if result is None:
        return None
    if not math.isfinite(result["loss"]):
        raise Diverged("loss", cfg)
    log.info("best epoch %(best_epoch)d: validation loss %(loss).4f, naive guess %(naive_loss).4f", result)
    if result["loss"] >= result["naive_loss"]:
        remedy = "train on more epochs or cells, or set optim.lr"
        log.warning("the encoder predicts no better than the naive guess: %s", remedy)
    return SavedModel(
        name=run.folder.stem.removesuffix(".encoder"),
        genes=corpus.genes,
        gene_means=gene_means(corpus.x),
        labels=[],
        ontology_term_ids=[],
        metrics={"num_val_cells": len(val), **result, "seconds": round(time.perf_counter() - begin, 1)},
        weights={name: tensor.cpu().numpy() for name, tensor in network.weights().items()},
        **recorded,
    )


def new_masked_model(
    corpus: Corpus, train: Cells, cfg: PretrainOptions, init: Init | None
) -> tuple[MaskedModel | MaskedPerformer, int]:
    """Make the network for a corpus, untrained or from `init`; also count the genes that `init` knows."""
    network: MaskedModel | MaskedPerformer
    if cfg.model.reads_genes:
        network = new_masked_performer(corpus.genes, train.x, cfg, init)
        num_known_genes = 0 if init is None else len(corpus.genes)
    else:
        torch.manual_seed(cfg.seed)
        generator = torch.Generator().manual_seed(cfg.seed)
        encoder = Encoder(len(corpus.genes), cfg.tokens, cfg.model, cfg.attention, generator)
        num_known_genes = start_encoder(encoder, corpus.genes, cfg, init)
        start_attention(encoder, train, cfg)
        network = MaskedModel(encoder, mean_x=float(train.x.data.mean()))
    if init is not None:
        load_pretraining(network, init.saved.weights)
    return network, num_known_genes
