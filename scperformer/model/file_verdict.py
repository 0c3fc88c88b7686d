"""What the log, `check` and annotations say about a file as a whole: one sentence, with a warning if there is one."""

import math

from scperformer.base.messages import shortened
from scperformer.model.shift import FAR, LIKE, OTHER, Shift

MAX_UNKNOWN = 0.5  # share of unknown cells in a file; above it, the model is probably for another tissue
NEARLY_ALL = 0.95  # share of unknown cells from which misread values are a likely cause, too
FAR_BELOW = 0.1  # difference between mean confidences


def foreign_text(share: float, num_labels: int, tissue: str | None = None, values: str = "") -> str:
    """Return the warning about a file in which most cells are unknown.

    Parameters
    ----------
    share
        Share of unknown cells.
    tissue
        Tissue of the model's reference.
    values
        How the expression was read, in words; the warning names it if nearly all cells are unknown.
    """
    trained_on = "" if tissue is None else f" This model was trained on {shortened(tissue)}."
    text = f"{share:.0%} of cells look like none of the {num_labels} labels of this model: is it the right tissue?"
    if share < NEARLY_ALL or not values:
        return f"{text}{trained_on}"
    return f"{text}{trained_on} Or were the values read wrongly (as {values})?"


def unsure_text(confidence: float, held_out: float) -> str:
    """Return the warning about a mean confidence far below that of held-out cells; "" if it is not far below."""
    if not confidence < held_out - FAR_BELOW:
        return ""
    text = f"the mean confidence is {confidence:.2f}, and {held_out:.2f} in held-out cells of the reference"
    return f"{text}: fewer calls are right than their confidence states"


def file_warning(
    kind: str | None,
    unknown_share: float,
    num_labels: int,
    tissue: str | None = None,
    values: str = "",
    *,
    confidence: float = math.nan,
    held_out: float = math.nan,
) -> str:
    """Return the warning about a file, "" if there is none: `foreign_text`, else `unsure_text`.

    Parameters
    ----------
    kind
        The kind of its shift; None if it is not known.
    confidence, held_out
        Mean confidence of its cells, and of held-out cells of the reference; NaN if they are not known.
    """
    if kind == FAR or unknown_share > MAX_UNKNOWN:
        return foreign_text(unknown_share, num_labels, tissue, values)
    return "" if kind == OTHER else unsure_text(confidence, held_out)  # in another study, a lower one is expected


def file_text(shift: Shift | None, warning: str) -> str:
    """Return how far a file is from the reference, and a warning about it, in one sentence without contradiction."""
    if shift is None or not warning:
        return warning if shift is None else shift.text
    if shift.kind == LIKE:
        return f"measured as the reference ({shift.numbers}), but {warning}"
    return f"{shift.text}; {warning}" if shift.kind == FAR else f"{shift.kind} ({shift.numbers}), and {warning}"
