"""Adding to a copy of an h5ad file that leaves the rest bit for bit, and blocks that are never in memory together."""

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import pytest

from scperformer.errors import InputError
from scperformer.files import read_cells, sha256
from scperformer.prediction.write_h5ad import Blocks, add_to_h5ad


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
def added(rich):
    """Entries that a step might add."""
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


def test_added_keys_are_read_back(rich, write, added, tmp_path):
    source = write(rich)
    add_to_h5ad(source, tmp_path / "out.h5ad", **added)
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
    digest = sha256(source)
    add_to_h5ad(source, tmp_path / "out.h5ad", **added)
    assert sha256(source) == digest
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
    add_to_h5ad(source, tmp_path / "out.h5ad", obs=obs, obsm={"X_k": np.ones((bare.n_obs, 2))}, uns={"k": {}})
    result = read_cells(tmp_path / "out.h5ad")
    assert (list(result.obs), list(result.obsm), list(result.uns)) == (["k"], ["X_k"], ["k"])


def test_existing_keys_are_refused_or_replaced(rich, write, added, tmp_path):
    source = write(rich)
    first, second = tmp_path / "first.h5ad", tmp_path / "second.h5ad"
    add_to_h5ad(source, first, **added)
    with pytest.raises(InputError, match=r"already has obs\['new_label'\], .* and 3 more;.*overwrite=true"):
        add_to_h5ad(first, second, **added)
    assert not second.exists()
    added["obs"]["new_label"] = pd.Categorical(["z"] * rich.n_obs)
    add_to_h5ad(first, second, **added, overwrite_keys=True)
    result = ad.read_h5ad(second)
    assert list(result.obs) == list(ad.read_h5ad(first).obs)
    assert set(result.obs["new_label"]) == {"z"}


def test_source_may_be_the_target_with_overwrite(rich, write, added):
    source = write(rich)
    with pytest.raises(InputError, match="exists"):
        add_to_h5ad(source, source, **added)
    add_to_h5ad(source, source, **added, overwrite=True)
    assert "new_label" in ad.read_h5ad(source).obs


def test_other_cells_are_refused(rich, write, added, tmp_path):
    source = write(rich[::-1])
    with pytest.raises(InputError, match="are not those that were annotated"):
        add_to_h5ad(source, tmp_path / "out.h5ad", **added)
    assert [path.name for path in tmp_path.iterdir()] == ["sample.h5ad"]


def test_blocks_are_stored_like_the_whole(rich, write, added, tmp_path):
    whole, parts = tmp_path / "whole.h5ad", tmp_path / "parts.h5ad"
    source = write(rich)
    obs, uns = added["obs"], added["uns"]
    embedding, proba = added["obsm"]["X_new"], added["obsm"]["new_proba"].astype(np.float32)
    add_to_h5ad(source, whole, obs=obs, obsm={"X_new": embedding, "new_proba": proba}, uns=uns)
    columns = ["CD8+|CD45RA+ T", "b"]
    blocks = {
        "X_new": Blocks(lambda: np.array_split(embedding, 7), 4),
        "new_proba": Blocks(lambda: np.array_split(proba.to_numpy(), 5), 2, columns),
    }
    add_to_h5ad(source, parts, obs=obs.reset_index(drop=True), obsm=blocks, uns=uns)
    assert stored(parts) == stored(whole)
    pd.testing.assert_frame_equal(blocks["new_proba"].in_memory(rich.obs_names), proba.set_axis(columns, axis=1))
    add_to_h5ad(parts, parts, obs=obs, obsm=blocks, uns=uns, overwrite=True, overwrite_keys=True)
    assert stored(parts) == stored(whole)


def test_a_number_of_cells_that_is_not_the_files_is_refused(rich, write, tmp_path):
    obs = pd.DataFrame({"k": np.ones(rich.n_obs - 1)})
    with pytest.raises(InputError, match="are not those that were annotated"):
        add_to_h5ad(write(rich), tmp_path / "out.h5ad", obs=obs, obsm={}, uns={})
