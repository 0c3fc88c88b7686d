"""Reading with clear errors; adding to a copy that leaves the rest bit for bit."""

import hashlib
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest
import scanpy
from anndata.tests.helpers import assert_equal

from scperformer import io
from scperformer.errors import InputError

OLD_FILE = Path(scanpy.__file__).parent / "datasets" / "10x_pbmc68k_reduced.h5ad"  # anndata before 0.7


def stored(path):
    """Every dataset and attribute of an HDF5 file: name -> bytes, type and shape, or the attribute's value."""
    content = {}

    def add(name, node):
        if isinstance(node, h5py.Dataset):
            values = np.asarray(node[()])
            raw = repr(values.tolist()) if node.dtype.hasobject else values.tobytes()
            content[name] = (raw, str(node.dtype), node.shape)
        for key, value in node.attrs.items():
            content[f"{name}@{key}"] = repr(np.asarray(value).tolist())

    with h5py.File(path, "r") as file:
        file.visititems(add)
    return content


@pytest.fixture
def rich(counts_adata):
    """An AnnData that uses every place: X, layers, raw, obs of many types, obsm, obsp, varm, uns."""
    adata = counts_adata
    rng = np.random.default_rng(2)
    adata.raw = adata.copy()
    adata.layers["counts"] = adata.X.astype(np.int32)
    adata.layers["dense"] = rng.normal(size=adata.shape)
    adata.obs["score"] = rng.normal(size=adata.n_obs)
    adata.obs["flag"] = rng.random(adata.n_obs) < 0.5
    adata.obs["text"] = [f"t{i}" for i in range(adata.n_obs)]
    adata.obs["ordered"] = pd.Categorical(["low"] * adata.n_obs, ["low", "unused"], ordered=True)
    adata.obs["maybe"] = pd.array([True, None] * (adata.n_obs // 2), dtype="boolean")
    adata.obsm["X_umap"] = rng.normal(size=(adata.n_obs, 2))
    adata.varm["PCs"] = rng.normal(size=(adata.n_vars, 3))
    adata.obsp["distances"] = adata.X @ adata.X.T
    adata.uns["nested"] = {"a": {"b": np.arange(3)}, "text": "x"}
    return adata


@pytest.fixture
def added(rich):
    """What a step might add."""
    num = rich.n_obs
    obs = pd.DataFrame(
        {
            "new_label": pd.Categorical(np.array(["a", "b"])[np.arange(num) % 2], ["a", "b", "c"]),
            "new_confidence": np.linspace(0, 1, num, dtype=np.float32),
            "new_unknown": np.arange(num) % 3 == 0,
        },
        index=rich.obs_names,
    )
    proba = pd.DataFrame(np.eye(num)[:, :2], columns=["CD8+/CD45RA+ T", "b"], index=rich.obs_names)
    obsm = {"X_new": np.arange(num * 4, dtype=np.float32).reshape(num, 4), "new_proba": proba}
    uns = {"new": {"labels": np.array(["a", "b"]), "total": float("nan"), "model": {"name": "m"}}}
    return {"obs": obs, "obsm": obsm, "uns": uns}


# reading


def test_read_gives_what_anndata_gives(rich, write):
    path = write(rich)
    assert_equal(io.read_h5ad(path), ad.read_h5ad(path), exact=True)


def test_read_old_format_without_warnings(recwarn):
    adata = io.read_h5ad(OLD_FILE)
    assert adata.shape == (700, 765)
    assert len(recwarn) == 0


def test_read_keeps_repeated_cell_names_and_warns_once(counts_adata, write, recwarn):
    names = ["same", "same", *counts_adata.obs_names[2:]]
    counts_adata.obs_names = names
    path = write(counts_adata)
    recwarn.clear()
    assert list(io.read_h5ad(path).obs_names) == names
    assert [str(warning.message) for warning in recwarn] == [
        f"1 cell names in {path} repeat earlier ones; they are kept as they are"
    ]


def test_read_errors_are_one_line(counts_adata, write, tmp_path):
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
        "half.h5ad": r"half.h5ad is truncated; expected a complete h5ad file: copy or download it again",
        "empty.h5ad": r"is empty \(0 bytes\)",
        "text.h5ad": "is not an HDF5 file",
        "tenx.h5": r"without obs and var \(it holds matrix\).*read_10x_h5",
        "nocells.h5ad": r"no cells in .*\(0 cells x 200 genes\)",
        "nogenes.h5ad": r"no genes in .*\(120 cells x 0 genes\)",
    }
    for name, match in cases.items():
        with pytest.raises(InputError, match=match) as error:
            io.read_h5ad(tmp_path / name)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["length", "encoding", "compressed"])
def test_read_damaged_content(counts_adata, tmp_path, damage):
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
        io.read_h5ad(path)


def test_truncated_real_file(shared_data, tmp_path):
    content = (shared_data / "pbmc3k.h5ad").read_bytes()
    path = tmp_path / "half.h5ad"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="is truncated"):
        io.read_h5ad(path)


def test_sha256(tmp_path):
    content = bytes(range(256)) * 1000
    (tmp_path / "f").write_bytes(content)
    assert io.sha256(tmp_path / "f") == hashlib.sha256(content).hexdigest()


# adding


