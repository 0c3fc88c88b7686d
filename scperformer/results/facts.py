"""The check of what `predict` recorded in an annotated file, which may have been changed since, or be made by hand."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from scperformer.annotation.columns import CLUSTER_ENTRIES
from scperformer.base.errors import InputError

TEXT, NUMBER, TEXTS, NUMBERS = "a text", "a number", "a list of texts", "a list of numbers"
TABLE, MAPPING = "a table of numbers", "a mapping"
# The entries of uns[KEY] (docs/formats.md) that are read again, by their kinds.
REQUIRED = {
    TEXT: "model/name model/hash model/path model/trained_on model/label_key input/file input/sha256 input/source "
    "input/kind versions/scperformer config_json",
    NUMBER: "model/num_cells model/seed input/log_base input/total input/relative genes/num_file genes/num_shared "
    "genes/share_of_model repeats/num_seen repeats/num_cells num_unknown",
    TEXTS: "model/labels input/notes genes/absent warnings",
    MAPPING: "versions",
}
OPTIONAL = {
    TEXT: "model/tissue model/encoder/kind model/encoder/attention model/imported/tool model/imported/file "
    "model/imported/sha256 run/date coverage/key shift/kind tissue/name tissue/title tissue/how "
    "check/text batches/key",
    NUMBER: "coverage/adapted coverage/expected_accuracy coverage/depth coverage/thinned_to "
    "genes/informative_share tree/num_backed_off encoder/num_decided calibration/num_cells "
    "calibration/error other_species/num_cells novelty/unknown_fpr shift/relative_novelty shift/batch_effect "
    "shift/expected_lowest shift/expected_highest "
    "shift/encoder_weight tissue/in_capitals tissue/score tissue/num_cells profiles/resemblance "
    "profiles/expected_lowest profiles/expected_highest",
    TEXTS: "model/lacks tree/nodes tree/parents tree/ontology_term_ids constraints/denied tissue/next tissue/types "
    "check/label check/looks_like check/too_high check/too_low batches/name batches/kind",
    NUMBERS: "input/is_gene calibration/bins/confidence calibration/bins/num_cells shift/gene_factors "
    "constraints/weights tissue/next_scores tissue/type_cells profiles/centre profiles/shares "
    "profiles/gene_factors check/num_cells check/difference batches/num_cells batches/batch_effect",
    TABLE: "batches/gene_factors",
    MAPPING: "run constraints calibration droplets other_species tissue profiles check batches",
}
# Entries that are read only beside another, which they need.
NEEDED = {
    "run": "run/date",
    "coverage/adapted": "coverage/key coverage/depth",
    "constraints": "constraints/weights",
    "model/lacks": "model/imported/tool",
    "tree/nodes": "tree/parents tree/ontology_term_ids",
    "tissue": "tissue/name tissue/title tissue/how tissue/in_capitals profiles",
    "tissue/score": "tissue/next tissue/next_scores",
    "tissue/types": "tissue/type_cells tissue/num_cells",
    "check": "check/text",
    "batches": "batches/key batches/name batches/gene_factors batches/num_cells",
    "batches/kind": "batches/batch_effect",
    "check/label": " ".join(f"check/{name}" for name in CLUSTER_ENTRIES),
    "profiles": "tissue profiles/expected_lowest profiles/expected_highest profiles/centre profiles/shares",
    "calibration": "calibration/num_cells calibration/error calibration/bins/confidence calibration/bins/num_cells "
    "novelty/unknown_fpr",
}
EQUALLY_LONG = (
    ("batches/kind", "batches/name"),
    ("batches/batch_effect", "batches/name"),
    ("calibration/bins/confidence", "calibration/bins/num_cells"),
    ("tree/nodes", "tree/parents"),
    ("tree/nodes", "tree/ontology_term_ids"),
    ("tissue/next", "tissue/next_scores"),
    ("tissue/types", "tissue/type_cells"),
    *(("check/label", f"check/{name}") for name in CLUSTER_ENTRIES),
)
COLUMNS = ("confidence", "margin", "novelty", "call_confidence")  # of obs and details: numbers


def _kind(value: Any) -> str:
    """Return the kind of a value, for the check and for messages."""
    if isinstance(value, str | dict):
        return TEXT if isinstance(value, str) else MAPPING
    array = np.asarray(value)
    is_number = array.dtype.kind in "biuf"
    if array.ndim == 2 and is_number:
        return TABLE
    if array.ndim != 1:
        return NUMBER if is_number and array.ndim == 0 else f"a value of type {type(value).__name__}"
    return TEXTS if all(isinstance(text, str) for text in array) else NUMBERS if is_number else "a list"


def _problem(facts: Any, key: str) -> str:
    """Return the first entry that is missing or not of its kind; empty if there is none."""
    found: dict[str, Any] = {}
    for entries, is_required in ((REQUIRED, True), (OPTIONAL, False)):
        for kind, entry in ((kind, entry) for kind, names in entries.items() for entry in names.split()):
            value = facts
            place = f"uns['{key}']"
            for name in entry.split("/"):
                if not isinstance(value, dict):
                    return f"{place} is {_kind(value)} instead of {MAPPING}"
                if name not in value:
                    if is_required:
                        return f"{place} has no '{name}'"
                    break
                value = value[name]
                place += f"['{name}']"
            else:
                is_empty = kind in (TEXTS, NUMBERS) and np.shape(value) == (0,)
                if _kind(value) != kind and not is_empty:
                    return f"{place} is {_kind(value)} instead of {kind}"
                found[entry] = value
    for entry, needed in NEEDED.items():
        if entry in found and (lacking := [name for name in needed.split() if name not in found]):
            return f"uns['{key}'] has '{entry}' without '{lacking[0]}'"
    for one, other in EQUALLY_LONG:
        if one in found and len(found[one]) != len(found[other]):
            return f"uns['{key}'] has lists of different lengths in '{one}' and '{other}'"
    if len(set(found["model/labels"])) < len(found["model/labels"]):
        return f"uns['{key}']['model']['labels'] has a label twice"
    if found["repeats/num_cells"] > 0 and not found["repeats/num_seen"] > 0:
        return f"uns['{key}']['repeats'] without a number of cells above 0 in 'num_seen'"
    return ""


def require_facts(facts: Any, obs: pd.DataFrame, key: str, path: object) -> None:
    """Refuse an annotation that `predict` would not write: an entry or a column is missing or of another kind."""
    problem = _problem(facts, key)
    for column in (f"{key}_{name}" for name in COLUMNS):
        if not problem and column in obs and obs[column].dtype.kind != "f":
            problem = f"obs column '{column}' is of type {obs[column].dtype}"
    if problem:
        remedy = f"annotate its cells again: scperformer predict ... key_added={key}"
        raise InputError("damaged-annotation", f"{problem} in {path}", "an annotation as predict writes it", remedy)


def expected_accuracy(facts: Mapping[str, Any]) -> tuple[float, float]:
    """Return the lowest and the highest accuracy that is expected of an annotation; NaN if it is not known."""
    known = facts.get("coverage", {}).get("expected_accuracy", math.nan)  # imported models have none
    trust = facts.get("profiles") or facts.get("shift") or {}
    return trust.get("expected_lowest", known), trust.get("expected_highest", known)
