"""Labelled cells beside an imported model: calibration, novelty, expected accuracy, and cells with which it adapts."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from scperformer.adaptation.imported import KEPT_SCORES, MAX_KEPT, evidence_of
from scperformer.base.errors import InputError
from scperformer.base.messages import join_names, listed
from scperformer.cells.normalisation import recover_counts
from scperformer.cells.opened import open_cells
from scperformer.cells.query import find_query
from scperformer.cells.reference_labels import require_labels
from scperformer.cells.splits import stratified_sample
from scperformer.config.options import ModelOptions
from scperformer.io.read import checksum
from scperformer.labels.ontology import packaged_ontology
from scperformer.labels.texts import spelled_as
from scperformer.model.arrays import ReferenceCells
from scperformer.model.imported import ImportedNetwork
from scperformer.model.load import rebuild
from scperformer.model.saved_model import SavedModel

log = logging.getLogger(__name__)

MIN_LABELLED_CELLS = 20  # with a label of the model
SAMPLE_SEED = 0
NUM_LABELS_NAMED = 5  # labels in a message


def with_labelled_cells(saved: SavedModel, path: str, label_key: str) -> SavedModel:
    """Add evidence and stored cells to an imported model, from a file of labelled cells of any kind.

    A label in the obs column `label_key` is matched to the model's label of the same name, or to the only one with the
    same Cell Ontology id. Cells with other labels are left out; too few with labels of the model are refused.
    """
    network = rebuild(saved, Path(path))
    if not isinstance(network, ImportedNetwork):
        found = f"reference={path} beside a model of {saved.imported['tool']}"
        expected = "a model whose scores can be refitted"
        raise InputError(
            "not-refittable", found, expected, "leave reference out, or train on these cells"
        )
    with open_cells(path, ModelOptions(inputs=[path], min_overlap=0.5)) as cells:
        labels = _codes(require_labels(cells.obs, label_key, path), saved, f"{path}, {label_key}")
        query = find_query(cells, saved)
        labelled = np.flatnonzero(labels >= 0)
        rows = labelled[np.isin(labelled, query.cell_rows)]
        rows = rows[stratified_sample(labels[rows], MAX_KEPT, SAMPLE_SEED)]
        x = query.some(rows)
    has_expression = np.diff(x.indptr) > 0
    x = x[has_expression]
    codes = labels[rows][has_expression]
    scores = network.scored(x, query.measured if not query.measured.all() else None).scores
    scale, metrics, held_out = evidence_of(scores, x, codes, SAMPLE_SEED)
    log.info("%s: accuracy %.3f on %d labelled cells", path, metrics.known_accuracy, len(codes))
    counts = recover_counts(x)
    reference_cells = ReferenceCells(
        x if counts is None else counts, codes, are_counts=counts is not None
    )
    if counts is None:
        reference_cells.values.data = np.expm1(reference_cells.values.data)
    weights = {KEPT_SCORES: scores.astype(np.float32)}
    num_cells = dict(
        zip(saved.labels, np.bincount(codes, minlength=len(saved.labels)).tolist(), strict=True)
    )
    notes = [
        "If the labelled cells were among those that the model was trained on, its accuracy here is too high."
    ]
    if missing := [label for label, num in num_cells.items() if num == 0]:
        found = f"{len(missing)} of {len(saved.labels)} labels have no labelled cells ({listed(missing)})"
        notes.append(f"{found}: cells of these types may be flagged as unknown.")
        log.warning(
            "%s: cells of these types may be flagged as unknown (unknown_fpr=0 turns this off)",
            found,
        )
    provenance = replace(
        saved.provenance,
        reference=Path(path).name,
        reference_sha256=checksum(path),
        label_key=label_key,
        num_cells=len(codes),
        cells_per_label=num_cells,
        kept_cells={"num_cells": len(codes)},
        notes=[*(saved.provenance.notes or []), *notes],
    )
    return replace(
        saved,
        config=replace(saved.config, network=(saved.config.network or {}) | {"scale": scale}),
        metrics=metrics,
        provenance=provenance,
        weights=saved.weights | weights,
        gene_means=np.asarray(x.mean(axis=0), dtype=np.float32).ravel(),
        held_out=held_out,
        reference_cells=reference_cells,
        has_reference_cells=True,
    )


def _codes(texts: pd.Series, saved: SavedModel, where: str) -> np.ndarray:
    """Return the index of the label of the model for each cell, int64 N; -1 for cells that are left out."""
    ontology = packaged_ontology()
    terms = pd.Series(saved.ontology_term_ids)
    of_term = {term: int(code) for code, term in terms[~terms.duplicated(keep=False)].items()}
    of_label = {label: code for code, label in enumerate(saved.labels)}
    names = texts.dropna().unique()
    code_of = {
        name: of_label.get(spelled, of_term.get(ontology.term(name) or "", -1))
        for name, spelled in zip(names, spelled_as(saved.labels, names), strict=True)
    }
    labels = texts.map(code_of).fillna(-1).to_numpy(np.int64)
    other = texts[(labels < 0) & texts.notna().to_numpy()].value_counts()
    num_known = int((labels >= 0).sum())
    num_labels = len(np.unique(labels[labels >= 0]))
    if num_known < MIN_LABELLED_CELLS or num_labels < 2:
        found = f"{num_known} cells with {num_labels} labels of the model in {where}"
        names_of_cells = join_names(list(other.index[:NUM_LABELS_NAMED]))
        example = (
            f"it has {join_names(saved.labels[:NUM_LABELS_NAMED])}; the cells have {names_of_cells}"
        )
        remedy = "rename the labels of the cells to labels of the model, or leave reference out"
        raise InputError(
            "few-cells",
            found,
            f"at least {MIN_LABELLED_CELLS} cells with 2 labels ({example})",
            remedy,
        )
    if len(other):
        log.warning(
            "%s: %d cells have labels that the model lacks: %s",
            where,
            other.sum(),
            listed(other.index),
        )
    return labels
