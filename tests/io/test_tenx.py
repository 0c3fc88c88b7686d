"""HDF5 files of 10x Genomics: versions, feature types and damage."""

import logging

import h5py
import pytest
from support.inputs import same, tenx_group, write_h5ad, write_mtx, write_tenx_v3

from scperformer.base.errors import InputError
from scperformer.io.read import read_cells


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


def test_several_genomes_are_refused(cells, tmp_path):
    path = tmp_path / "two.h5"
    halves = cells[:, :40].copy(), cells[:, 40:].copy()
    with h5py.File(path, "w") as file:
        for genome, half in zip(("GRCh38", "mm10"), halves, strict=True):
            group = tenx_group(file, genome, half)
            group["genes"] = half.var["gene_ids"].to_numpy().astype("S")
            group["gene_names"] = half.var_names.to_numpy().astype("S")
    with pytest.raises(InputError, match=r"several genomes \(GRCh38, mm10\)"):
        read_cells(path)


@pytest.mark.parametrize(("part", "value"), [("indices", -1), ("indices", 60), ("indptr", 10**6)])
def test_indices_out_of_bounds_are_refused(part, value, cells, tmp_path):
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
