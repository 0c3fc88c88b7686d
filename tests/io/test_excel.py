"""Workbooks: texts that look like formulas or errors are texts, and what a sheet cannot hold is refused."""

from io import BytesIO

import openpyxl
import pandas as pd
import pytest
from support.refusal import refusal

from scperformer.io import excel

TEXTS = ["=HYPERLINK(1)", "+1", "-1", "@SUM(1)", "#N/A", "T cell"]


def test_texts_are_texts_whatever_they_begin_with(tmp_path):
    table = pd.DataFrame({"=cell": TEXTS, "number": range(6)})
    excel.write_workbook(tmp_path / "unfinished", {"cells": table})
    [sheet] = openpyxl.load_workbook(BytesIO((tmp_path / "unfinished").read_bytes())).worksheets
    rows = list(sheet.iter_rows())
    assert [row[0].value for row in rows] == ["=cell", *TEXTS]
    assert {row[0].data_type for row in rows} == {"s"}
    assert [row[0].quotePrefix for row in rows[:2]] == [True, True]
    assert [row[1].value for row in rows[1:]] == list(range(6))


def test_what_a_sheet_cannot_hold_is_refused(tmp_path, monkeypatch):
    with refusal("control-character"):
        excel.write_workbook(tmp_path / "a", {"cells": pd.DataFrame({"cell": ["\x01"]})})
    monkeypatch.setattr(excel, "MAX_SHEET_ROWS", 6)
    with refusal("too-many-rows", "6"):
        excel.write_workbook(tmp_path / "b", {"cells": pd.DataFrame({"cell": TEXTS})})


@pytest.mark.parametrize(("name", "is_refused"), [("calls.xlsx", True), ("calls.csv", False)])
def test_a_missing_package_is_named(tmp_path, monkeypatch, name, is_refused):
    monkeypatch.setattr(excel, "find_spec", lambda _: None)
    if is_refused:
        with refusal("no-openpyxl", "calls.xlsx"):
            excel.require_openpyxl(tmp_path / name)
    else:
        excel.require_openpyxl(tmp_path / name)
