"""MatrixMarket files with the names of genes and cells of 10x Genomics and other tools; damaged files."""

import gzip
import hashlib
from pathlib import Path

import pandas as pd
import pytest
import scipy.io
from scipy import sparse
from support.inputs import NUM_CELLS, NUM_GENES, same, write_mtx
from support.logs import said
from support.refusal import refusal
from threadpoolctl import threadpool_info

from scperformer.base.parallel import cores_wanted
from scperformer.io import mtx
from scperformer.io.read import checksum, default_output, read_cells, require_readable


def damage_mtx(name: str, text: str) -> str:
    """Damage an mtx file (integer, 60 x 30) as the name says."""
    lines = text.splitlines()
    size = next(
        i for i, line in enumerate(lines) if line == f"{NUM_GENES} {NUM_CELLS} {len(lines) - i - 1}"
    )
    match name:
        case "fewer entries":
            del lines[-1]
        case "index outside":
            lines[-1] = "61 1 1"
        case "no number":
            lines[-1] = "60 30 x"
        case "a huge promise":
            lines[size] = f"{NUM_GENES} {NUM_CELLS} 99999999999999"
        case "no sizes":
            del lines[size:]
        case "complex":
            lines[0] = lines[0].replace("integer", "complex")
        case "other sizes":
            lines[size] = lines[size].replace(f"{NUM_GENES} ", "58 ", 1)
    return "\n".join(lines) + "\n"


MTX = {
    "fewer entries": ("damaged-file",),
    "index outside": ("damaged-file", "out of bounds"),
    "no number": ("damaged-file", "Invalid"),
    "a huge promise": ("damaged-file", "99999999999999"),
    "no sizes": ("damaged-file", "Premature EOF"),
    "complex": ("mtx-kind", "coordinate complex general"),
    "other sizes": ("mtx-shape", "58 x 30", "30 barcodes", "60 features"),
}


@pytest.mark.parametrize("damage", MTX)
def test_damaged_mtx_files_are_refused(damage, cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    text = (target / "matrix.mtx").read_text()
    (target / "matrix.mtx").write_text(damage_mtx(damage, text))
    with refusal(*MTX[damage]):
        read_cells(target)


def test_a_folder_with_missing_or_repeated_files_is_refused(cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    (target / "features.tsv").rename(target / "other.tsv")
    with refusal("mtx-names"):
        require_readable(target)
    (target / "GSM2_matrix.mtx.gz").write_bytes(b"")
    with refusal("mtx-folder"):
        require_readable(target)
    (tmp_path / "nothing").mkdir()
    with refusal("unknown-kind"):
        require_readable(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("matrix", "others"),
    [
        ("GSM1.mtx", "GSM1_"),
        ("GSM1_counts.mtx", "GSM1_"),
        ("counts.mtx", ""),
        ("a.Matrix.mtx", "a."),
    ],
)
def test_other_names_of_the_matrix(matrix, others, cells, tmp_path):
    target = write_mtx(cells, tmp_path, prefix=others, zipped=False)
    (target / f"{others}matrix.mtx").rename(target / matrix)
    (target / "UniqueAndMult-EM.txt").write_text("another file")
    for path in (target, target / matrix):
        assert same(read_cells(path), cells)


def test_names_that_unpack_to_too_many_bytes_are_refused(cells, tmp_path, monkeypatch):
    path = write_mtx(cells, tmp_path)
    size = len(gzip.decompress((path / "features.tsv.gz").read_bytes()))
    monkeypatch.setattr(mtx, "MAX_NAMES_BYTES", size)
    assert read_cells(path).shape == cells.shape
    monkeypatch.setattr(mtx, "MAX_NAMES_BYTES", size - 1)
    with refusal("names-too-long"):
        read_cells(path)


# Folders of other tools


def put(path: Path, *columns) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in zip(*columns, strict=True)))


def kb_python(folder, x, cells, names, ids):
    scipy.io.mmwrite(folder / "cells_x_genes.mtx", x)
    put(folder / "cells_x_genes.barcodes.txt", cells)
    put(folder / "cells_x_genes.genes.txt", names)
    put(folder / "cells_x_genes.genes.names.txt", ids)


def alevin_fry(folder, x, cells, names, ids):
    scipy.io.mmwrite(folder / "quants_mat.mtx", x)
    put(folder / "quants_mat_rows.txt", cells)
    put(folder / "quants_mat_cols.txt", names)


def parse(folder, x, cells, names, ids):
    scipy.io.mmwrite(folder / "count_matrix.mtx", sparse.coo_matrix(x))
    genes = pd.DataFrame({"gene_id": ids, "gene_name": names, "genome": "hg38"})
    genes.to_csv(folder / "all_genes.csv", index=False)
    pd.DataFrame({"bc_wells": cells, "sample": "s1"}).to_csv(
        folder / "cell_metadata.csv.gz", index=False
    )


def geo_of_r(folder, x, cells, names, ids):
    scipy.io.mmwrite(folder / "GSM1_matrix.mtx", sparse.coo_matrix(x.T))
    for name, values in (("barcodes", cells), ("genes", names)):
        pd.DataFrame({"x": values}, index=range(1, len(values) + 1)).to_csv(
            folder / f"GSM1_{name}.csv", quoting=2
        )


def expression_atlas(folder, x, cells, names, ids):
    for kind in ("", "normalised_"):
        scipy.io.mmwrite(folder / f"E-1.aggregated_filtered_{kind}counts.mtx", x.T)
        put(folder / f"E-1.aggregated_filtered_{kind}counts.mtx_cols", cells)
        put(folder / f"E-1.aggregated_filtered_{kind}counts.mtx_rows", ids, names)
    return "E-1.aggregated_filtered_counts.mtx"


