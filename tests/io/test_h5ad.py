"""h5ad files: reading regular, irregular and damaged files; writing; matrices that stay on disk."""

from contextlib import ExitStack, nullcontext
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scanpy
import zarr
from anndata.tests.helpers import assert_equal
from support.inputs import NUM_CELLS, nullable, same, write_loom, write_nullable
from support.inputs import write_h5ad as write_h5ad_file

from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.io.h5ad import BackedH5ad, nullable_strings_allowed, open_stored, write_h5ad
from scperformer.io.read import open_cells, read_cells, require_h5ad

OLD_FILE = Path(scanpy.__file__).parent / "datasets" / "10x_pbmc68k_reduced.h5ad"  # anndata before 0.7


# reading


def test_read_equals_anndata(rich, write):
    path = write(rich)
    assert_equal(read_cells(path), ad.read_h5ad(path), exact=True)


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
    with pytest.raises(InputError, match="is damaged"):
        read_cells(path)


def test_only_h5ad_files_pass_require_h5ad(cells, tmp_path):
    require_h5ad(write_h5ad_file(cells, tmp_path))
    with pytest.raises(InputError, match=r"run.loom is of the kind 'loom'; expected an h5ad file: read it with scanpy"):
        require_h5ad(write_loom(cells, tmp_path))


def test_write_h5ad_round_trip(rich, tmp_path):
    path = tmp_path / "new" / "folder" / "out.h5ad"
    write_h5ad(rich, path)
    assert_equal(read_cells(path), rich, exact=True)
    with pytest.raises(InputError, match="exists"):
        write_h5ad(rich, path)


def test_a_column_that_cannot_be_written_is_named(counts_adata, tmp_path):
    counts_adata.obs["mixed"] = pd.Series([1, "a"] * 60, index=counts_adata.obs_names, dtype=object)
    with pytest.raises(
        InputError, match=r"obs\['mixed'\] cannot be written \(.*\); expected numbers alone or text alone"
    ):
        write_h5ad(counts_adata, tmp_path / "out.h5ad")
    assert not list(tmp_path.iterdir())


def test_the_setting_about_nullable_strings_is_reset():
    for before in (False, True):
        with ad.settings.override(allow_write_nullable_strings=before):
            with nullable_strings_allowed(), nullable_strings_allowed():
                assert ad.settings.allow_write_nullable_strings
            assert ad.settings.allow_write_nullable_strings is before


@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_files_with_nullable_names_stay_on_disk(kind, counts_adata, tmp_path):
    path = write_nullable(nullable(counts_adata, missing="obs"), tmp_path / f"run.{kind}")
    stored = open_stored(path)
    expected = [str(name) for name in read_cells(path).obs_names]
    assert stored.n_obs == counts_adata.n_obs
    assert stored.names(0, 5) + stored.names(5, stored.n_obs) == expected
    assert stored.names(2, 5) == ["cell2", "<NA>", "cell4"]
    assert list(map(str, stored.obs_names)) == expected


# files that other programs wrote


def slashes(file, places=("layers",)):
    """Store names with slashes as anndata before 0.13 does."""
    for place in places:
        group = file.require_group(place)
        group.create_group("norm")
        for name in ("norm/log", "norm/a/b"):
            group[name] = np.ones((NUM_CELLS, 60 if place == "layers" else 2))
            group[name].attrs.update({"encoding-type": "array", "encoding-version": "0.2.0"})


PLACES = [("layers",), ("obsm",), ("layers", "obsm")]


@pytest.mark.parametrize("places", PLACES, ids="-".join)
@pytest.mark.parametrize("kind", ["h5ad", "zarr"])
def test_names_with_slashes_are_left_out_with_a_warning(kind, places, cells, tmp_path):
    cells.layers["sound"] = cells.X.copy()
    cells.obs.index = cells.obs.index.astype("string")  # nullable, although no name is missing
    cells.obsm["table"] = cells.obs[["label"]].copy()
    path = write_nullable(cells, tmp_path / f"run.{kind}")
    with h5py.File(path, "r+") if kind == "h5ad" else nullcontext(zarr.open_group(path, mode="r+")) as file:
        if kind == "h5ad":
            slashes(file, places)
        else:
            for place in places:
                inner = file[place].create_group("norm")
                ad.io.write_elem(inner, "log", cells.X if place == "layers" else np.ones((NUM_CELLS, 2)))
    if kind == "zarr":
        zarr.consolidate_metadata(file.store)
    text = ", ".join(f"{place}/norm" for place in places)
    with pytest.warns(UserWarning, match=rf"cannot read names with a slash\); it is read without {text}$"):
        found = read_cells(path)
    assert same(found, cells)
    assert (list(found.layers), list(found.obsm)) == (["sound"], ["table"])
    with ExitStack() as opened:
        with pytest.warns(UserWarning, match=text):
            stored = opened.enter_context(open_cells(path))
        assert isinstance(stored, BackedH5ad) == (kind == "h5ad")
        assert list(stored.layers) == ["sound"]


