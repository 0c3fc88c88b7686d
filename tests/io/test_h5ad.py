"""h5ad files: reading and writing, damaged files, matrices that stay on disk."""

from importlib.util import find_spec
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scanpy
import zarr
from anndata import AnnData
from anndata.tests.helpers import assert_equal
from support.inputs import nullable, same, write_nullable
from support.inputs import write_h5ad as write_h5ad_file
from support.logs import said
from support.refusal import refusal

from scperformer.base.errors import InputError
from scperformer.io.h5ad import open_stored, write_h5ad
from scperformer.io.read import read_cells

# anndata before 0.7
OLD_FILE = Path(scanpy.__file__).parent / "datasets" / "10x_pbmc68k_reduced.h5ad"


# reading


def test_read_equals_anndata(rich, write):
    path = write(rich)
    assert_equal(read_cells(path, everything=True), ad.read_h5ad(path), exact=True)


def write_both(adata, folder, kind):
    path = folder / f"run.{kind}"
    (adata.write_h5ad if kind == "h5ad" else adata.write_zarr)(path)
    return path, h5py.File(path, "r+") if kind == "h5ad" else zarr.open_group(
        path, use_consolidated=False
    )


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_elements_that_a_step_does_not_need_are_not_read(kind, rich, tmp_path):
    path, file = write_both(rich, tmp_path, kind)
    for name in ("uns", "obsm"):
        file[f"{name}/new"] = np.zeros(3)
        file[f"{name}/new"].attrs.update(
            {"encoding-type": "from-the-future", "encoding-version": "1"}
        )
    if kind == "h5ad":
        record = np.zeros(rich.n_obs, dtype=[("a", "i4"), ("b", "S8")])
        file.create_dataset("obs/record", data=record).attrs.update(file["obs/score"].attrs)
        file["obs"].attrs["column-order"] = [*file["obs"].attrs["column-order"], "record"]
        file.close()
    else:
        zarr.consolidate_metadata(path)
    found = read_cells(path)
    for name in ("uns", "obsm", "varm", "obsp", "varp"):
        assert not getattr(found, name), name
    expected = AnnData(rich.X, rich.obs, rich.var, layers=dict(rich.layers), raw=rich.raw)
    expected.strings_to_categoricals()
    assert_equal(found, expected, exact=True)


AWKWARD = {
    **{"encoding-type": "awkward-array", "encoding-version": "0.1.0", "length": 120},
    "form": '{"class": "NumpyArray", "primitive": "int64", "form_key": "node0"}',
}


@pytest.mark.skipif(find_spec("awkward") is not None, reason="awkward arrays can be read")
@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_an_element_for_which_a_package_is_missing(kind, rich, tiny_model, command, tmp_path):
    path, file = write_both(rich, tmp_path, kind)
    group = file.create_group("obsm/ragged")
    group["node0-data"] = np.arange(120)
    group.attrs.update(AWKWARD)
    file["uns/new"] = np.zeros(3)
    file["uns/new"].attrs.update({"encoding-type": "from-the-future", "encoding-version": "1"})
    if kind == "h5ad":
        file.close()
    else:
        zarr.consolidate_metadata(path)
    ran = command("predict", path, f"model_path={tiny_model}", "output=out.zarr")
    assert ran.code == 0, ran.err
    assert "/obsm/ragged" in ran.err
    assert "/uns/new" in ran.err
    assert {"X_umap", "X_scperformer"} <= set(ad.read_zarr(tmp_path / "out.zarr").obsm)
    options = ["label_key=cell_type", "experiment=linear", "output=new.model"]
    for step in (["preprocess", path, "output=prepared.h5ad"], ["train", path, *options]):
        ran = command(*step)
        assert ran.code == 0, ran.err


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_a_file_that_takes_more_memory_than_the_machine_has(
    kind, rich, tmp_path, monkeypatch, command
):
    path, _ = write_both(rich, tmp_path, kind)
    num_bytes = rich.layers["dense"].nbytes
    monkeypatch.setattr("scperformer.io.h5ad.machine_memory", lambda: num_bytes)
    with refusal("no-memory"):
        read_cells(path)
    (tmp_path / "good").mkdir()
    good, _ = write_both(
        AnnData(rich.X, rich.obs[["cell_type"]], rich.var), tmp_path / "good", kind
    )
    ran = command("check", path, good, "label_key=cell_type")
    found, found_good = ran.out.split(f"{good}\n")  # a row for each file
    assert "as this machine has" in found
    assert "as this machine has" not in found_good


def test_a_zarr_store_that_declares_far_more_than_it_stores(rich, tmp_path):
    path, file = write_both(rich, tmp_path, "zarr")
    for number in range(3):
        file.create_array(
            f"uns/{number}", shape=(2**27,), chunks=(2**20,), dtype="f4", fill_value=1
        )
    zarr.consolidate_metadata(path)
    with refusal("damaged-file"):
        read_cells(path)


def test_read_old_format_without_warnings(recwarn):
    adata = read_cells(OLD_FILE)
    assert adata.shape == (700, 765)
    assert len(recwarn) == 0


def test_read_keeps_repeated_cell_names_and_warns_once(counts_adata, write, recwarn):
    names = ["same", "same", *counts_adata.obs_names[2:]]
    counts_adata.obs_names = names
    path = write(counts_adata)
    recwarn.clear()
    assert list(read_cells(path).obs_names) == names
    assert [str(warning.message) for warning in recwarn] == [
        f"1 cell names in {path} repeat earlier ones; they are kept as they are"
    ]


