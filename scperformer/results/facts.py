"""The check of what `predict` recorded in an annotated file, which may have been changed since, or be made by hand."""

from typing import Any

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError

TEXT, NUMBER, TEXTS, NUMBERS, MAPPING = "a text", "a number", "a list of texts", "a list of numbers", "a mapping"
# The entries of uns[KEY] (docs/formats.md) that are read again, and their kinds.
REQUIRED = {
    **dict.fromkeys(("model/name", "model/hash", "model/path", "model/trained_on", "model/label_key"), TEXT),
    **dict.fromkeys(("model/num_cells", "model/seed"), NUMBER),
    "model/labels": TEXTS,
    **dict.fromkeys(("input/file", "input/sha256", "input/source", "input/kind"), TEXT),
    **dict.fromkeys(("input/log_base", "input/total", "input/relative"), NUMBER),
    "input/notes": TEXTS,
    **dict.fromkeys(("genes/num_file", "genes/num_shared", "genes/share_of_model"), NUMBER),
    "genes/absent": TEXTS,
    **dict.fromkeys(("repeats/num_seen", "repeats/num_cells", "num_unknown"), NUMBER),
    "versions": MAPPING,
    "versions/scperformer": TEXT,
    "config_json": TEXT,
    "warnings": TEXTS,
}
OPTIONAL = {
    "model/tissue": TEXT,
    "model/lacks": TEXTS,
    **dict.fromkeys(("model/encoder/kind", "model/encoder/attention"), TEXT),
    **dict.fromkeys(("model/imported/tool", "model/imported/file", "model/imported/sha256"), TEXT),
    **dict.fromkeys(("run", "constraints", "calibration"), MAPPING),
    "run/date": TEXT,
    "condition/key": TEXT,
    **dict.fromkeys(("condition/adapted", "condition/expected_accuracy", "condition/depth"), NUMBER),
    "genes/informative_share": NUMBER,
    **dict.fromkeys(("tree/nodes", "tree/parents"), TEXTS),
    "tree/num_backed_off": NUMBER,
    "droplets": MAPPING,
    "encoder/num_decided": NUMBER,
    **dict.fromkeys(("calibration/num_cells", "calibration/error", "novelty/unknown_fpr"), NUMBER),
    **{f"calibration/bins/{name}": NUMBERS for name in ("confidence", "accuracy", "num_cells")},
    "shift/kind": TEXT,
    **{f"shift/{name}": NUMBER for name in ("relative_novelty", "batch_effect", "expected_lowest", "expected_highest")},
    "shift/encoder_weight": NUMBER,
    "shift/gene_factors": NUMBERS,
    "constraints/denied": TEXTS,
    "constraints/weights": NUMBERS,
}
# Columns of one table, which are equally long and come together.
TABLES = (
    ("calibration/bins/confidence", "calibration/bins/accuracy", "calibration/bins/num_cells"),
    ("tree/nodes", "tree/parents"),
)
# Entries that are read only beside another.
NEEDED = {
    "run": ("run/date",),
    "condition/adapted": ("condition/key", "condition/depth"),
    "constraints": ("constraints/weights",),
    "model/lacks": ("model/imported/tool",),
    "calibration": (
        "calibration/num_cells",
        "calibration/error",
        "calibration/bins/confidence",
        "novelty/unknown_fpr",
    ),
}
COLUMNS = ("confidence", "margin", "novelty", "call_confidence")  # of obs and details: numbers


def _kind(value: Any) -> str:
    """Return the kind of a value, for the check and for messages."""
    if isinstance(value, str | dict):
        return TEXT if isinstance(value, str) else MAPPING
    array = np.asarray(value)
    is_number = array.dtype.kind in "biuf"
    if array.ndim == 0:
        return NUMBER if is_number else f"a value of type {type(value).__name__}"
    if array.ndim > 1:
        return "a table"
    if array.size == 0:
        return "a list without entries"
    if all(isinstance(text, str) for text in array):
        return TEXTS
    return NUMBERS if is_number else "a list of several kinds"


def _problem(facts: Any, key: str) -> str:
    """Return the first entry that is missing or not of its kind; empty if there is none."""
    found = {}
    for entry, kind in (REQUIRED | OPTIONAL).items():
        value = facts
        place = f"uns['{key}']"
        for name in entry.split("/"):
            if not isinstance(value, dict):
                return f"{place} is {_kind(value)} instead of {MAPPING}"
            if name not in value:
                break
            value = value[name]
            place += f"['{name}']"
        else:
            is_empty = _kind(value) == "a list without entries" and kind in (TEXTS, NUMBERS)
            if _kind(value) != kind and not is_empty:
                return f"{place} is {_kind(value)} instead of {kind}"
            found[entry] = value
            continue
        if entry in REQUIRED:
            return f"{place} has no '{name}'"
    for table in TABLES:
        if len({len(found[entry]) if entry in found else -1 for entry in table}) > 1:
            return f"uns['{key}'] has lists of different lengths in '{table[0].rpartition('/')[0]}'"
    for entry, needed in NEEDED.items():
        for lacking in (name for name in needed if entry in found and name not in found):
            return f"uns['{key}'] has '{entry}' without '{lacking}'"
    if len(set(found["model/labels"])) < len(found["model/labels"]):
        return f"uns['{key}']['model']['labels'] has a label twice"
    if found["repeats/num_cells"] > 0 and not found["repeats/num_seen"] > 0:
        return f"uns['{key}']['repeats'] without a number of cells above 0 in 'num_seen'"
    return ""


def require_facts(facts: Any, obs: pd.DataFrame, key: str, path: object) -> None:
    """Refuse an annotation that `predict` would not write like this.

    Raises
    ------
    InputError
        An entry of uns or a column of obs is missing or of another kind.
    """
    problem = _problem(facts, key)
    for column in (f"{key}_{name}" for name in COLUMNS):
        if not problem and column in obs and obs[column].dtype.kind != "f":
            problem = f"obs column '{column}' is of type {obs[column].dtype}"
    if problem:
        remedy = f"annotate its cells again: scperformer predict ... key_added={key}"
        raise InputError(f"{problem} in {path}", "an annotation as predict writes it", remedy)
