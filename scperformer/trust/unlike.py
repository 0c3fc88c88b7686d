"""Warnings about files whose cells are unlike the reference of a model."""

from scperformer.base.messages import shortened

MOST_UNKNOWN = 0.5  # share of the cells of a file: with more, the model is probably of another tissue
NEARLY_ALL = 0.95  # share of unknown cells: with more, the values may be the cause
FAR_BELOW = 0.1  # difference of mean confidences


def foreign_text(share: float, num_labels: int, tissue: str | None = None, values: str = "") -> str:
    """Return the warning about a file in which this share of the cells is unknown, with the tissue of the model.

    If it is nearly all of them, the `values` may be the cause: how the expression was read.
    """
    of = "" if tissue is None else f" The model is of {shortened(tissue)}."
    text = f"{share:.0%} of cells look like none of the {num_labels} labels of this model: is it the right tissue?{of}"
    if share < NEARLY_ALL or not values:
        return text
    return f"{text} Or are the values not what they were taken for ({values})?"


def unsure_text(confidence: float, held_out: float) -> str:
    """Return the warning about a file with a mean confidence far below that of held-out cells; "" if it is not."""
    if not confidence < held_out - FAR_BELOW:
        return ""
    text = f"mean confidence {confidence:.2f}, of held-out cells of the reference {held_out:.2f}"
    return f"{text}: these cells are unlike the reference, and fewer calls are right than it promises"
