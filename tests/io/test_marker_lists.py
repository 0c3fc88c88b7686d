"""Lists of marker genes in all their forms, and wrong ones."""

import zipfile
from pathlib import Path

import pandas as pd
import pytest
from support.refusal import refusal

from scperformer.io.marker_lists import read_marker_list

LISTS = Path(__file__).parents[2] / "data" / "markers"
GENES = {
    "B cell": {"CD79A": 1.0, "MS4A1": 1.0},
    "T cell": {"CD3D": 1.0, "CD3E": 1.0, "MS4A1": -1.0},
}
LONG = 'type,gene,sign\nB cell,CD79A,+\nB cell,MS4A1,\nT cell,"CD3D, CD3E",\nT cell,MS4A1,-\n'
SCTYPE = """tissueType,cellName,geneSymbolmore1,geneSymbolmore2,shortName
Immune,B cell,"CD79A,MS4A1",,B
Immune,T cell,"CD3D,CD3E",MS4A1,T
"""
GARNETT = """# two types
>B cell
expressed: CD79A, MS4A1

>T cell
expressed: CD3D, CD3E
not expressed: MS4A1
"""
TABS = LONG.replace('"CD3D, CD3E"', "CD3D CD3E").replace(",", "\t")
FORMS = {"long.csv": LONG, "sctype.csv": SCTYPE, "garnett.txt": GARNETT, "tabs.tsv": TABS}


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", FORMS)
def test_forms_with_signs(name, tmp_path):
    assert read_marker_list(write(tmp_path, name, FORMS[name])).weights == GENES


@pytest.mark.parametrize("name", ["wide.csv", "sets.gmt", "sheet.xlsx"])
def test_forms_without_signs(name, tmp_path):
    text = "B cell,T cell\nCD79A,CD3D\nMS4A1,CD3E\n,CD2\n"
    if name.endswith(".gmt"):
        text = "B cell\tnone\tCD79A\tMS4A1\nT cell\thttp://x\tCD3D\tCD3E\tCD2\n"
    path = str(tmp_path / name)
    if name.endswith(".xlsx"):
        pd.DataFrame(
            {"B cell": ["CD79A", "MS4A1", None], "T cell": ["CD3D", "CD3E", "CD2"]}
        ).to_excel(path, index=False)
    else:
        write(tmp_path, name, text)
    markers = read_marker_list(path)
    assert {name: list(genes) for name, genes in markers.weights.items()} == {
        "B cell": ["CD79A", "MS4A1"],
        "T cell": ["CD3D", "CD3E", "CD2"],
    }


def test_a_type_has_the_markers_of_its_parents():
    markers = read_marker_list(str(LISTS / "blood.csv"))
    assert "T cell" not in markers.labels
    assert markers.line("CD8 T") == ["T cell", "CD8 T"]
    assert {"CD3D", "CD8A"} <= markers.of_label("CD8 T").keys()


@pytest.mark.parametrize("name", sorted(path.name for path in LISTS.iterdir()))
def test_the_lists_of_the_repository_are_read(name):
    assert len(read_marker_list(str(LISTS / name)).labels) >= 8


WRONG = {
    "nothing": ("marker-list", "\n\n", "nothing"),
    "cells": ("no-types", "a\nb\n", "no cell type"),
    "the same genes twice": (
        "same-markers",
        "type,gene\nB,CD79A\nT,CD3D\nb2,CD79A\n",
        "'B' and 'b2'",
    ),
    "a date": ("gene-date", "type,gene\nB,2-Sep\nT,CD3D\n", "2-Sep"),
    "a weight in words": ("marker-weight", "type,gene,weight\nB,CD79A,much\nT,CD3D,1\n", "much"),
    "two parents": (
        "two-parents",
        "type,gene,parent\nB,CD79A,x\nB,CD19,y\nT,CD3D,\n",
        "'x' and 'y'",
    ),
    "a circle": ("no-types", "type,gene,parent\nB,CD79A,T\nT,CD3D,B\n", "no cell type"),
    "5,000 genes": (
        "many-markers",
        "type,gene\nT,CD3D\n" + "".join(f"B,G{i}\n" for i in range(5000)),
        "5,000",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_lists_are_refused_in_one_line(case, tmp_path):
    code, text, found = WRONG[case]
    path = write(tmp_path, "list.csv", text)
    with refusal(code, found, path):
        read_marker_list(path)


def test_files_that_are_no_lists(tmp_path):
    with refusal("no-file"):
        read_marker_list(str(tmp_path / "none.csv"))
    with zipfile.ZipFile(tmp_path / "x.xlsx", "w") as archive:
        archive.writestr("other.txt", "no workbook")
    with refusal("damaged-file", "x.xlsx"):
        read_marker_list(str(tmp_path / "x.xlsx"))
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00\x80")
    with refusal("sheet-text", "x.csv"):
        read_marker_list(str(tmp_path / "x.csv"))
