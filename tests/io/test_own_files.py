"""overwrite=true replaces what scperformer has written, and nothing else."""

import gzip
import json
from pathlib import Path

import anndata as ad
import pandas as pd
import pytest
from support.refusal import refusal

from scperformer.io.own_files import is_own, require_replaceable

TABLES = ("calls.csv", "calls.csv.gz", "calls.tsv", "calls.xlsx", "calls.rds", "calls.h5ad")


@pytest.fixture
def words(counts_adata, tiny_model, write) -> tuple[str, ...]:
    return (
        "predict",
        write(counts_adata, "sample.h5ad"),
        f"model_path={tiny_model}",
        "clusters=cell_type",
    )


@pytest.mark.parametrize("name", TABLES)
def test_our_own_output_is_replaced(command, words, tmp_path, name):
    assert command(*words, f"output={name}").code == 0
    first = (tmp_path / name).read_bytes()
    assert is_own(tmp_path / name)
    assert command(*words, f"output={name}", "overwrite=true", "unknown_fpr=0.3").code == 0
    assert (tmp_path / name).read_bytes() != first


def users_file(path: Path, cells: ad.AnnData) -> None:
    """Write a file of the user: their labels of cells, as another program saves them."""
    table = pd.DataFrame({"cell": cells.obs_names, "label": cells.obs["cell_type"].astype(str)})
    if path.suffix == ".h5ad":
        cells.write_h5ad(path)
    elif path.suffix == ".xlsx":
        table.to_excel(path, index=False)
    elif path.suffix == ".rds":
        path.write_bytes(gzip.compress(b"X\n\0\0\0\3\0\4\0\0\0\3\5\0\0\0\0\5UTF-8\0\0\0\xfe"))
    else:
        table.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")


@pytest.mark.parametrize("name", TABLES)
def test_a_file_of_the_user_is_kept(refused, words, counts_adata, tmp_path, name):
    users_file(tmp_path / name, counts_adata)
    before = (tmp_path / name).read_bytes()
    for overwrite in ("false", "true"):
        line = refused(*words, f"output={name}", f"overwrite={overwrite}")
        assert name in line
        assert "overwrite=true" not in line
        assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize(
    "columns",
    [
        "cluster,gene",
        "p_val,avg_log2FC,pct.1,pct.2,p_val_adj,cluster,gene",
        "cluster,cells,calls,confidence,looks_like,markers,name,my notes",
        "cluster,cells,calls,confidence,looks_like,markers,name",
        "T cell: CD3D; CD3E",
        "",
    ],
)
def test_a_list_of_markers_is_kept(refused, words, tmp_path, columns):
    mine = tmp_path / "mine.csv"
    mine.write_text(f"{columns}\n0,CD3D\n")
    line = refused(*words, "markers_output=mine.csv", "overwrite=true")
    assert "mine.csv" in line
    assert "markers_output=" in line
    assert mine.read_text() == f"{columns}\n0,CD3D\n"
    assert not (tmp_path / "sample.annotated.h5ad").exists()


def test_markers_are_replaced(command, words, tmp_path):
    for more in ((), ("overwrite=true", "unknown_fpr=0.3")):
        assert command(*words, "markers_output=m.csv", *more).code == 0
        assert is_own(tmp_path / "m.csv")


@pytest.mark.parametrize("word", ["markers", "marker_list", "marker_file"])
def test_no_option_reads_a_list_of_markers(refused, words, tmp_path, word):
    (tmp_path / "mine.csv").write_text("T cell,CD3D\n")
    line = refused(*words, f"{word}=mine.csv")
    assert "did you mean" not in line
    assert "writes a new table" in line


def test_our_table_that_another_program_changed_is_the_users(command, words, tmp_path):
    paths = {ending: tmp_path / f"calls.{ending}" for ending in ("csv", "xlsx", "h5ad")}
    for path in paths.values():
        assert command(*words, f"output={path.name}").code == 0
    table = pd.read_csv(paths["csv"])
    table.assign(mine="?").to_csv(paths["csv"], index=False)
    pd.read_excel(paths["xlsx"]).to_excel(paths["xlsx"], index=False)
    cells = ad.read_h5ad(paths["h5ad"])
    cells.obs["mine"] = "?"
    cells.write_h5ad(paths["h5ad"])
    for path in paths.values():
        assert not is_own(path)
        with refusal("not-replaced", path.name):
            require_replaceable(path, overwrite=True)
    table.to_csv(paths["csv"], index=False, lineterminator="\r\n")  # as Excel does
    assert not is_own(paths["csv"])


def test_a_page_and_findings(command, words, tmp_path):
    file = words[1]
    assert command(*words, "output=calls.h5ad").code == 0
    outputs = {"page.html": ("report", "calls.h5ad"), "page.xlsx": ("report", "calls.h5ad")}
    outputs |= {"check.json": ("check", file), "prepared.h5ad": ("preprocess", file)}
    for name, step in outputs.items():
        for more in ((), ("overwrite=true",)):
            assert command(*step, f"output={name}", *more).code in (0, 2), name
            assert is_own(tmp_path / name), name
    (tmp_path / "page.html").write_text("<!doctype html><title>Mine</title>")
    (tmp_path / "check.json").write_text(json.dumps({"files": [], "mine": 1}))
    for name in ("page.html", "check.json"):
        before = (tmp_path / name).read_text()
        assert command(*outputs[name], f"output={name}", "overwrite=true").code == 2
        assert (tmp_path / name).read_text() == before


@pytest.mark.parametrize(
    "content", [b"\x1f\x8b\x08\x08", b"PK\x03\x04", b"\x89HDF\r\n\x1a\n", b"\xff\xfe\0", b"\n"]
)
def test_damaged_files_are_the_users(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    assert not is_own(path)


def test_an_empty_file_may_be_replaced(tmp_path):
    (tmp_path / "x.csv").touch()
    require_replaceable(tmp_path / "x.csv", overwrite=True)
