"""Train on a reference of several studies: a model of each, whose calls of the others' cells show what to expect.

Cells of different studies are not put together: a fit to the genes that all of them share loses genes, and takes the
differences between studies for differences between their labels (benchmarks/studies.py).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import in_percent, listed, shortened
from scperformer.base.metrics import negative_log_likelihood, score
from scperformer.base.progress import progress
from scperformer.base.sparse import undo_log
from scperformer.cells.collection import choose_storage, reference_cells
from scperformer.cells.opened import OpenedCells
from scperformer.cells.profiles import reference_of
from scperformer.cells.reference import Reference, make_reference
from scperformer.cells.reference_labels import read_batches
from scperformer.cells.repeats import are_among, cell_hashes
from scperformer.cells.splits import stratified_sample
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.options import AUTO
from scperformer.config.training import TrainOptions
from scperformer.fits.scales import branch_scale
from scperformer.fits.steps import device_of
from scperformer.io.gene_matching import GeneMap
from scperformer.io.gene_overlap import map_genes_of_files
from scperformer.io.read import read_cells
from scperformer.labels.joining import MAP, JointLabels, StudyLabels, join_labels
from scperformer.labels.ontology import read_pairs
from scperformer.model.arrays import HeldOut
from scperformer.model.bundle import (
    BatchNames,
    BatchScores,
    Metrics,
    NetworkConfig,
    OutOfFold,
    Provenance,
    Values,
)
from scperformer.model.inference import torch_state_kept
from scperformer.model.saved_model import SavedModel, Study
from scperformer.training.run_folder import RunFolder, training_run
from scperformer.training.train import settled, source_of, train_on
from scperformer.trust.confidence import calibration

log = logging.getLogger(__name__)

# Calls opened cells by the models of several studies: probabilities of the joint labels, N x C, and novelty scores, N.
JointCalls = Callable[[SavedModel, OpenedCells, AnnotationOptions], tuple[np.ndarray, np.ndarray]]

CALLED_CELLS = 1000  # of each study, called by the models of the others
MIN_TEMPERATURE = 0.5
MAX_TEMPERATURE = 3.0
TINY = 1e-12  # in place of a probability of 0


def trains_studies(cfg: TrainOptions, num_files: int) -> bool:
    """Whether several studies are trained, as by default of several files; attention between tokens takes all cells."""
    is_fitted = not cfg.model.encoder or cfg.model.uses_cross_attention
    if cfg.studies != "true":
        return cfg.studies == AUTO and num_files > 1 and is_fitted
    if not is_fitted:
        found = "studies=true with attention between tokens"
        expected = "model=performer or pooled, or experiment=linear"
        raise InputError("studies-encoder", found, expected, "choose one, or leave studies out")
    if num_files < 2 and cfg.batch_key is None:
        expected = "batch_key=... of the studies in it"
        raise InputError(
            "studies-one-file", "studies=true with one file", expected, "name the column"
        )
    return True


def train_studies(
    cells: ad.AnnData | None, cfg: TrainOptions, output: Path, call: JointCalls
) -> Path:
    """Train a model of each study, and write them as one; studies are the files, or the batches of a single one.

    `call` calls the cells of a study by the models of the others.
    """
    if cfg.init is not None:
        raise InputError(
            "studies-init", "init with several studies", "one study", "train from init on one file"
        )
    cfg = settled(cfg)
    if cfg.model.encoder:
        device_of(cfg.trainer)  # refuses a missing GPU before any cell is read
    paths = [Path(name) for name in cfg.inputs] if cells is None else []
    with training_run(cfg, output, paths) as run:
        if run is not None and run.is_first:  # branches are fitted by one process
            parts = _train_each(_studies(cells, paths, cfg), cfg, run, paths)
            run.write(_with_evidence(*parts, cfg, call))
    return output


def _train_each(
    studies: dict[str, Path | ad.AnnData], cfg: TrainOptions, run: RunFolder, paths: Sequence[Path]
) -> tuple[SavedModel, Sequence[Reference], Sequence[np.ndarray]]:
    """Train a model of each study in a folder of its own, and join them; also return their cells, and repeated ones."""
    has_files = all(isinstance(cells, Path) for cells in studies.values())
    own = replace(cfg, label_map=None, batch_key=cfg.batch_key if has_files else None)
    names = list(studies)
    options = [replace(own, inputs=[name]) for name in names]
    mapped = [] if cfg.label_map is None else [label for label, _ in read_pairs(cfg.label_map, MAP)]
    references = []
    for cells, each in zip(studies.values(), options, strict=True):
        if isinstance(cells, Path):  # a large file stays on disk
            opened = reference_cells(cells, choose_storage(each, [cells]))
            references.append(reference_of([opened], distinct=mapped))
        else:
            references.append(make_reference([OpenedCells(cells, each, each.inputs[0])], mapped))
    parts = zip(names, references, strict=True)
    labels = [
        StudyLabels(name, reference.label_names, reference.terms.ids) for name, reference in parts
    ]
    joint = join_labels(labels, cfg.ontology, cfg.label_map)
    log.info("%d labels of %d studies: %s", len(joint.labels), len(studies), listed(joint.labels))
    genes, maps = map_genes_of_files(
        [pd.DataFrame(index=each.genes) for each in references], names, None, cfg.species
    )
    repeats = _repeats(names, references, maps)
    trained = []
    shown = progress("training a model of each study", total=len(studies), unit="studies")
    with torch_state_kept(cfg.trainer.threads), shown as bar:
        for number, (name, cells) in enumerate(studies.items()):
            reference = references[number]
            log.info(
                "study %s: %d cells, %d labels",
                name,
                reference.x.shape[0],
                len(reference.label_names),
            )
            source = source_of([cells] if isinstance(cells, Path) else []) | {"reference": name}
            saved = train_on(reference, options[number], run.part(f"study{number + 1}"), source)
            assert saved is not None
            trained.append(Study(name, replace(saved, name=name), joint.meanings[number]))
            bar.update()
    return _joined(trained, joint, genes, cfg, run, paths), references, repeats


def _studies(
    cells: ad.AnnData | None, paths: Sequence[Path], cfg: TrainOptions
) -> dict[str, Path | ad.AnnData]:
    """Return the studies by their names: the files, or the batches of a single file or of cells in memory."""
    if len(paths) > 1:
        names = [path.name for path in paths]
        return {path.name if names.count(path.name) == 1 else str(path): path for path in paths}
    if cells is None:
        cells = read_cells(paths[0], cfg.orientation)
    place = paths[0] if paths else "AnnData in memory"
    names, batches = read_batches(cells.obs, np.zeros(cells.n_obs, dtype=int), cfg.batch_key, place)
    return {name: cells[batches == number].copy() for number, name in enumerate(names)}


def _repeats(
    names: Sequence[str], references: Sequence[Reference], maps: Sequence[GeneMap]
) -> list[np.ndarray]:
    """Return which cells of each study are also in another one, by shared genes: boolean N; refuse only such cells."""
    repeats = [np.zeros(len(reference.labels), dtype=bool) for reference in references]
    texts: dict[tuple[int, int], str] = {}  # what each pair of studies shares
    for pair in combinations(range(len(references)), 2):
        targets = [maps[number].target for number in pair]
        shared, *columns = np.intersect1d(targets[0], targets[1], return_indices=True)
        one, other = (
            cell_hashes(undo_log(references[number].x[:, genes[shared >= 0]]))
            for number, genes in zip(pair, columns, strict=True)
        )
        in_other = are_among(one, other)
        repeats[pair[0]] |= in_other
        repeats[pair[1]] |= are_among(other, one)
        if in_other.any():
            rows = int(in_other.argmax()), int((other == one[in_other.argmax()]).argmax())
            examples = [
                shortened(references[number].cell_names[row])
                for number, row in zip(pair, rows, strict=True)
            ]
            text = f"{in_other.sum()} cells of {names[pair[0]]} ({in_percent(in_other.mean())})"
            texts[pair] = (
                f"{text} are also in {names[pair[1]]}, such as '{examples[0]}', there '{examples[1]}'"
            )
    for number, is_repeat in enumerate(repeats):
        if is_repeat.all():
            found = next(text for pair, text in texts.items() if number in pair)
            expected = f"cells of {names[number]} alone"
            raise InputError(
                "studies-same-cells", found, expected, "leave one of the two files out"
            )
    for text in texts.values():
        log.warning("%s: these do not count for the accuracy of each study by the others", text)
    return repeats


def _joined(
    parts: list[Study],
    joint: JointLabels,
    genes: list[str],
    cfg: TrainOptions,
    run: RunFolder,
    paths: Sequence[Path],
) -> SavedModel:
    """Return the model of all studies, without evidence."""
    means = (
        pd.concat([pd.Series(study.saved.gene_means, study.saved.genes) for study in parts])
        .groupby(level=0)
        .max()
    )
    cells_per_label = dict.fromkeys(joint.labels, 0)
    for study in parts:
        counts = study.saved.provenance.cells_per_label or {}
        for label, meaning in zip(study.saved.labels, study.meaning, strict=True):
            if meaning.sum() == 1:  # cells of a coarse label are of one of several
                cells_per_label[joint.labels[int(meaning.argmax())]] += counts[label]
    names = [study.name for study in parts]
    facts = Provenance(
        reference=", ".join(names),
        reference_sha256=source_of(paths)["reference_sha256"],
        label_key=cfg.label_key or "",
        called=any(study.saved.provenance.called for study in parts) or None,
        named=sorted({label for study in parts for label in study.saved.provenance.named or ()})
        or None,
        num_cells=sum(study.saved.provenance.num_cells for study in parts),
        cells_per_label=cells_per_label,
        batches=BatchNames(key=cfg.batch_key or "file", names=names),
        tissue=cfg.tissue,
        seed=cfg.seed,
    )
    return SavedModel(
        name=run.folder.name.removesuffix(".run").removesuffix(".model"),
        genes=genes,
        gene_means=means.reindex(genes).fillna(0).to_numpy(np.float32),
        labels=joint.labels,
        ontology_term_ids=joint.terms,
        tree=joint.tree,
        config=NetworkConfig(target_sum=cfg.data.target_sum),
        metrics=Metrics(scales={}, best_epoch=0),
        provenance=run.record(cfg, facts)[0],
        weights={},
        studies=parts,
    )


def _call_by_others(
    whole: SavedModel,
    number: int,
    reference: Reference,
    is_repeat: np.ndarray,
    cfg: TrainOptions,
    call: JointCalls,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Call cells of a study that no other study has by the models of the others, weighted as for any file.

    Return of N cells with labels that the others know: probabilities of the joint labels, N x C; the most probable of
    the right ones, int64 N; novelty scores, N.
    """
    study = whole.studies[number]
    others = [other for place, other in enumerate(whole.studies) if place != number]
    known = np.logical_or.reduce([other.meaning.any(axis=0) for other in others])
    meanings = np.concatenate([other.meaning for other in others])  # rows are labels of the others
    # C x C: whether all other studies have one label for a pair of joint labels
    same = (meanings[:, :, None] == meanings[:, None, :]).all(axis=0)
    meaning = ((study.meaning.astype(int) @ same) > 0)[reference.labels] & known
    rows = np.flatnonzero(meaning.any(axis=1) & ~is_repeat)
    rows = rows[stratified_sample(reference.labels[rows], CALLED_CELLS, cfg.seed)]
    adata = ad.AnnData(reference.x[rows], var=pd.DataFrame(index=reference.genes))
    total, threads = cfg.data.target_sum, cfg.trainer.threads
    options = AnnotationOptions(
        inputs=[study.name],
        input_kind="log1p",
        input_total=total,
        input_base="e",
        min_overlap=0.0,
        threads=threads,
    )
    cells = OpenedCells(adata, options, f"{study.name}, predicted by the other studies")
    proba, scores = call(replace(whole, studies=others), cells, options)
    joint = proba.astype(np.float64)
    return joint, np.where(meaning[rows], joint, -1.0).argmax(axis=1), scores


