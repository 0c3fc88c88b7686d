"""Remarks about annotated cells, by what was recorded of them and by their calls."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from support.record import record_of

from scperformer.adaptation.record import CHECK, NOTE, STOP, CoverageRecord, Record, ShiftRecord
from scperformer.annotation.remarks import remarks_about
from scperformer.cells.batches import NO_BATCHES
from scperformer.model.network import LinearModel
from scperformer.trust.shift import FAR, LIKE, NO_SHIFT, Shift

LABELS = ["B", "T"]
SHIFTS = {LIKE: Shift(1.0, 0.05, 100), FAR: Shift(40.0, 1.5, 100)}


def found(
    record: Record, shift: Shift = NO_SHIFT, baseline: str = "B T B T", novel_share: float = 0.0
) -> dict:
    """The remarks about four cells that are called B, T, B and T, by their codes."""
    codes = [LABELS.index(label) for label in baseline.split()]
    table = pd.DataFrame({"best": [0, 1, 0, 1], "baseline": codes, "empty": False})
    saved = SimpleNamespace(
        labels=LABELS,
        lacks=[],
        imported={},
        held_out=None,
        others=[],
        families=None,
        provenance=SimpleNamespace(called=None),
    )
    saved.config = SimpleNamespace(min_genes=0)
    compared = SimpleNamespace(shift=shift, batches=SimpleNamespace(far=lambda batches: ""))
    model = SimpleNamespace(baseline=LinearModel(np.zeros((1, 2)), np.zeros(2)))
    findings = SimpleNamespace(droplets=None, doubt="", text="counts in X")
    calls = SimpleNamespace(
        adapted=SimpleNamespace(saved=saved, compared=compared, model=model),
        query=SimpleNamespace(findings=findings, batches=NO_BATCHES, share=1.0),
        options=SimpleNamespace(min_confidence=0.0, tree=None),
        markers=None,
        checked=SimpleNamespace(is_listed=np.zeros(4, dtype=bool)),
        of_cells=table,
        table=table,
        is_cell=np.ones(4, dtype=bool),
        unknown=np.zeros(4, dtype=bool),
        novel_share=novel_share,
    )
    return {remark.code: remark for remark in remarks_about(calls, record)}


def test_nothing_is_said_of_usual_cells():
    record = record_of(
        LABELS, shift=ShiftRecord(kind=LIKE, expected_lowest=0.9, expected_highest=0.9)
    )
    assert {code: remark.severity for code, remark in found(record, SHIFTS[LIKE]).items()} == {
        "shift": NOTE
    }
    assert found(record_of(LABELS)) == {}


def test_missing_genes_and_a_low_accuracy():
    remark = found(record_of(LABELS, share=0.5))["missing-genes"]
    assert (remark.severity, remark.value) == (CHECK, "50%")
    refitted = record_of(
        LABELS, share=0.5, coverage=CoverageRecord(adapted=True, expected_accuracy=0.6)
    )
    assert {code: remark.value for code, remark in found(refitted).items()} == {
        "low-accuracy": "60%"
    }


@pytest.mark.parametrize(
    ("unknown", "kind"), [(0.75, LIKE), (0.0, FAR)], ids=["unknown cells", "shift"]
)
def test_another_tissue_is_asked_for(unknown, kind):
    record = record_of(LABELS, shift=ShiftRecord(kind=kind))
    record.model.tissue = "blood"
    remarks = found(record, SHIFTS[kind], "T B T B", unknown)
    assert (remarks["wrong-tissue"].severity, remarks["wrong-tissue"].value) == (
        STOP,
        f"{unknown:.0%}",
    )
    assert "trained on blood" in remarks["wrong-tissue"].text
    assert "disagreement" not in remarks


def test_labels_that_logistic_regression_does_not_give():
    assert found(record_of(LABELS), baseline="B B T T")["disagreement"].value == "50%"
    fit = {"mean_confidence": 0.5, "held_out_confidence": 0.8}
    assert "unsure" in found(record_of(LABELS, fit=fit))
