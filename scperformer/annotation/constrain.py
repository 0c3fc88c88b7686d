"""Probabilities under constraints: labels that cannot occur, and the shares of labels in the file (prior=em)."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from scperformer.annotation.label_options import LabelOptions
from scperformer.base.messages import listed
from scperformer.cells.droplets import Droplets
from scperformer.labels.constraints import reweighted, shares_by_em
from scperformer.training.calls import Calls, Read

log = logging.getLogger(__name__)

MAX_EM_CELLS = 20_000  # shares are estimated from so many cells, evenly spread over the file


def constrained(
    read: Read, options: LabelOptions, labels: list[str], droplets: Droplets | None
) -> tuple[Read, dict[str, Any]]:
    """Apply the constraints to the probabilities of calls; return how to read these calls, and a record.

    The record is empty without constraints. Shares of labels are estimated without the barcodes that cannot be cells.
    """
    weights = options.allowed.astype(np.float64)
    record: dict[str, Any] = {}
    if not options.allowed.all():
        denied = [label for label, allowed in zip(labels, options.allowed, strict=True) if not allowed]
        log.info("labels that cannot occur: %s; confidences are for the choice among the others", listed(denied))
        record["denied"] = np.array(denied, dtype=object)
    if options.shares is not None:
        estimated, reference = _estimated_shares(read, options.shares, options.allowed, droplets)
        weights[options.allowed] = estimated[options.allowed] / reference[options.allowed]
        shares = zip(labels, estimated, reference, strict=True)
        text = "prior=em: each call depends on all cells of the file; their estimated shares (reference): %s"
        log.info(text, listed(f"{label} {new:.1%} ({old:.1%})" for label, new, old in shares))
        record |= {"estimated_shares": estimated, "reference_shares": reference}
    if not record:
        return read, {}
    record["weights"] = weights  # factors of the labels' probabilities

    def read_constrained() -> Iterator[Calls]:
        for calls in read():
            yield replace(calls, proba=reweighted(calls.proba, weights))

    return read_constrained, record


def _estimated_shares(
    read: Read, shares: np.ndarray, allowed: np.ndarray, droplets: Droplets | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the estimated share of each label in the file, and its share in the reference among the allowed labels."""
    proba = _some_probabilities(read, droplets)
    reference = shares * allowed
    reference /= reference.sum()
    estimated = np.zeros(len(shares))
    renormalised = reweighted(proba[:, allowed], np.ones(allowed.sum()))
    estimated[allowed] = shares_by_em(renormalised, reference[allowed])
    return estimated, reference


def _some_probabilities(read: Read, droplets: Droplets | None) -> np.ndarray:
    """Return the probabilities of some `MAX_EM_CELLS` cells, without the barcodes that cannot be cells."""
    starts = np.cumsum([0, *(len(calls.proba) for calls in read())])
    if droplets is None:
        step = -(-int(starts[-1]) // MAX_EM_CELLS)
        return np.concatenate([calls.proba[::step] for calls in read()])
    rows = droplets.some(MAX_EM_CELLS)
    places = np.searchsorted(rows, starts)
    blocks = zip(read(), starts, places, places[1:], strict=False)
    return np.concatenate([calls.proba[rows[begin:end] - start] for calls, start, begin, end in blocks])
