"""Labelled cells beside an imported model: calibration, novelty, expected accuracy, and cells with which it adapts."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import join_names, listed
from scperformer.cells.normalisation import recover_counts
from scperformer.cells.query import find_query
from scperformer.cells.reference_labels import require_labels
from scperformer.cells.splits import stratified_sample
from scperformer.config.options import ModelOptions
from scperformer.io.read import checksum, open_cells
from scperformer.labels.ontology import packaged_ontology
from scperformer.labels.texts import spelled_as
from scperformer.model.imported import ImportedNetwork
from scperformer.model.load import rebuild
from scperformer.model.reference_cells import ReferenceCells
from scperformer.model.saved_model import SavedModel
from scperformer.training.fit_imported import KEPT_SCORES, MAX_KEPT, baseline_scores, baseline_weights, evidence_of

log = logging.getLogger(__name__)

MIN_CELLS = 20  # with a label of the model; fewer say nothing about it
SEED = 0
NUM_NAMED = 5  # labels that a message names


def with_labelled_cells(saved: SavedModel, path: str, label_key: str) -> SavedModel:
    """Add evidence and kept cells to an imported model, from a file of labelled cells.

    Parameters
    ----------
    path
        A file of any kind that `predict` reads.
    label_key
        The obs column with the labels. A label counts as that of the model with the same name or, if there is one
        only, with the same Cell Ontology id. Cells with other labels are left out.

    Raises
    ------
    InputError
        The cells cannot be used, have too few labels of the model, or have no counts to recover.
    """
    network = rebuild(saved, Path(path))
    if not isinstance(network, ImportedNetwork):
        found = f"reference={path} beside a model of {saved.imported['tool']}"
        raise InputError(found, "a model whose scores can be refitted", "leave reference out, or train on these cells")
    with open_cells(path, "auto") as cells:
        texts = require_labels(cells.obs, label_key, path)
        labels = _codes(texts, saved)
        known = np.flatnonzero(labels >= 0)
        _require_enough(texts, labels, saved, f"{path}, {label_key}")
        query = find_query(cells, saved, ModelOptions(inputs=[path], min_overlap=0.5), path)
        rows = known[np.isin(known, query.cells)]
        rows = rows[stratified_sample(labels[rows], MAX_KEPT, SEED)]
        x = query.some(rows)
    has_expression = np.diff(x.indptr) > 0
    x = x[has_expression]
    own = labels[rows][has_expression]
    scores = network.scored(x, query.measured if not query.measured.all() else None).scores
    scale, metrics, held_out = evidence_of(scores, x, own, saved.labels, SEED)
    metrics["baseline"] = baseline_scores(x, own, SEED)
    fold = metrics["out_of_fold"]
    metrics |= {"model": {name: fold[name] for name in metrics["baseline"]}, "num_val_cells": len(own)}
    text = "%s: accuracy %.3f on %d labelled cells (logistic regression on these, cross-validated: %.3f)"
    log.info(text, path, fold["accuracy"], len(own), metrics["baseline"]["accuracy"])
    counts = recover_counts(x)
    kept = ReferenceCells(x if counts is None else counts, own, are_counts=counts is not None)
    if counts is None:
        kept.values.data = np.expm1(kept.values.data)
    weights = baseline_weights(x, own, len(saved.labels)) | {KEPT_SCORES: scores.astype(np.float32)}
    num_kept = {saved.labels[code]: int(num) for code, num in enumerate(np.bincount(own)) if num}
    provenance: dict[str, Any] = {
        "reference": Path(path).name,
        "reference_sha256": checksum(path),
        "label_key": label_key,
        "num_cells": len(own),
        "cells_per_label": {label: num_kept.get(label, 0) for label in saved.labels},
        "kept_cells": {"num_cells": len(own), "simulated": False},
        "notes": [*saved.provenance.get("notes", []), *_notes(saved, num_kept)],
    }
    return replace(
        saved,
        config=saved.config | {"network": saved.config["network"] | {"scale": scale}},
        metrics=metrics,
        provenance=saved.provenance | provenance,
        weights=saved.weights | weights,
        gene_means=np.asarray(x.mean(axis=0), dtype=np.float32).ravel(),
        held_out=held_out,
        reference_cells=kept,
        has_reference_cells=True,
    )


def _codes(texts: pd.Series, saved: SavedModel) -> np.ndarray:
    """Return the index of the label of the model for each cell, int64 N; -1 if the model does not have it."""
    ontology = packaged_ontology()
    terms = pd.Series(saved.ontology_term_ids)
    of_term = {term: int(place) for place, term in terms[~terms.duplicated(keep=False)].items()}
    place = {label: code for code, label in enumerate(saved.labels)}
    found = {}
    for text, spelled in zip(texts.dropna().unique(), spelled_as(saved.labels, texts.dropna().unique()), strict=True):
        found[text] = place.get(spelled, of_term.get(ontology.term(text) or "", -1))
    return texts.map(found).fillna(-1).to_numpy(np.int64)


def _require_enough(texts: pd.Series, labels: np.ndarray, saved: SavedModel, where: str) -> None:
    """Refuse cells with too few labels of the model; log those that it does not have."""
    other = texts[(labels < 0) & texts.notna().to_numpy()].value_counts()
    num_known = int((labels >= 0).sum())
    num_labels = len(np.unique(labels[labels >= 0]))
    if num_known < MIN_CELLS or num_labels < 2:
        found = f"{num_known} cells with {num_labels} labels of the model in {where}"
        example = (
            f"it has {join_names(saved.labels[:NUM_NAMED])}; the cells have {join_names(list(other.index[:NUM_NAMED]))}"
        )
        expected = f"at least {MIN_CELLS} cells with 2 labels ({example})"
        raise InputError(
            found, expected, "rename the labels of the cells to those of the model, or leave reference out"
        )
    if len(other):
        text = "%s: %d cells are left out, whose labels the model does not have: %s"
        log.warning(text, where, other.sum(), listed(other.index))


def _notes(saved: SavedModel, num_kept: dict[str, int]) -> list[str]:
    """Return sentences for the card about what the labelled cells can and cannot show."""
    notes = ["If the labelled cells were among those that the model was trained on, its accuracy here is too high."]
    missing = [label for label in saved.labels if label not in num_kept]
    if missing:
        found = f"{len(missing)} of {len(saved.labels)} labels have no labelled cells"
        text = f"{found} ({listed(missing)}): cells of these types may"
        notes.append(f"{text} be flagged as unknown.")
        log.warning("%s be flagged as unknown (false_alarms=0 turns this off)", text)
    return notes
