"""The record of an annotation: it is read back as it was written, and damage is refused with its place."""

import anndata as ad
import numpy as np
import pytest
from support.record import record_of

from scperformer.adaptation.record import (
    CHECK,
    NOTE,
    CheckRecord,
    Record,
    Remark,
    ShiftRecord,
    texts,
    to_uns,
)


def full_record() -> Record:
    clusters = {
        name: texts(["T"]) for name in ("label", "looks_like", "term", "too_high", "too_low")
    }
    check = CheckRecord(text="1", num_cells=np.array([3]), difference=np.array([0.2]), **clusters)
    remarks = [Remark("low", CHECK, "Low", "3"), Remark("high", NOTE, "High")]
    return record_of(
        ["B", "T"],
        remarks=remarks,
        check=check,
        shift=ShiftRecord(kind="another tissue", batch_effect=1.5),
    )


def test_a_record_is_read_back_from_a_file(tmp_path):
    record = full_record()
    cells = ad.AnnData(np.zeros((2, 1)), uns={"key": to_uns(record)})
    cells.write_h5ad(tmp_path / "a.h5ad")
    found = Record.from_uns(ad.read_h5ad(tmp_path / "a.h5ad").uns["key"], "key")
    assert list(found.model.labels) == ["B", "T"]
    assert (found.shift.kind, found.shift.batch_effect, found.tissue) == (
        "another tissue",
        1.5,
        None,
    )
    assert [remark.sentence for remark in found.remarks] == ["Low: 3", "High"]
    assert to_uns(found).keys() == to_uns(record).keys()
    assert "tissue" not in to_uns(record)  # what is None is left out


def test_the_accuracy_to_expect_is_of_the_shift_or_else_of_the_coverage():
    record = full_record()
    assert np.isnan(record.expected_accuracy).all()
    record.shift.expected_lowest, record.shift.expected_highest = 0.7, 0.8
    assert record.expected_accuracy == (0.7, 0.8)
    record.shift, record.coverage.expected_accuracy = None, 0.9
    assert record.expected_accuracy == (0.9, 0.9)


@pytest.mark.parametrize(
    ("entry", "value", "problem"),
    [
        ("model/seed", "zero", r"uns\['key'\]\['model'\]\['seed'\] is a text instead of a number"),
        ("model/labels", texts(["B", "B"]), r"\['model'\]\['labels'\] has a label twice"),
        ("genes", np.zeros(3), r"\['genes'\] is a list of numbers instead of a mapping"),
        ("check/too_high", texts(["a", "b"]), r"\['check'\] has lists of different lengths"),
        ("repeats/num_seen", None, r"\['repeats'\] has no 'num_seen'"),
        (
            "calibration",
            {"num_cells": 1, "error": 0.1, "bins": {"confidence": [1.0]}},
            "has no 'num_cells'",
        ),
        (
            "tissue",
            {"name": "a", "title": "A", "in_capitals": False, "how": "given"},
            "'tissue' and 'profiles'",
        ),
    ],
)
def test_damage_is_told_with_its_place(entry, value, problem):
    uns = to_uns(full_record())
    *places, last = entry.split("/")
    inner = uns
    for place in places:
        inner = inner[place]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    with pytest.raises(ValueError, match=problem):
        Record.from_uns(uns, "key")


def test_labels_that_cells_took_may_have_commas():
    exchange = {
        "exchanged_from": texts(["T; B"]),
        "exchanged_to": texts(["CD8 T cell, GZMB high; MAIT cell"]),
    }
    check = CheckRecord(text="", exchanged_cells=np.array([3]), **exchange)
    assert check.taken_labels == ["CD8 T cell, GZMB high", "MAIT cell"]