def test_added_keys_are_read_back(rich, write, added, tmp_path):
    source = write(rich)
    io.add_to_h5ad(source, tmp_path / "out.h5ad", **added)
    result, before = ad.read_h5ad(tmp_path / "out.h5ad"), ad.read_h5ad(source)
    assert list(result.obs) == [*before.obs, "new_label", "new_confidence", "new_unknown"]
    pd.testing.assert_frame_equal(result.obs[list(added["obs"])], added["obs"])
    np.testing.assert_array_equal(result.obsm["X_new"], added["obsm"]["X_new"])
    assert list(result.obsm["new_proba"].columns) == ["CD8+|CD45RA+ T", "b"]  # "/" would be a folder
    np.testing.assert_array_equal(result.obsm["new_proba"], added["obsm"]["new_proba"])
    assert list(result.uns["new"]["labels"]) == ["a", "b"]
    assert np.isnan(result.uns["new"]["total"])
    assert result.uns["new"]["model"]["name"] == "m"


def test_adding_leaves_everything_else_bit_for_bit(rich, write, added, tmp_path):
    source = write(rich)
    digest = io.sha256(source)
    io.add_to_h5ad(source, tmp_path / "out.h5ad", **added)
    assert io.sha256(source) == digest
    before, after = stored(source), stored(tmp_path / "out.h5ad")
    changed = {name for name in before if after.get(name) != before[name]}
    assert changed == {"obs@column-order"}
    ours = ("obs/new_", "obsm/X_new", "obsm/new_proba", "uns/new")
    assert all(name.startswith(ours) for name in after.keys() - before.keys())


def test_adding_to_a_bare_file(counts_adata, write, tmp_path):
    """No obs columns, no obsm, no uns in the file."""
    bare = ad.AnnData(counts_adata.X)
    source = write(bare)
    with h5py.File(source, "r+") as file:
        del file["obsm"], file["uns"]
    obs = pd.DataFrame({"k": np.ones(bare.n_obs)}, index=bare.obs_names)
    io.add_to_h5ad(source, tmp_path / "out.h5ad", obs=obs, obsm={"X_k": np.ones((bare.n_obs, 2))}, uns={"k": {}})
    result = io.read_h5ad(tmp_path / "out.h5ad")
    assert (list(result.obs), list(result.obsm), list(result.uns)) == (["k"], ["X_k"], ["k"])


def test_adding_to_an_old_file_keeps_its_values(tmp_path):
    before = io.read_h5ad(OLD_FILE)
    obs = pd.DataFrame({"k": pd.Categorical(["a"] * 700)}, index=before.obs_names)
    proba = pd.DataFrame(np.ones((700, 1)), columns=["a"], index=before.obs_names)
    io.add_to_h5ad(OLD_FILE, tmp_path / "new.h5ad", obs=obs, obsm={"k_proba": proba}, uns={"k": {"x": 1}})
    after = io.read_h5ad(tmp_path / "new.h5ad")
    assert list(after.obs["k"].unique()) == ["a"]
    assert list(after.obsm["k_proba"].columns) == ["a"]
    del after.obs["k"], after.obsm["k_proba"], after.uns["k"]
    assert_equal(after, before)  # not exact: PCs hold NaN


def test_existing_keys_are_refused_or_replaced(rich, write, added, tmp_path):
    source = write(rich)
    first, second = tmp_path / "first.h5ad", tmp_path / "second.h5ad"
    io.add_to_h5ad(source, first, **added)
    with pytest.raises(InputError, match=r"already has obs\['new_label'\], .* and 3 more;.*overwrite=true"):
        io.add_to_h5ad(first, second, **added)
    assert not second.exists()
    added["obs"]["new_label"] = pd.Categorical(["z"] * rich.n_obs)
    io.add_to_h5ad(first, second, **added, overwrite_keys=True)
    result = ad.read_h5ad(second)
    assert list(result.obs) == list(ad.read_h5ad(first).obs)
    assert set(result.obs["new_label"]) == {"z"}


def test_existing_keys_of_an_old_file_are_refused(tmp_path):
    names = io.read_h5ad(OLD_FILE).obs_names
    obs = pd.DataFrame({"louvain": np.ones(700)}, index=names)
    with pytest.raises(InputError, match=r"already has obs\['louvain'\]"):
        io.add_to_h5ad(OLD_FILE, tmp_path / "new.h5ad", obs=obs, obsm={}, uns={})


def test_source_may_be_the_target_with_overwrite(rich, write, added):
    source = write(rich)
    with pytest.raises(InputError, match="exists"):
        io.add_to_h5ad(source, source, **added)
    io.add_to_h5ad(source, source, **added, overwrite=True)
    assert "new_label" in ad.read_h5ad(source).obs


def test_other_cells_are_refused(rich, write, added, tmp_path):
    source = write(rich[::-1])
    with pytest.raises(InputError, match="are not those that were annotated"):
        io.add_to_h5ad(source, tmp_path / "out.h5ad", **added)
    assert [path.name for path in tmp_path.iterdir()] == ["sample.h5ad"]


def test_write_h5ad_round_trip(rich, tmp_path):
    path = tmp_path / "new" / "folder" / "out.h5ad"
    io.write_h5ad(rich, path)
    assert_equal(io.read_h5ad(path), rich, exact=True)
    with pytest.raises(InputError, match="exists"):
        io.write_h5ad(rich, path)