def test_unreadable_files_are_errors_of_one_line(counts_adata, write, tmp_path):
    whole = write(counts_adata).read_bytes()
    (tmp_path / "half.h5ad").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.h5ad").write_bytes(b"")
    (tmp_path / "text.h5ad").write_text("cell,gene\n")
    with h5py.File(tmp_path / "tenx.h5", "w") as file:
        file.create_group("matrix")
    write(counts_adata[:0], "nocells.h5ad")
    write(counts_adata[:, :0], "nogenes.h5ad")
    cases = {
        "missing.h5ad": r"no file .*missing.h5ad",
        ".": "is a folder",
        "half.h5ad": r"half.h5ad is truncated; expected a complete HDF5 file: copy or download it again",
        "empty.h5ad": r"is empty",
        "text.h5ad": "is not an HDF5 file",
        "tenx.h5": r"of an unknown kind \(it holds matrix\).*scanpy",
        "nocells.h5ad": r"no cells in .*\(0 cells x 200 genes\)",
        "nogenes.h5ad": r"no genes in .*\(120 cells x 0 genes\)",
    }
    for name, match in cases.items():
        with pytest.raises(InputError, match=match) as error:
            read_cells(tmp_path / name)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["length", "encoding", "compressed"])
def test_damaged_content_is_an_error(counts_adata, tmp_path, damage):
    path = tmp_path / "bad.h5ad"
    counts_adata.write_h5ad(path, compression="gzip")
    with h5py.File(path, "r+") as file:
        if damage == "length":
            del file["obs/cell_type"]
        elif damage == "encoding":
            file["obs/cell_type"].attrs["encoding-type"] = "from-the-future"
        else:
            start = file["X/data"].id.get_chunk_info(0).byte_offset
    if damage == "compressed":
        content = bytearray(path.read_bytes())
        content[start : start + 50] = b"\xff" * 50
        path.write_bytes(content)
    with refusal("damaged-file"):
        read_cells(path)


def test_write_h5ad_round_trip(rich, tmp_path):
    path = tmp_path / "new" / "folder" / "out.h5ad"
    write_h5ad(rich, path)
    assert_equal(read_cells(path, everything=True), rich, exact=True)
    with refusal("output-exists"):
        write_h5ad(rich, path)


def test_a_column_that_cannot_be_written_is_named(counts_adata, tmp_path):
    counts_adata.obs["mixed"] = pd.Series([1, "a"] * 60, index=counts_adata.obs_names, dtype=object)
    with refusal("not-writable"):
        write_h5ad(counts_adata, tmp_path / "out.h5ad")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_files_with_nullable_names_stay_on_disk(kind, counts_adata, tmp_path):
    path = write_nullable(nullable(counts_adata, missing="obs"), tmp_path / f"run.{kind}")
    stored = open_stored(path)
    expected = [str(name) for name in read_cells(path).obs_names]
    assert stored.n_obs == counts_adata.n_obs
    assert stored.names(0, 5) + stored.names(5, stored.n_obs) == expected
    assert stored.names(2, 5) == ["cell2", "<NA>", "cell4"]
    assert list(map(str, stored.obs_names)) == expected


def test_a_layer_with_a_slash_in_its_name_is_left_out(cells, tmp_path, caplog):
    """anndata before 0.13 writes such a layer as a group, and cannot read it."""
    cells.raw = cells.copy()
    cells.layers["counts"] = cells.X.copy()
    path = write_h5ad_file(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        ad.io.write_elem(file["layers"].create_group("norm"), "log", cells.X)
    found = read_cells(path)
    assert same(found, cells)
    assert (list(found.layers), found.raw.shape) == (["counts"], cells.shape)
    assert said(caplog, "_read_parts", path, "/layers/norm")


def test_names_of_genes_in_raw_as_seurat_disk_writes_them(cells, tmp_path):
    """Of an SCT assay: `raw/var` has a column of names, and nothing that marks it as a table."""
    raw = cells.copy()
    raw.var = raw.var[[]].assign(mean=0.5)
    cells.raw = raw
    path = write_h5ad_file(cells[:, :9].copy(), tmp_path)
    with h5py.File(path, "r+") as file:
        for name in list(file["raw/var"].attrs):
            del file["raw/var"].attrs[name]
    assert list(read_cells(path).raw.var_names) == list(raw.var_names)
    assert list(open_stored(path).raw.var.index) == list(raw.var_names)


def test_no_x_but_layers_or_raw(cells, tmp_path):
    cells.layers["counts"] = cells.X.copy()
    cells.raw = cells.copy()
    cells.X = None
    found = read_cells(write_h5ad_file(cells, tmp_path))
    assert found.X is None
    np.testing.assert_array_equal(found.raw.X.toarray(), found.layers["counts"].toarray())


@pytest.mark.parametrize("where", ["X", "layers/counts"])
def test_a_sparse_matrix_that_declares_a_wrong_number_of_cells(where, rich, write):
    """It is refused before a matrix of this shape is allocated: 10^12 cells would take 8 TB."""
    path = write(rich)
    with h5py.File(path, "r+") as file:
        file[where].attrs["shape"] = [10**12, rich.n_vars]
    with refusal("damaged-file", where):
        read_cells(path)


def test_a_damaged_cell_name_is_found_before_cells_are_annotated(
    counts_adata, write, tiny_model, command
):
    path = write(counts_adata)
    with h5py.File(path) as file:
        # of the entries (length, heap, number) of the names
        place = file["obs/_index"].id.get_offset()
    content = bytearray(path.read_bytes())
    content[place + 12 : place + 16] = b"\xff\xff\0\0"
    path.write_bytes(content)
    ran = command("predict", path, f"model_path={tiny_model}", "output=calls.csv")
    assert ran.code == 2, ran.err
    assert ran.err.splitlines()[-1].startswith(
        f"error: {path} is damaged (Can't synchronously read data"
    )
    assert "annotated in" not in ran.err
    assert not Path("calls.csv").exists()