TOOLS = [kb_python, alevin_fry, expression_atlas, parse, geo_of_r]


@pytest.mark.parametrize("write", TOOLS, ids=lambda write: write.__name__)
def test_folders_of_other_tools(write, cells, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    x = sparse.coo_matrix(cells.X)
    name = write(
        folder, x, list(cells.obs_names), list(cells.var_names), list(cells.var["gene_ids"])
    )
    path = folder / name if name else folder
    assert require_readable(path) == "mtx"
    assert same(read_cells(path), cells)
    rows = [
        f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n"
        for file in mtx.find_matrix(path)
    ]
    assert checksum(path) == hashlib.sha256("".join(rows).encode()).hexdigest()
    assert default_output(folder, ".h5ad") == tmp_path / "run.h5ad"


def write_names(cells, folder, of_cells, of_genes, ending="tsv"):
    """Write the matrix and two files of names, given by their lines; the genes are in rows."""
    folder.mkdir()
    scipy.io.mmwrite(folder / "matrix.mtx", sparse.coo_matrix(cells.X.T))
    for name, lines in (("barcodes", of_cells), ("genes", of_genes)):
        (folder / f"{name}.{ending}").write_text("\n".join(lines) + "\n")
    return folder


def numbered(names, start=1):
    return [f"{number}\t{name}" for number, name in enumerate(names, start)]


def quoted(names):
    return ["\t".join(f'"{field}"' for field in name.split("\t")) for name in names]


# The lines of the cells and of the genes, from their names and pairs of id and symbol.
AS_R_WRITES = {
    "quotes": lambda cells, genes: (quoted(cells), quoted(genes)),
    "quotes around cells": lambda cells, genes: (quoted(cells), genes),
    "single quotes": lambda cells, genes: ([f"'{cell}'" for cell in cells], genes),
    "row numbers": lambda cells, genes: (numbered(cells), numbered(genes)),
    "row numbers from 0": lambda cells, genes: (numbered(cells, 0), genes),
    "row numbers and quotes": lambda cells, genes: (
        quoted(numbered(cells)),
        quoted(numbered(genes)),
    ),
    "a header of genes": lambda cells, genes: (cells, ["ENSEMBL\tSYMBOL", *genes]),
    "a header of cells": lambda cells, genes: (["barcode", *cells], genes),
    "headers": lambda cells, genes: (["x", *cells], ["gene_id\tgene_name", *genes]),
    "write.table": lambda cells, genes: (
        ['"x"', *quoted(numbered(cells))],
        ['"id"\t"name"', *quoted(numbered(genes))],
    ),
    "a header with more fields": lambda cells, genes: (["barcode\tnothing", *cells], genes),
    "a comment after each cell": lambda cells, genes: (
        [f"{cell}\tsample 1" for cell in cells],
        genes,
    ),
}


@pytest.mark.parametrize("case", AS_R_WRITES)
def test_names_as_r_writes_them(case, cells, tmp_path, caplog):
    caplog.set_level("INFO", "scperformer")
    pairs = [
        f"{gene_id}\t{name}"
        for gene_id, name in zip(cells.var["gene_ids"], cells.var_names, strict=True)
    ]
    found = read_cells(
        write_names(cells, tmp_path / "run", *AS_R_WRITES[case](list(cells.obs_names), pairs))
    )
    assert same(found, cells)
    assert list(found.var["gene_ids"]) == list(cells.var["gene_ids"])
    assert bool(said(caplog, "read_cells", "header")) == ("header" in case or case == "write.table")
    assert bool(said(caplog, "read_cells", "row numbers")) == (
        "row numbers" in case or case == "write.table"
    )


def test_csv_files_of_names_with_and_without_a_header(cells, tmp_path):
    names, genes = list(cells.obs_names), list(cells.var_names)
    with_header = write_names(
        cells, tmp_path / "a", ["x", *names], ['"","x"', *(f'"{g}","{g}"' for g in genes)], "csv"
    )
    without = write_names(cells, tmp_path / "b", names, genes, "csv")
    for folder in (with_header, without):
        assert same(read_cells(folder), cells)


def test_a_line_too_many_that_names_a_cell_is_no_header(cells, tmp_path):
    names = list(cells.obs_names)
    folder = write_names(cells, tmp_path / "run", [names[-1], *names], list(cells.var_names))
    with refusal("mtx-shape"):
        read_cells(folder)


@pytest.mark.parametrize(
    "header",
    [
        "coordinate float general",
        "coordinate double general",
        "coordinate int general",
        "Coordinate REAL General",
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_other_spellings_of_the_header(header, zipped, cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    _, *lines = (target / "matrix.mtx").read_bytes().splitlines()
    content = b"\n".join([f"%%MatrixMarket matrix {header}".encode(), *lines])
    (target / "matrix.mtx").write_bytes(gzip.compress(content) if zipped else content)
    assert same(read_cells(target), cells)
    found = read_cells(target / "matrix.mtx")
    assert found.X.sum() == cells.X.sum()


def test_threads_are_those_of_the_job(cells, tmp_path, monkeypatch):
    target = write_mtx(cells, tmp_path, zipped=False)
    seen = []

    def counted(source):
        threads = [each for each in threadpool_info() if each["user_api"] == "scipy"]
        seen.extend(each["num_threads"] for each in threads)
        return scipy.io.mmread(source)

    monkeypatch.setattr(mtx, "mmread", counted)
    with cores_wanted(1):
        mtx.read_mtx(target)
    assert seen == [1]
