"""Files of 10x Genomics' programs: versions, feature types, folders, and damage to them."""

import gzip
import logging

import h5py
import pytest
from support.inputs import NUM_CELLS, NUM_GENES, same, tenx_group, write_h5ad, write_mtx, write_tenx_v3

from scperformer.errors import InputError
from scperformer.files import tenx
from scperformer.files.read import read_cells, require_readable

# 10x


def test_only_gene_expression_is_kept(cells, tmp_path, caplog):
    caplog.set_level(logging.INFO, "scperformer")
    cells.var["feature_types"] = ["Gene Expression"] * 57 + ["Antibody Capture"] * 3
    expected = cells[:, :57]
    assert same(read_cells(write_tenx_v3(cells, tmp_path)), expected)
    assert "features of other types left out (3 Antibody Capture)" in caplog.text
    target = write_mtx(cells, tmp_path, zipped=False)
    text = (target / "features.tsv").read_text().splitlines()
    text[57:] = [line.replace("Gene Expression", "Antibody Capture") for line in text[57:]]
    (target / "features.tsv").write_text("\n".join(text))
    assert same(read_cells(target), expected)
    cells.var["feature_types"] = "Antibody Capture"
    with pytest.raises(InputError, match=r"no features of the type 'Gene Expression' .*60 Antibody Capture"):
        read_cells(write_tenx_v3(cells, tmp_path))


def test_several_genomes(cells, tmp_path):
    path = tmp_path / "two.h5"
    halves = cells[:, :40].copy(), cells[:, 40:].copy()
    with h5py.File(path, "w") as file:
        for genome, half in zip(("GRCh38", "mm10"), halves, strict=True):
            group = tenx_group(file, genome, half)
            group["genes"] = half.var["gene_ids"].to_numpy().astype("S")
            group["gene_names"] = half.var_names.to_numpy().astype("S")
    found = read_cells(path)
    assert same(found, cells)
    assert found.var["genome"].value_counts().to_dict() == {"GRCh38": 40, "mm10": 20}
    with h5py.File(path, "r+") as file:
        file["mm10/barcodes"][0] = b"OTHER-1"
    with pytest.raises(InputError, match=r"different cells for each genome \(GRCh38: 30, mm10: 30\)"):
        read_cells(path)


@pytest.mark.parametrize("name", ["features.tsv", "barcodes.tsv"])
def test_a_line_too_many_is_taken_for_a_header_only_if_it_is_one(name, cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    lines = (target / name).read_text().splitlines()
    header = {"features.tsv": "gene_id\tgene_name\tfeature_type", "barcodes.tsv": "barcode"}[name]
    (target / name).write_text("\n".join([header, *lines]))
    assert same(read_cells(target), cells)
    other = {"features.tsv": "ENSG00000000003\tTSPAN6\tGene Expression", "barcodes.tsv": "ACGTACGTACGTAC-1"}[name]
    (target / name).write_text("\n".join([other, *lines]))
    with pytest.raises(InputError, match=rf"{name} with {len(lines) + 1} lines for {len(lines)} in the matrix"):
        read_cells(target)


def test_repeated_symbols_stay(cells, tmp_path):
    cells.var_names = ["TBCE", "TBCE", *cells.var_names[2:]]
    for write in (write_tenx_v3, write_mtx):
        assert list(read_cells(write(cells, tmp_path)).var_names[:3]) == ["TBCE", "TBCE", "CD2"]


@pytest.mark.parametrize(("part", "value"), [("indices", -1), ("indices", 60), ("indptr", 10**6)])
def test_indices_outside_of_the_matrix(part, value, cells, tmp_path):
    path = write_tenx_v3(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        file[f"matrix/{part}"][3] = value
    with pytest.raises(InputError, match="is damaged"):
        read_cells(path)
    path = write_h5ad(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        file[f"X/{part}"][3] = value
    with pytest.raises(InputError, match="is damaged"):
        read_cells(path)


# Folders


def test_further_columns_of_barcodes_are_read(cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    rows = [f"{name}\t{label}\n" for name, label in cells.obs["label"].items()]
    (target / "barcodes.tsv").write_text("barcode\tlabel\n" + "".join(rows))
    assert list(read_cells(target).obs["label"]) == list(cells.obs["label"])


def damage_mtx(name: str, text: str) -> str:
    """An mtx file (integer, 60 x 30) as damaged as its name says."""
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
    "no sizes": "does not begin as a sparse matrix",
    "complex": "of the kind 'complex general'",
    "other sizes": r"of 58 x 30 beside 30 barcodes and 60 features; .*take the three files of one sample",
}


@pytest.mark.parametrize("damage", MTX)
def test_damaged_mtx(damage, cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    text = (target / "matrix.mtx").read_text()
    (target / "matrix.mtx").write_text(damage_mtx(damage, text))
    with pytest.raises(InputError, match=MTX[damage]) as error:
        read_cells(target)
    assert "\n" not in str(error.value)


def test_decimals_of_an_mtx_file_that_says_integer_are_kept(cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    text = (target / "matrix.mtx").read_text().rstrip().rpartition(" ")[0] + " 2.5\n"
    (target / "matrix.mtx").write_text("\ufeff" + text.replace("\n", "\r\n"))
    assert 2.5 in read_cells(target).X.data


def test_parts_of_a_folder(cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    (target / "features.tsv").rename(target / "other.tsv")
    with pytest.raises(InputError, match=r"no features.tsv or genes.tsv beside .*matrix.mtx"):
        require_readable(target)
    (target / "other.tsv").rename(target / "genes.tsv")
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


def test_the_matrix_beside_others_of_starsolo(cells, tmp_path):
    target = write_mtx(cells, tmp_path, zipped=False)
    (target / "UniqueAndMult-EM.mtx").write_text("another")
    assert same(read_cells(target), cells)


def test_names_that_unpack_to_more_than_names_can_be(cells, tmp_path, monkeypatch):
    path = write_mtx(cells, tmp_path)
    size = len(gzip.decompress((path / "features.tsv.gz").read_bytes()))
    monkeypatch.setattr(tenx, "MOST_NAMES", size)
    assert read_cells(path).shape == cells.shape
    monkeypatch.setattr(tenx, "MOST_NAMES", size - 1)
    with pytest.raises(InputError, match=r"features.tsv.gz of more than [\d,]+ bytes when unpacked"):
        read_cells(path)
