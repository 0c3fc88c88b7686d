"""Warnings about files whose cells are unlike the reference of a model."""

from scperformer.base.messages import shortened

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
    text = f"mean confidence {confidence:.2f}, but {held_out:.2f} for held-out cells of the reference"
    return f"{text}: these cells are unlike the reference, and fewer calls are right than their confidence states"