def _with_evidence(
    whole: SavedModel,
    references: Sequence[Reference],
    repeats: Sequence[np.ndarray],
    cfg: TrainOptions,
    call: JointCalls,
) -> SavedModel:
    """Return the model with what the calls of each study by the others show: temperature, accuracies, novelty."""
    pairs = zip(references, repeats, strict=True)
    called = [_call_by_others(whole, number, *pair, cfg, call) for number, pair in enumerate(pairs)]
    joint, truth, scores = (np.concatenate(parts) for parts in zip(*called, strict=True))
    logits = np.log(np.maximum(joint, TINY))
    temperature = float(
        np.clip(1 / max(branch_scale(logits, truth), TINY), MIN_TEMPERATURE, MAX_TEMPERATURE)
    )
    scaled = (logits / temperature).astype(np.float32)
    is_right = [each.argmax(axis=1) == right for each, right, _ in called]
    accuracies = [float(each.mean()) if len(each) else math.nan for each in is_right]
    known = [None if math.isnan(each) else each for each in accuracies]
    batches = BatchScores(accuracy=known, batch_effect=0.0)
    loss = negative_log_likelihood(scaled, truth)
    found: Values = score(truth, scaled.argmax(axis=1))
    evidence = OutOfFold(num_cells=len(truth), loss=loss, **found, batches=batches)
    held_out = HeldOut(scaled, truth, scores)
    metrics = replace(whole.metrics, temperature=temperature, out_of_fold=evidence)
    metrics.calibration = calibration(scaled, truth)
    shown = listed(
        f"{study.name} {each:.3f}" for study, each in zip(whole.studies, accuracies, strict=True)
    )
    log.info("accuracy of each study by the others: %s (temperature %.2f)", shown, temperature)
    return replace(whole, metrics=metrics, held_out=held_out)