@pytest.mark.slow
@pytest.mark.parametrize("output", ["h5ad", "zarr"])
@pytest.mark.filterwarnings("ignore::")
def test_copies_of_files_with_slashes_can_be_read(output, counts_adata, write, tiny_model, tmp_path, command):
    counts_adata.layers["sound"] = counts_adata.X.copy()
    counts_adata.obs["a/b"] = np.arange(counts_adata.n_obs)
    counts_adata.uns["a/b"] = "text"
    for place, size in (("layers", 200), ("obsm", 2), ("varm", 2), ("obsp", 120)):
        rows = 200 if place == "varm" else 120
        getattr(counts_adata, place)["c|d"] = np.ones((rows, size))
    counts_adata.raw = counts_adata.copy()
    path = write(counts_adata)
    with h5py.File(path, "r+") as file:
        for place in ("layers", "obsm", "varm", "obsp", "raw/varm"):
            file[place].move("c|d", "c/d")
    before = sha256(path)
    assert command("predict", path, f"model_path={tiny_model}", f"output=out.{output}").code == 0
    assert sha256(path) == before
    found = (ad.read_h5ad if output == "h5ad" else ad.read_zarr)(tmp_path / f"out.{output}")
    assert list(found.layers) == ["sound"]
    assert list(found.obs["a/b" if output == "h5ad" else "a|b"]) == list(range(120))
    assert found.uns["a"] == {"b": "text"}
    assert {*found.obsm} >= {"X_scperformer", "scperformer_proba"}
    assert [len(entries) for entries in (found.varm, found.obsp, found.raw.varm)] == [0, 0, 0]
    assert found.obs["scperformer_label"].notna().all()


def drop_encodings(file):
    """As anndata 0.6 and SeuratDisk write files: only X has an attribute, its shape."""
    file.visititems(lambda _, node: [node.attrs.pop(key, None) for key in ("encoding-type", "encoding-version")])
    file["X"].attrs["h5sparse_format"], file["X"].attrs["h5sparse_shape"] = "csr", file["X"].attrs.pop("shape")


def drop_every_attribute(file):
    file.visititems(lambda _, node: [node.attrs.pop(key) for key in list(node.attrs)])


def old_categories(file):
    group = file["obs"]
    codes, values = group["label/codes"][:], group["label/categories"][:]
    del group["label"]
    group["label"] = codes
    group["__categories/label"] = values
    drop_encodings(file)


def compound_tables(file):
    for name in ("obs", "var"):
        table = np.zeros(len(file[name]["_index"]), dtype=[("index", "S30"), ("number", "i4")])
        table["index"] = file[name]["_index"][:]
        del file[name]
        file[name] = table


def rename_index(file):
    file["obs"].move("_index", "cell_name")
    file["obs"].attrs["_index"] = "cell_name"


def lose_index(file):
    del file["obs"].attrs["_index"]


def misname_index(file):
    file["var"].attrs["_index"] = "nothing_there"


def index_as_list(file):
    file["obs"].attrs["_index"] = np.array(["_index"], dtype=h5py.string_dtype())


def index_as_column(file):
    for name in ("obs", "var", "raw/var"):
        order = ["_index", *file[name].attrs["column-order"]]
        file[name].attrs["column-order"] = np.array(order, dtype=h5py.string_dtype())


def column_twice(file):
    order = [*file["obs"].attrs["column-order"]] * 2
    file["obs"].attrs["column-order"] = np.array(order, dtype=h5py.string_dtype())


def unknown_in_uns(file):
    file["uns"].create_group("new").attrs.update({"encoding-type": "of-the-future", "encoding-version": "9"})


def misshapen_obsm(file):
    del file["obsm/X_pca"]
    file["obsm/X_pca"] = np.zeros((3, 2))


def no_shape(file):
    del file["X"].attrs["shape"]


ODD = {
    change.__name__: change
    for change in (
        *(drop_encodings, drop_every_attribute, old_categories, compound_tables, rename_index, lose_index),
        *(misname_index, index_as_list, index_as_column, column_twice, unknown_in_uns, misshapen_obsm, no_shape),
    )
}


@pytest.mark.parametrize("change", ODD)
@pytest.mark.filterwarnings("ignore:.*not a regular h5ad file")
def test_irregular_h5ad_files_are_read(change, cells, tmp_path):
    cells.raw = cells.copy()
    cells.obs["label"] = cells.obs["label"].astype("category")
    cells.obsm["X_pca"] = np.zeros((NUM_CELLS, 2))
    path = write_h5ad_file(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        ODD[change](file)
    found = read_cells(path)
    assert same(found, cells)
    assert found.raw.shape == cells.shape
    assert found.obs.columns.is_unique
    assert not {"_index"} & {*found.obs, *found.var, *found.raw.var}
    if change != "compound_tables":
        assert list(found.obs["label"]) == list(cells.obs["label"])
    found.write_h5ad(tmp_path / "again.h5ad")
    assert same(read_cells(tmp_path / "again.h5ad"), cells)


def test_a_warning_names_what_is_left_out_of_an_irregular_file(cells, tmp_path):
    path = write_h5ad_file(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        unknown_in_uns(file)
    with pytest.warns(UserWarning, match=r"run.h5ad is not a regular h5ad file \(.*\); it is read without uns/new"):
        read_cells(path)


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
    with pytest.raises(InputError, match=rf"is damaged \(the shape of /{where} does not fit its values\)"):
        read_cells(path)


def test_a_damaged_cell_name_is_found_before_cells_are_annotated(counts_adata, write, tiny_model, command):
    path = write(counts_adata)
    with h5py.File(path) as file:
        place = file["obs/_index"].id.get_offset()  # of the entries (length, heap, number) of the names
    content = bytearray(path.read_bytes())
    content[place + 12 : place + 16] = b"\xff\xff\0\0"
    path.write_bytes(content)
    ran = command("predict", path, f"model_path={tiny_model}", "output=calls.csv")
    assert ran.code == 2, ran.err
    assert ran.err.splitlines()[-1].startswith(f"error: {path} is damaged (Can't synchronously read data")
    assert "annotated in" not in ran.err
    assert not Path("calls.csv").exists()
