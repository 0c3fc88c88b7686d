"""h5ad files that other programs wrote."""

import h5py
import numpy as np
import pytest
from support.inputs import NUM_CELLS, same, write_h5ad

from scperformer.files import BackedH5ad
from scperformer.files.read import open_cells, read_cells


def drop_encodings(file):
    """As anndata 0.6 and SeuratDisk: nothing says what is what, but for the shape of X."""
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
def test_odd_h5ad_files(change, cells, tmp_path):
    cells.raw = cells.copy()
    cells.obs["label"] = cells.obs["label"].astype("category")
    cells.obsm["X_pca"] = np.zeros((NUM_CELLS, 2))
    path = write_h5ad(cells, tmp_path)
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


def test_what_is_left_out_of_an_odd_file_is_said(cells, tmp_path):
    path = write_h5ad(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        unknown_in_uns(file)
    with pytest.warns(UserWarning, match=r"run.h5ad is not a regular h5ad file \(.*\); it is read without uns/new"):
        read_cells(path)


@pytest.mark.filterwarnings("ignore:.*not a regular h5ad file")
def test_only_a_regular_file_stays_on_disk(cells, tmp_path):
    path = write_h5ad(cells, tmp_path)
    with open_cells(path) as found:
        assert isinstance(found, BackedH5ad)
    with h5py.File(path, "r+") as file:
        lose_index(file)
    with open_cells(path) as found:
        assert same(found, cells)


def test_no_x_but_layers_or_raw(cells, tmp_path):
    cells.layers["counts"] = cells.X.copy()
    cells.raw = cells.copy()
    cells.X = None
    found = read_cells(write_h5ad(cells, tmp_path))
    assert found.X is None
    np.testing.assert_array_equal(found.raw.X.toarray(), found.layers["counts"].toarray())
