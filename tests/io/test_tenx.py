"""HDF5 files of 10x Genomics: versions, feature types and damage."""

import h5py
import pytest
from support.inputs import same, tenx_group, write_h5ad, write_tenx_v3
from support.refusal import refusal

from scperformer.io.read import read_cells


def test_types_of_features_are_read(cells, tmp_path):
    cells.var["feature_types"] = ["Gene Expression"] * 57 + ["Antibody Capture"] * 3
    found = read_cells(write_tenx_v3(cells, tmp_path))
    assert same(found, cells)
    assert list(found.var["feature_types"]) == list(cells.var["feature_types"])


def test_several_genomes_are_refused(cells, tmp_path):
    path = tmp_path / "two.h5"
    halves = cells[:, :40].copy(), cells[:, 40:].copy()
    with h5py.File(path, "w") as file:
        for genome, half in zip(("GRCh38", "mm10"), halves, strict=True):
            group = tenx_group(file, genome, half)
            group["genes"] = half.var["gene_ids"].to_numpy().astype("S")
            group["gene_names"] = half.var_names.to_numpy().astype("S")
    with refusal("several-genomes"):
        read_cells(path)


@pytest.mark.parametrize(("part", "value"), [("indices", -1), ("indices", 60), ("indptr", 10**6)])
def test_indices_out_of_bounds_are_refused(part, value, cells, tmp_path):
    path = write_tenx_v3(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        file[f"matrix/{part}"][3] = value
    with refusal("damaged-file"):
        read_cells(path)
    path = write_h5ad(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        file[f"X/{part}"][3] = value
    with refusal("damaged-file"):
        read_cells(path)
