"""Tables of text: delimiter, orientation, names, and tables that are refused."""

import gzip
import logging
import re

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.inputs import same, table, write_h5ad
from support.logs import said
from support.refusal import refusal

from scperformer.io import tables
from scperformer.io.axes import known_symbols
from scperformer.io.read import read_cells

# Orientation


GENES = {
    "known symbols": ["HES4", "TNFRSF4", "SSU72", "PARK7"],
    "Ensembl ids": [f"ENSMUSG{i:011d}" for i in range(1, 5)],
}
CELLS = {
    "barcodes": [
        "sample1_AAACATACAACCAC",
        "AAACATTGAGCTAC-1",
        "AAACATTGATCAGC-2",
        "TTTGCATGAGAGGC",
        "GGGGCATGAGAGGC",
    ],
    "numbered cells": [f"cell_{i}" for i in range(5)],
    "runs": [f"SRR{i}" for i in range(100200, 100205)],
}


@pytest.mark.parametrize("of_cells", CELLS)
@pytest.mark.parametrize("of_genes", GENES)
def test_names_show_the_orientation(of_cells, of_genes, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    cells_by_genes = table(CELLS[of_cells], GENES[of_genes])
    cells_by_genes.to_csv(tmp_path / "a.csv")
    cells_by_genes.T.to_csv(tmp_path / "b.csv")
    for name, orientation in (("a.csv", "cells_by_genes"), ("b.csv", "genes_by_cells")):
        found = read_cells(tmp_path / name)
        assert list(found.obs_names) == CELLS[of_cells]
        assert list(found.var_names) == GENES[of_genes]
        np.testing.assert_array_equal(found.X.toarray(), cells_by_genes)
        assert said(caplog, "read_cells", tmp_path / name, "comma", f"orientation={orientation}")


UNDECIDABLE = {
    # the longer axis alone is no evidence
    "numbers on both": (["r0", "r1"], [f"c{i}" for i in range(900)]),
    "series of symbols": ([f"T{i}" for i in range(30)], [f"x{i}" for i in range(20)]),
    "genes on both": (GENES["known symbols"], GENES["known symbols"]),
    "cells on both": (CELLS["barcodes"], CELLS["numbered cells"]),
}


@pytest.mark.parametrize("case", UNDECIDABLE)
def test_ambiguous_names_are_refused(case, tmp_path):
    rows, columns = UNDECIDABLE[case]
    path = tmp_path / "a.csv"
    table(rows, columns).to_csv(path)
    with refusal("table-orientation"):
        read_cells(path)
    assert list(read_cells(path, "cells_by_genes").obs_names) == rows
    assert list(read_cells(path, "genes_by_cells").var_names) == rows


# Tables


def test_leading_columns_about_genes_go_into_var(cells, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    frame = cells.to_df().T
    frame.insert(0, "id", cells.var["gene_ids"])
    frame.insert(1, "Length", 1000)
    frame.to_csv(tmp_path / "a.tsv", sep="\t")
    found = read_cells(tmp_path / "a.tsv")
    assert same(found, cells)
    assert list(found.var["id"]) == list(cells.var["gene_ids"])
    assert said(caplog, "read_cells", "'id'", "'Length'")


ABOUT_CELLS = {
    "n_counts": [10, 20, 30, 40, 50],
    "nFeature_RNA": [1, 2, 3, 4, 5],
    "percent.mt": [0.5, 1.5, 2.5, 3.5, 4.5],
    "RNA_snn_res.0.8": [0, 1, 0, 1, 0],
    "UMAP_1": [-1.0, 2.0, 3.0, 4.0, 5.0],
}


def test_columns_about_cells_go_into_obs(tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    frame = table(CELLS["barcodes"], GENES["known symbols"])
    about = pd.DataFrame(ABOUT_CELLS, index=frame.index)
    labelled = about.assign(cell_type=["B", "T", "B", "T", "NK"])
    labelled.iloc[:, :3].join(frame).join(labelled.iloc[:, 3:]).to_csv(tmp_path / "a.csv")
    found = read_cells(tmp_path / "a.csv")
    np.testing.assert_array_equal(found.X.toarray(), frame)
    pd.testing.assert_frame_equal(
        found.obs, labelled, check_index_type=False, check_dtype=False, check_names=False
    )
    assert said(caplog, "read_cells", "'n_counts'", "'nFeature_RNA'", "'percent.mt'")


def test_no_gene_is_taken_for_a_column_about_cells():
    names = known_symbols()
    assert len(names) > 30_000
    assert [
        name for name in names if tables.ABOUT_CELLS.fullmatch(re.sub(r"\W+", "_", name.lower()))
    ] == []


HOSTILE = [
    "=cmd|' /C calc'!A0",
    "<script>alert(1)</script>",
    "two\nlines",
    'a "quoted", name',
    "x" * 10_000,
    "NA",
    "ä",
]


def test_hostile_names_are_plain_strings(tmp_path):
    frame = table(HOSTILE, GENES["known symbols"])
    frame.to_csv(tmp_path / "a.csv")
    found = read_cells(tmp_path / "a.csv", "cells_by_genes")
    assert list(found.obs_names) == HOSTILE
    adata = ad.AnnData(
        frame.to_numpy(np.float32), obs=frame[[]], var=pd.DataFrame(index=frame.columns)
    )
    assert list(read_cells(write_h5ad(adata, tmp_path)).obs_names) == HOSTILE
    frame.T.to_csv(tmp_path / "b.csv")
    assert list(read_cells(tmp_path / "b.csv", "genes_by_cells").obs_names) == HOSTILE


TABLES = {
    "text in a column": ("c,CD3D,note\na,1,T cell\nb,2,3\n", "table-text", "'note'", "'T cell'"),
    "missing value": ("c,CD3D,CD4\na,1,NA\nb,2,3\n", "table-text", "'CD4'", "'NA'"),
    "decimal commas": ("c;CD3D;CD4\na;1,5;2\nb;2;3\n", "table-text", "'CD3D'", "'1,5'"),
    "a long row": ("c,CD3D,CD4\na,1,2\nb,1,2,3\n", "not-a-table", "3, 3, 4"),
    "a long row, later": ("c,CD3D,CD4\n" + "a,1,2\n" * 40 + "b,1,2,3\n", "ragged-table", "line 4"),
    "a short row, later": ("c,CD3D,CD4\n" + "a,1,2\n" * 40 + "b,1\n", "table-text", "'CD4'"),
    "no names of columns": ("a,1,2\nb,3,7\n", "table-names", "first row", "1, 2"),
    "no names of rows": ("CD3D,CD4\n5,1\n7,2\n", "table-names", "first column", "5, 7"),
    "numbers beside no known genes": (
        "a,x,y\n5,1,2\n7,2,2\n",
        "table-names",
        "first column",
        "5, 7",
    ),
    "prose": ("To be, or not to be,\nthat is the question\n", "not-a-table"),
    "a row of names alone": ("c,CD3D\n", "not-a-table"),
    "latin-1": ("c,CD3D,CD4\nCélula,1,2\nb,3,4\n".encode("latin-1"), "not-utf8", "iconv -f latin1"),
    "utf-16": ("c,CD3D\na,1\n".encode("utf-16"), "unknown-kind", "UTF-16"),
    "blank": (" \n\n", "unknown-kind"),
    "a sheet of Excel": (b"PK\x03\x04" + bytes(30), "unknown-kind", "Excel"),
    "RDS": (gzip.compress(b"X\n\x00\x00\x00\x03"), "damaged-file", "truncated"),
    "cut gzip": (gzip.compress(b"c,CD3D\na,1\n" * 1000)[:-20], "damaged-file"),
    "tar": (gzip.compress(bytes(257) + b"ustar" + bytes(300)), "unknown-kind", "tar"),
    "HDF5 in gzip": (gzip.compress(b"\x89HDF\r\n\x1a\n"), "unknown-kind", "gunzip"),
    "pickle": (b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00c", "unknown-kind"),
}


@pytest.mark.parametrize("case", TABLES)
def test_malformed_tables_are_refused(case, tmp_path):
    content, *refused = TABLES[case]
    path = tmp_path / "a.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with refusal(*refused):
        read_cells(path, "cells_by_genes")


COMMENTS = {
    "BD Rhapsody": "####################\n## BD Pipeline 1.9.1\n## Sample: S1, it's \"one\n####################\n",
    "saved by Excel": "## BD Pipeline,,\n## Sample: S1,,\n",
    "in quotes": '"# Program"\n',
    "line ends of Windows": "# Program\r\n# 2\r\n",
}


@pytest.mark.parametrize("delimiter", [",", "\t"])
@pytest.mark.parametrize("case", COMMENTS)
def test_comments_above_the_header_are_skipped(case, delimiter, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    frame = table(CELLS["barcodes"], GENES["known symbols"])
    (tmp_path / "a.txt").write_text(
        COMMENTS[case] + frame.T.to_csv(sep=delimiter, index_label="GENE")
    )
    found = read_cells(tmp_path / "a.txt")
    assert (list(found.obs_names), list(found.var_names)) == (
        list(frame.index),
        list(frame.columns),
    )
    np.testing.assert_array_equal(found.X.toarray(), frame)
    assert said(caplog, "read_cells", f"; {len(COMMENTS[case].splitlines())}")


NUMBERED = {
    "MERSCOPE": [str(110883424764611924400221639916314253469 + 7919 * i) for i in range(5)],
    "counted": ["1", "2", "3", "4", "5"],
}


@pytest.mark.parametrize("orientation", ["auto", "told"])
@pytest.mark.parametrize("case", NUMBERED)
def test_cells_may_have_numbers_as_names(case, orientation, tmp_path):
    frame = table(NUMBERED[case], GENES["known symbols"])
    for name, wanted, written in (
        ("a.csv", "cells_by_genes", frame),
        ("b.csv", "genes_by_cells", frame.T),
    ):
        written.to_csv(tmp_path / name, index_label="cell")
        found = read_cells(tmp_path / name, wanted if orientation == "told" else "auto")
        assert (list(found.obs_names), list(found.var_names)) == (
            list(frame.index),
            list(frame.columns),
        )
        np.testing.assert_array_equal(found.X.toarray(), frame)


def test_cells_of_cosmx_are_named_as_in_its_other_tables(tmp_path, caplog):
    """Number 0 of a field of view is what lies outside of cells; a row of the long table is a molecule."""
    caplog.set_level(logging.INFO, "scperformer")
    wide = table(range(5), GENES["known symbols"])
    keys = pd.DataFrame({"fov": [1, 1, 1, 2, 2], "cell_ID": [0, 1, 2, 1, 2]})
    keys["cell"] = [
        f"c_1_{fov}_{cell}" for fov, cell in zip(keys["fov"], keys["cell_ID"], strict=True)
    ]
    pd.concat([keys, wide.reset_index(drop=True)], axis=1).to_csv(
        tmp_path / "S1_exprMat_file.csv", index=False
    )
    found = read_cells(tmp_path / "S1_exprMat_file.csv")
    assert list(found.obs_names) == ["c_1_1_1", "c_1_1_2", "c_1_2_1", "c_1_2_2"]
    np.testing.assert_array_equal(found.X.toarray(), wide[1:])
    assert said(caplog, "read_cells", "'cell'", "1 rows of cell_ID 0")
    rows, genes = np.nonzero(wide.to_numpy())
    molecules = keys.iloc[np.repeat(rows, wide.to_numpy()[rows, genes])].assign(
        x_local_px=12.5, CellComp="Nuclear"
    )
    molecules["target"] = np.repeat(wide.columns[genes], wide.to_numpy()[rows, genes])
    for name, left_out in (("tx.csv", []), ("without.csv", ["cell"])):
        molecules.drop(columns=left_out).to_csv(tmp_path / name, index=False)
        long = read_cells(tmp_path / name)
        assert list(long.obs_names) == (
            [*found.obs_names] if name == "tx.csv" else ["1_1", "1_2", "2_1", "2_2"]
        )
        expected = found.to_df().loc[:, (found.X != 0).sum(axis=0).A1 > 0]
        np.testing.assert_array_equal(long.to_df()[expected.columns], expected)


def test_cells_named_by_several_columns(tmp_path, caplog):
    """In files of CosMx, the field of view and the number of the cell in it identify a cell."""
    caplog.set_level(logging.INFO, "scperformer")
    frame = table(range(4), GENES["known symbols"])
    frame.insert(0, "fov", [1, 1, 2, 2])
    frame.insert(1, "cell_ID", [1, 2, 1, 2])
    for name, options in (
        ("a.csv", {}),
        ("b.csv", {"sep": ";", "quoting": 1, "lineterminator": "\r\n"}),
    ):
        frame.to_csv(tmp_path / name, index=False, **options)
        found = read_cells(tmp_path / name)
        assert list(found.obs_names) == ["1_1", "1_2", "2_1", "2_2"]
        assert found.obs.to_dict("list") == {"fov": ["1", "1", "2", "2"], "cell_ID": [1, 2, 1, 2]}
        np.testing.assert_array_equal(found.X.toarray(), frame[GENES["known symbols"]])
    assert said(caplog, "read_cells", "'fov'", "'cell_ID'")
    frame.assign(cell_ID=[1, 1, 2, 2]).to_csv(tmp_path / "c.csv", index=False)
    with refusal("table-names"):
        read_cells(tmp_path / "c.csv")
    # If the first column names each row, further columns only describe the cells.
    frame.to_csv(tmp_path / "d.csv")
    found = read_cells(tmp_path / "d.csv")
    assert list(found.obs_names) == ["0", "1", "2", "3"]
    assert list(found.obs) == ["fov", "cell_ID"]


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_a_very_long_later_line_is_refused(end, tmp_path, monkeypatch):
    path = tmp_path / "run.csv.gz"
    rows = ["cell,CD3D,CD4", *(f"cell_{i},1,{i}" for i in range(3000))]  # 40,000 characters
    monkeypatch.setattr(tables, "MAX_LINE_BYTES", 10**4)
    for length in (9_999, 10_000):
        path.write_bytes(
            gzip.compress(end.join([*rows, "x" * (length - 4) + ",1,2", "cell_,1,2"]).encode())
        )
        if length < 10**4:
            assert read_cells(path).shape == (3002, 2)
            continue
        with refusal("table-text"):
            read_cells(path)


BOMBS = {
    "lines": ("MAX_TABLE_LINES", 1000, "table-text", "1,000 lines"),
    "columns": ("MAX_TABLE_COLUMNS", 2, "too-many-columns", "3 columns"),
    "unpacked": ("EXTRA_MEMORY", -500 * 2**20, "table-text", "500 times"),
}


@pytest.mark.parametrize("orientation", ["auto", "cells_by_genes"])
@pytest.mark.parametrize("case", BOMBS)
def test_a_table_that_is_too_large_is_refused_before_it_is_read(
    case, orientation, tmp_path, monkeypatch
):
    limit, value, *refused = BOMBS[case]
    path = tmp_path / "run.csv.gz"
    lines = ["cell,CD3D,CD4", *(f"cell_{i},1,{i}" for i in range(999))]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    assert read_cells(path, orientation).shape == (999, 2)
    path.write_bytes(gzip.compress("\n".join([*lines, "cell_999,1,1", ""]).encode()))
    monkeypatch.setattr(tables, limit, value)
    with refusal(*refused):
        read_cells(path, orientation)


def made_table(num_cells: int = 25) -> pd.DataFrame:
    cells = [
        f"AAACATACAACC{'ACGT'[i % 4]}{'ACGT'[i // 4 % 4]}{'ACGT'[i // 16]}-1"
        for i in range(num_cells)
    ]
    return table(cells, GENES["known symbols"])


HEADERS = {
    "alone": ("#cell,", ""),
    "below a comment": ("#cell,", "# counts, of genes\n"),
    "as a field that is quoted": ('"#cell",', ""),
    "a comment that fits": ("cell,", "# a comment, with, as many, commas,\n"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_begins_with_a_hash(case, tmp_path):
    corner, comment = HEADERS[case]
    expected = made_table()
    (tmp_path / "a.csv").write_text(comment + corner + expected.to_csv().removeprefix(","))
    assert same(read_cells(tmp_path / "a.csv"), ad.AnnData(expected.astype(float)))


@pytest.mark.parametrize("quote", ["'", '"'])
def test_quotes_around_names_are_removed(quote, tmp_path):
    expected = made_table()
    quoted = expected.rename(
        index=lambda name: f"{quote}{name}{quote}", columns=lambda name: f"{quote}{name}{quote}"
    )
    for name, frame in (("a.tsv", quoted), ("b.tsv", quoted.T)):
        frame.to_csv(tmp_path / name, sep="\t")
        assert same(read_cells(tmp_path / name), ad.AnnData(expected.astype(float)))


def test_columns_of_text_among_numbers_describe_cells_or_genes(tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    expected = made_table()
    with_text = expected.copy()
    with_text.insert(2, "who did it", ["Anna", "Bob", "NA", "Eva", "1 or 2"] * 5)
    with_text.to_csv(tmp_path / "a.csv")
    found = read_cells(tmp_path / "a.csv")
    assert same(found, ad.AnnData(expected.astype(float)))
    assert list(found.obs["who did it"]) == list(with_text["who did it"])
    assert said(caplog, "read_cells", "'who did it'")
    of_genes = expected.T.assign(remark="some text")
    of_genes.to_csv(tmp_path / "b.csv")
    assert list(read_cells(tmp_path / "b.csv").var["remark"]) == ["some text"] * 4
    with_text["who did it"] = ["x", "0"] + ["1"] * 23  # a damaged gene
    with_text.to_csv(tmp_path / "c.csv")
    with refusal("table-text"):
        read_cells(tmp_path / "c.csv")


@pytest.mark.parametrize(
    "columns", [["cell", "gene", "count"], ["gene", "cell", "count"], ["count", "gene", "cell"]]
)
@pytest.mark.parametrize("with_index", [True, False])
def test_a_long_table_is_read(columns, with_index, tmp_path):
    wide = made_table()
    frame = wide.rename_axis("cell").reset_index().melt("cell", var_name="gene", value_name="count")
    frame.sort_values("cell")[columns].to_csv(tmp_path / "a.csv", index=with_index)
    found = read_cells(tmp_path / "a.csv").to_df()
    pd.testing.assert_frame_equal(
        found.loc[wide.index, wide.columns], wide, check_dtype=False, check_names=False
    )
    frame.assign(count=["x", *frame["count"][1:]])[columns].to_csv(
        tmp_path / "b.csv", index=with_index
    )
    with refusal("table-text", "'count'", "'x'"):
        read_cells(tmp_path / "b.csv")
    # A sample with a text about each gene is no long table.
    made_table(1).T.assign(remark="kinase").to_csv(tmp_path / "c.csv")
    assert read_cells(tmp_path / "c.csv").shape == (1, 4)
