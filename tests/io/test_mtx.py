"""MatrixMarket files with the names of genes and cells of 10x Genomics and other tools; damaged files."""

import gzip
import hashlib
from pathlib import Path

import pandas as pd
import pytest
import scipy.io
from scipy import sparse
from support.inputs import NUM_CELLS, NUM_GENES, same, write_mtx

from scperformer.base.errors import InputError
from scperformer.io import mtx
from scperformer.io.read import checksum, default_output, read_cells, require_readable

# Folders of 10x Genomics


@pytest.mark.parametrize("name", ["features.tsv", "barcodes.tsv"])
def test_an_additional_line_must_be_a_header(name, cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    lines = (target / name).read_text().splitlines()
    header = {"features.tsv": "gene_id\tgene_name\tfeature_type", "barcodes.tsv": "barcode"}[name]
    (target / name).write_text("\n".join([header, *lines]))
    assert same(read_cells(target), cells)
    other = {"features.tsv": "ENSG00000000003\tTSPAN6\tGene Expression", "barcodes.tsv": "ACGTACGTACGTAC-1"}[name]
    (target / name).write_text("\n".join([other, *lines]))
    with pytest.raises(InputError, match=rf"{name} with {len(lines) + 1} lines for {len(lines)} in the matrix"):
        read_cells(target)


def damage_mtx(name: str, text: str) -> str:
    """Damage an mtx file (integer, 60 x 30) as the name says."""
    lines = text.splitlines()
    size = next(i for i, line in enumerate(lines) if line == f"{NUM_GENES} {NUM_CELLS} {len(lines) - i - 1}")
    match name:
        case "more entries":
            lines.append("1 1 1")
        case "fewer entries":
            del lines[-1]
        case "negative index":
            lines[-1] = "-1 1 1"
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
    "more entries": "is damaged .*Too many lines",
    "fewer entries": "is truncated",
    "negative index": "out of bounds",
    "index outside": "out of bounds",
    "no number": "Invalid",
    "a huge promise": "is truncated",
    "no sizes": "does not begin like a sparse matrix",
    "complex": "of the kind 'complex general'",
    "other sizes": r"of 58 x 30 beside 30 barcodes and 60 features; .*take the three files of one sample",
}


