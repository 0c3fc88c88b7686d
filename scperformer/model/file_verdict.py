"""One sentence about a query as a whole, for the log, `check` and annotations, with a warning if there is one."""

import math

from scperformer.base.messages import shortened
from scperformer.model.shift import FAR, LIKE, OTHER, Shift

MAX_UNKNOWN = 0.5  # fraction of unknown cells in a query; above it, the model is probably for another tissue
NEARLY_ALL = 0.95  # fraction of unknown cells from which misread values are a likely cause, too
FAR_BELOW = 0.1  # difference between mean confidences


def foreign_text(unknown: float, num_labels: int, tissue: str | None = None, values: str = "") -> str:
    """Return the warning about a query in which a fraction of cells, most of them, are unknown.

    `values` tells in words how the expression was read, for nearly all cells.
    """
    trained_on = "" if tissue is None else f" This model was trained on {shortened(tissue)}."
    text = f"{unknown:.0%} of cells look like none of the {num_labels} labels of this model: is it the right tissue?"
    if unknown < NEARLY_ALL or not values:
        return f"{text}{trained_on}"
    return f"{text}{trained_on} Or were the values read wrongly (as {values})?"


def unsure_text(confidence: float, held_out: float) -> str:
    """Return the warning about a mean confidence far below out-of-fold cells; "" if it is not far below."""
    if not confidence < held_out - FAR_BELOW:
        return ""
    text = f"the mean confidence is {confidence:.2f}, and {held_out:.2f} in held-out cells of the reference"
    return f"{text}: fewer calls are right than their confidence states"


def file_warning(
    kind: str | None,
    unknown: float,
    num_labels: int,
    tissue: str | None = None,
    values: str = "",
    *,
    confidence: float = math.nan,
    held_out: float = math.nan,
) -> str:
    """Return the warning about a query, "" if there is none: `foreign_text`, else `unsure_text`.

    `kind` is its shift. `confidence` and `held_out` are mean confidences of its cells and of out-of-fold cells of the
    reference. None and NaN: not known.
    """
    if kind == FAR or unknown > MAX_UNKNOWN:
        return foreign_text(unknown, num_labels, tissue, values)
    return "" if kind == OTHER else unsure_text(confidence, held_out)  # in another study, a lower one is expected


def file_text(shift: Shift | None, warning: str) -> str:
    """Return the shift of a query and a warning about it, in one sentence without contradiction."""
    if shift is None or not warning:
        return warning if shift is None else shift.text
    if shift.kind == LIKE:
        return f"measured as the reference ({shift.numbers}), but {warning}"
    return f"{shift.text}; {warning}" if shift.kind == FAR else f"{shift.kind} ({shift.numbers}), and {warning}"
