"""The sample sheet: encodings and separators, paths relative to it, and what it tells about files."""

import zipfile

import h5py
import pandas as pd
import pytest
from support.refusal import refusal

from scperformer.io.sheet import described_samples, path_in_sheet, read_sheet

ROWS = [
    {"sample": "a", "path": "a.h5ad", "condition": "ctrl"},
    {"sample": "b", "path": "b.h5ad", "condition": "Müller"},
]
TABS = "sample\tpath\tcondition\na\ta.h5ad\tctrl\nb\tb.h5ad\tMüller\n"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("s.tsv", TABS.encode()),
        ("s.csv", TABS.replace("\t", ",").encode("utf-8-sig")),
        ("s.csv", TABS.replace("\t", ";").encode("cp1252")),
        ("s.tsv", (TABS + "\t\t\n").encode()),
    ],
    ids=["tabs", "commas", "semicolons", "empty-line"],
)
def test_rows_are_read_whatever_program_wrote_them(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert read_sheet(tmp_path / name) == ROWS


def test_other_files_are_refused(tmp_path):
    (tmp_path / "s.tsv").write_bytes(b"a\0b")
    with refusal("sheet-text"):
        read_sheet(tmp_path / "s.tsv")
    with refusal("no-file"):
        read_sheet(tmp_path / "t.tsv")
    with refusal("no-file"):
        read_sheet("https://example.org/s.tsv")
    with h5py.File(tmp_path / "run.h5ad", "w"), zipfile.ZipFile(tmp_path / "s.xlsx", "w"):
        pass
    for name in ("run.h5ad", "."):
        with refusal("sheet-kind"):
            read_sheet(tmp_path / name)
    with refusal("damaged-file", "s.xlsx"):
        read_sheet(tmp_path / "s.xlsx")


def test_a_workbook_is_read(tmp_path):
    pytest.importorskip("openpyxl")
    pd.DataFrame(ROWS).assign(number=1).to_excel(tmp_path / "s.xlsx", index=False)
    assert read_sheet(tmp_path / "s.xlsx") == [row | {"number": "1"} for row in ROWS]


def test_files_are_found_by_their_path_from_any_folder(tmp_path, monkeypatch):
    (tmp_path / "s.tsv").write_text(TABS, encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert path_in_sheet("../s.tsv", "a.h5ad") == "../a.h5ad"
    paths = ["../a.h5ad", str(tmp_path / "b.h5ad")]
    assert described_samples("../s.tsv", paths) == {
        paths[0]: {"condition": "ctrl"},
        paths[1]: {"condition": "Müller"},
    }
    with refusal("no-sheet-row"):
        described_samples("../s.tsv", ["a.h5ad"])