@pytest.mark.parametrize("damage", MTX)
def test_damaged_mtx_files_are_refused(damage, cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    text = (target / "matrix.mtx").read_text()
    (target / "matrix.mtx").write_text(damage_mtx(damage, text))
    with pytest.raises(InputError, match=MTX[damage]) as error:
        read_cells(target)
    assert "\n" not in str(error.value)


def test_decimals_are_kept_if_the_header_says_integer(cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    text = (target / "matrix.mtx").read_text().rstrip().rpartition(" ")[0] + " 2.5\n"
    (target / "matrix.mtx").write_text("\ufeff" + text.replace("\n", "\r\n"))
    assert 2.5 in read_cells(target).X.data


def test_a_folder_with_missing_or_repeated_files_is_refused(cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    content = (target / "features.tsv").read_text()
    (target / "features.tsv").write_text(content + "one\nmore\n")
    (target / "features.tsv").rename(target / "other.tsv")
    (target / "picture.png").write_bytes(b"\x89PNG\0")
    wanted = r"no features.tsv or genes.tsv beside .*matrix.mtx of 60 x 30, and no other files .*\(seen: "
    with pytest.raises(
        InputError, match=wanted + "barcodes.tsv with 30 lines, other.tsv with 62 lines, picture.png\\)"
    ):
        require_readable(target)
    (target / "other.tsv").unlink()
    (target / "genes.tsv").write_text(content)
    (target / "barcodes.tsv.gz").write_bytes(gzip.compress(b"A\n"))
    with pytest.raises(InputError, match=r"barcodes.tsv and barcodes.tsv.gz beside"):
        require_readable(target)
    (target / "GSM2_matrix.mtx.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"a folder with 2 mtx files .*name the mtx file itself"):
        require_readable(target)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError, match=r"is a folder that holds neither an mtx file nor a zarr store"):
        require_readable(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("matrix", "others"),
    [("GSM1.mtx", "GSM1_"), ("GSM1_counts.mtx", "GSM1_"), ("counts.mtx", ""), ("a.Matrix.mtx", "a.")],
)
def test_other_names_of_the_matrix(matrix, others, cells, tmp_path):
    target = write_mtx(cells, tmp_path, prefix=others, zipped=False)
    (target / f"{others}matrix.mtx").rename(target / matrix)
    for path in (target, target / matrix):
        assert same(read_cells(path), cells)


def test_other_matrices_of_starsolo_are_ignored(cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    (target / "UniqueAndMult-EM.mtx").write_text("another")
    assert same(read_cells(target), cells)


def test_names_that_unpack_to_too_many_bytes_are_refused(cells, tmp_path, monkeypatch):
    path = write_mtx(cells, tmp_path)
    size = len(gzip.decompress((path / "features.tsv.gz").read_bytes()))
    monkeypatch.setattr(mtx, "MAX_NAMES_BYTES", size)
    assert read_cells(path).shape == cells.shape
    monkeypatch.setattr(mtx, "MAX_NAMES_BYTES", size - 1)
    with pytest.raises(InputError, match=r"features.tsv.gz of more than [\d,]+ bytes when unpacked"):
        read_cells(path)


# Folders of other tools


def put(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def lines(*columns, sep="\t", end="\n") -> str:
    return "".join(sep.join(row) + end for row in zip(*columns, strict=True))


def put_matrix(path: Path, x) -> None:
    scipy.io.mmwrite(path, sparse.coo_matrix(x))


def parse(folder, x, cells, names, ids):
    put_matrix(folder / "count_matrix.mtx", x)
    put(folder / "all_genes.csv", "gene_id,gene_name,genome\n" + lines(ids, names, ["hg38"] * len(ids), sep=","))
    put(folder / "cell_metadata.csv", "bc_wells,sample,tscp_count\n" + lines(cells, ["s1"] * 30, ["9"] * 30, sep=","))


def parse_without_symbols(folder, x, cells, names, ids):
    parse(folder, x, cells, ["", *names[1:]], [names[0], *ids[1:]])


def kb_python(folder, x, cells, names, ids):
    put_matrix(folder / "cells_x_genes.mtx", x)
    put(folder / "cells_x_genes.barcodes.txt", lines(cells))
    put(folder / "cells_x_genes.genes.txt", lines(ids))
    put(folder / "cells_x_genes.genes.names.txt", lines(names))


def alevin_fry(folder, x, cells, names, ids):
    put_matrix(folder / "quants_mat.mtx", x)
    put(folder / "quants_mat_rows.txt", lines(cells))
    put(folder / "quants_mat_cols.txt", lines(names))
    put(folder / "barcodes_of_the_run.txt", lines(cells))


def expression_atlas(folder, x, cells, names, ids):
    for kind in ("", "normalised_"):
        put_matrix(folder / f"E-1.aggregated_filtered_{kind}counts.mtx", x.T)
        put(folder / f"E-1.aggregated_filtered_{kind}counts.mtx_cols.gz", lines(cells))
        put(folder / f"E-1.aggregated_filtered_{kind}counts.mtx_rows", lines(ids, names))
    put(folder / "E-1.cells.txt", "cell\n" + lines(cells))
    return "E-1.aggregated_filtered_counts.mtx"


def geo_of_r(folder, x, cells, names, ids):
    put_matrix(folder / "GSM1_matrix.mtx", x.T)
    for name, values in (("barcodes", cells), ("genes", names)):
        pd.DataFrame({"x": values}, index=range(1, len(values) + 1)).to_csv(folder / f"GSM1_{name}.csv.gz", quoting=2)


def geo_of_two_samples(folder, x, cells, names, ids):
    for sample in ("GSM1_a", "GSM2_b"):
        put_matrix(folder / f"{sample}_counts.mtx", x.T)
        put(folder / f"{sample}_cells.csv", lines(cells if "1" in sample else cells[::-1]))
    put(folder / "GSE9_genes.csv", lines(names))
    return "GSM1_a_counts.mtx"


def write_table_of_r(folder, x, cells, names, ids):
    put_matrix(folder / "counts.mtx", x.T)
    for name, values in (("cells", cells), ("genes", names)):
        put(folder / f"{name}.txt", '"x"\n' + lines([f'"{i}" "{value}"' for i, value in enumerate(values, 1)]))


def metadata_of_seurat(folder, x, cells, names, ids):
    put_matrix(folder / "counts.mtx", x.T)
    meta = pd.DataFrame({"orig.ident": "s1", "nCount_RNA": range(30)}, index=cells)
    meta.to_csv(folder / "metadata.csv", quoting=2, lineterminator="\r\n")
    put(folder / "features.tsv", lines(ids, names))


def semicolons_of_windows(folder, x, cells, names, ids):
    put_matrix(folder / "counts.mtx", x)
    put(folder / "barcodes.csv", "\ufeffbarcode;plate\r\n" + lines(cells, ["p1"] * 30, sep=";", end="\r\n"))
    put(folder / "genes.csv", "id;symbol\r\n" + lines(ids, names, sep=";", end="\r\n"))


def dropest(folder, x, cells, names, ids):
    put_matrix(folder / "cell.counts.mtx", x.T)
    put(folder / "cell.counts.genes.tsv", lines(names))
    put(folder / "cell.counts.cells.tsv", lines(cells))


def barcodes_named_as_by_10x(folder, x, cells, names, ids):
    put_matrix(folder / "matrix.mtx", x.T)
    put(folder / "barcodes.tsv", lines(cells))
    put(folder / "annotation.csv", "gene_name,chromosome\n" + lines(names, ["chr1"] * len(names), sep=","))
    put(folder / "README.txt", "of 2 lines\n" * 2)


def numbered_cells_of_unknown_genes(folder, x, cells, names, ids):
    put_matrix(folder / "dge.mtx", x)
    put(folder / "dge_cells.csv", "\n".join(cells) + "\n\n")
    put(folder / "dge_var.csv", lines(names))


TOOLS = [
    *(parse, parse_without_symbols, kb_python, alevin_fry, expression_atlas, geo_of_r, geo_of_two_samples, dropest),
    *(write_table_of_r, metadata_of_seurat, semicolons_of_windows, barcodes_named_as_by_10x),
    numbered_cells_of_unknown_genes,
]


@pytest.mark.parametrize("write", TOOLS, ids=lambda write: write.__name__)
def test_folders_of_other_tools(write, cells, tmp_path):
    if write is numbered_cells_of_unknown_genes:
        cells.obs_names = list(map(str, range(100, 400, 10)))
        cells.var_names = [f"sp{i}.t1" for i in range(NUM_GENES)]
    folder = tmp_path / "run"
    folder.mkdir()
    name = write(folder, cells.X, list(cells.obs_names), list(cells.var_names), list(cells.var["gene_ids"]))
    path = folder / name if name else folder
    assert require_readable(path) == "mtx"
    assert same(read_cells(path), cells)
    rows = [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}\n" for file in mtx.find_matrix(path)]
    assert checksum(path) == hashlib.sha256("".join(rows).encode()).hexdigest()
    assert default_output(folder, ".h5ad") == tmp_path / "run.h5ad"


def test_columns_about_cells_and_genes_of_other_tools_are_read(cells, tmp_path, caplog):
    caplog.set_level("INFO", "scperformer")
    parse(tmp_path, cells.X, list(cells.obs_names), list(cells.var_names), list(cells.var["gene_ids"]))
    found = read_cells(tmp_path)
    assert found.obs.to_dict("list") == {"sample": ["s1"] * 30, "tscp_count": ["9"] * 30}
    assert list(found.var["gene_ids"]) == list(cells.var["gene_ids"])
    assert "(cells in rows; names in cell_metadata.csv, all_genes.csv)" in caplog.text


def test_below_a_header_the_first_unique_column_names_the_cells(cells, tmp_path):
    folder = write_mtx(cells, tmp_path, zipped=False)
    put(folder / "barcodes.tsv", "sample\tbarcode\n" + lines(["s1"] * 30, list(cells.obs_names)))
    found = read_cells(folder)
    assert same(found, cells)
    assert list(found.obs) == ["sample"]


def test_ambiguous_files_beside_a_matrix_are_refused(cells, tmp_path):
    names, barcodes = list(cells.var_names), list(cells.obs_names)
    dropest(tmp_path, cells.X, barcodes, names, None)
    (tmp_path / "cell.counts.genes.tsv").rename(tmp_path / "cell.counts.genes1.tsv")
    put(tmp_path / "cell.counts.genes2.tsv", lines(names))
    with pytest.raises(
        InputError, match=r"several files that fit .*counts.mtx of 60 x 30 \(cell.counts.genes1.tsv, .*2.tsv"
    ):
        read_cells(tmp_path)
    for name in ("genes1", "genes2"):
        (tmp_path / f"cell.counts.{name}.tsv").unlink()
    with pytest.raises(
        InputError, match=r"no .*_barcodes.tsv and .*genes.tsv beside .* \(seen: cell.counts.cells.tsv with 30"
    ):
        read_cells(tmp_path)
    put(tmp_path / "cell.counts.genes.tsv", lines(names[:-1]))
    with pytest.raises(InputError, match=r"genes.tsv with 59 lines"):
        read_cells(tmp_path)


def test_a_square_matrix_of_another_tool_is_refused(cells, tmp_path):
    square = cells[:, :30]
    kb_python(tmp_path, square.X, list(square.obs_names), list(square.var_names), list(square.var["gene_ids"]))
    either = r"named by either of .*names.txt and .*barcodes.txt"
    with pytest.raises(InputError, match=rf"of 30 x 30, whose rows may be {either}"):
        read_cells(tmp_path)


def test_names_of_another_sample_are_not_taken(cells, tmp_path):
    put_matrix(tmp_path / "GSM1_matrix.mtx", cells.X.T)
    put(tmp_path / "GSM2_barcodes.tsv", lines(cells.obs_names))
    put(tmp_path / "GSM2_genes.tsv", lines(cells.var_names))
    with pytest.raises(InputError, match=r"no GSM1_barcodes.tsv and GSM1_features.tsv or GSM1_genes.tsv .*seen: none"):
        read_cells(tmp_path)
