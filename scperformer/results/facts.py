"""What `predict` records in uns of an annotated file, and the check of a file from elsewhere against it.

A file may have been changed since, or be made by hand: entries of another kind would cause errors anywhere in a report.
"""

from typing import Any

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError

TEXT, NUMBER, TEXTS, NUMBERS = "a text", "a number", "a list of texts", "a list of numbers"
ANY = "*"  # stands for entries of any name
REQUIRED = {"model": ("name", "hash", "path", "labels", "trained_on", "label_key", "num_cells", "seed")}
# The entries of docs/formats.md that are read again. Lists in one mapping are columns of a table, and equally long.
FACTS: dict[str, Any] = {
    "run": {ANY: TEXT},
    "sheet": TEXTS,
    "sheet_values": TEXTS,
    "model": {
        **dict.fromkeys(("name", "hash", "path", "tissue", "trained_on", "label_key"), TEXT),
        **dict.fromkeys(("num_cells", "seed", "format_version"), NUMBER),
        "labels": TEXTS,
        "scales": {ANY: NUMBER},
        "encoder": {ANY: TEXT},
        "branch_scores": {ANY: {ANY: NUMBER}},
        "imported": {ANY: TEXT},
    },
    "repeats": {ANY: NUMBER},
    "condition": {
        "key": TEXT,
        "studies": {"name": TEXTS, "weight": NUMBERS, "novelty_ratio": NUMBERS},
        ANY: NUMBER,
    },
    "tree": {**dict.fromkeys(("nodes", "parents", "ontology_term_ids"), TEXTS), ANY: NUMBER},
    "clusters": {"key": TEXT, "how": TEXT, ANY: NUMBER},
    "quality": {"doublet_note": TEXT, ANY: NUMBER},
    "input": {
        **dict.fromkeys(("file", "sha256", "source", "kind"), TEXT),
        **dict.fromkeys(("log_base", "total", "relative"), NUMBER),
        "notes": TEXTS,
    },
    "droplets": {"unit": TEXT, ANY: NUMBER},
    "genes": {ANY: NUMBER, "notes": None, "absent": None, "dropped": None},
    "baseline": {"name": TEXT},
    "versions": {ANY: TEXT},
    "config_json": TEXT,
    "warnings": TEXTS,
    "num_unknown": NUMBER,
    "encoder": {ANY: NUMBER},
    "calibration": {
        "bins": {ANY: NUMBERS},
        "labels": {"label": TEXTS, ANY: NUMBERS},
        ANY: NUMBER,
    },
    "novelty": {ANY: NUMBER},
    "fit": {ANY: NUMBER},
    "shift": {"kind": TEXT, "gene_factors": NUMBERS, ANY: NUMBER},
    "sets": {ANY: NUMBER},
    "seconds": NUMBER,
}
COLUMNS = {"confidence": "f", "margin": "f", "novelty": "f", "call_confidence": "f"}  # kinds of dtypes


def _kind(value: Any) -> str:
    """Return the kind of a value, for the check and for messages."""
    if isinstance(value, str):
        return TEXT
    if isinstance(value, dict):
        return "a mapping"
    array = np.asarray(value)
    numbers = array.dtype.kind in "biuf"
    if array.ndim == 0:
        return NUMBER if numbers else f"a value of type {type(value).__name__}"
    if array.ndim > 1:
        return "a table"
    if array.size == 0 or all(isinstance(text, str) for text in array):
        return TEXTS if array.dtype.kind in "OUTS" or array.size else "a list without entries"
    return NUMBERS if numbers else "a list of several kinds"


def _problem(facts: Any, known: Any, place: str) -> str | None:
    """Return the first entry that is not of its kind, and what it is; None if there is none."""
    if known is None:
        return None
    if not isinstance(known, dict):
        kind = _kind(facts)
        fits = kind == known or (kind == "a list without entries" and known in (TEXTS, NUMBERS))
        return None if fits else f"{place} is {kind} instead of {known}"
    if not isinstance(facts, dict):
        return f"{place} is {_kind(facts)} instead of a mapping"
    lengths = {}
    for name, value in facts.items():
        entry = known.get(name, known.get(ANY))
        if problem := _problem(value, entry, f"{place}['{name}']"):
            return problem
        if entry in (TEXTS, NUMBERS):
            lengths[name] = len(value)
    tables = {name: length for name, length in lengths.items() if name not in ("labels", "notes", "warnings")}
    if place.endswith(("['bins']", "['labels']", "['studies']", "['tree']")) and len(set(tables.values())) > 1:
        return f"{place} has lists of different lengths"
    return None


def require_facts(facts: Any, obs: pd.DataFrame, key: str, path: object) -> None:
    """Refuse an annotation that `predict` would not write like this.

    Raises
    ------
    InputError
        An entry of uns or a column of obs is of another kind, or one is missing.
    """
    problem = _problem(facts, FACTS, f"uns['{key}']")
    for group, names in REQUIRED.items():
        for name in () if problem else names:
            if name not in facts.get(group, {}):
                problem = f"uns['{key}']['{group}'] has no '{name}'"
                break
    for branch, scores in {} if problem else facts["model"].get("branch_scores", {}).items():
        if not {"accuracy", "macro_f1", "loss"} <= scores.keys():
            problem = f"uns['{key}']['model']['branch_scores']['{branch}'] lacks a score"
    if not problem and "repeats" in facts and not facts["repeats"].get("num_seen", 0) > 0:
        problem = f"uns['{key}']['repeats'] without a number of cells above 0 in 'num_seen'"
    for name, kind in COLUMNS.items():
        column = f"{key}_{name}"
        if not problem and column in obs and obs[column].dtype.kind != kind:
            problem = f"obs column '{column}' is of type {obs[column].dtype}"
    if not problem and len(set(facts["model"]["labels"])) < len(facts["model"]["labels"]):
        problem = f"uns['{key}']['model']['labels'] has a label twice"
    if problem:
        remedy = f"annotate its cells again: scperformer predict ... key_added={key}"
        raise InputError(f"{problem} in {path}", "an annotation as predict writes it", remedy)
