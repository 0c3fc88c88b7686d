"""The UMAP that `predict umap=true` adds: of the embedding, the same in each run, and no earlier one is lost."""

from types import SimpleNamespace

import anndata as ad
import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors
from support.refusal import refusal
from support.tissues import cells_of_tissue
from umap import umap_

import scperformer
from scperformer.annotation import umap


def groups(num: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Points of three groups, and the group of each."""
    rng = np.random.default_rng(0)
    of_point = np.arange(num) % 3
    return (rng.normal(size=(num, 6)) + 12 * np.eye(6)[of_point]).astype(np.float32), of_point


@pytest.mark.parametrize("most", [12_000, 60], ids=["all", "a sample"])
def test_cells_of_a_group_are_neighbours(monkeypatch, most):
    monkeypatch.setattr(umap, "MAX_CELLS", most)
    points, of_point = groups()
    blocks = [SimpleNamespace(embedding=part) for part in np.array_split(points, 7)]
    is_cell = np.arange(120) != 5
    xy, num_cells = umap.place_cells(lambda: iter(blocks), is_cell, seed=0)
    assert (xy.shape, xy.dtype, num_cells) == ((120, 2), np.float32, min(119, most))
    near = NearestNeighbors(n_neighbors=6).fit(xy).kneighbors(xy, return_distance=False)[:, 1:]
    assert (of_point[near] == of_point[:, None]).mean() > 0.95
    np.testing.assert_array_equal(umap.place_cells(lambda: iter(blocks), is_cell, seed=0)[0], xy)
    assert not np.array_equal(umap.place_cells(lambda: iter(blocks), is_cell, seed=1)[0], xy)


def test_few_cells_have_no_umap():
    blocks = [SimpleNamespace(embedding=groups(29)[0])]
    assert umap.place_cells(lambda: iter(blocks), np.ones(29, bool), seed=0) is None


def test_a_file_and_an_anndata_get_the_same_umap(write, tmp_path, monkeypatch, command):
    monkeypatch.delenv("SCPERFORMER_MODEL", raising=False)
    cells = cells_of_tissue("blood", 4)[:, ::4].copy()
    path = write(cells, "sample.h5ad")
    out = tmp_path / "out.h5ad"
    words = ("predict", str(path), "tissue=blood", "umap=true", f"output={out}")
    assert command(*words).code == 0
    written = ad.read_h5ad(out)
    scperformer.annotate(cells, umap=True, options={"tissue": "blood"})
    np.testing.assert_allclose(written.obsm["X_umap"], cells.obsm["X_umap"], atol=1e-3)
    facts = written.uns["scperformer"]["umap"]
    assert (facts["of"], facts["num_cells"], facts["seed"]) == ("X_scperformer", cells.n_obs, 0)
    with refusal("umap-exists", "X_umap"):
        scperformer.annotate(cells, umap=True, key_added="again", options={"tissue": "blood"})
    cells.obsm["X_umap"] = np.zeros((cells.n_obs, 2))
    scperformer.annotate(
        cells, umap=True, key_added="again", overwrite=True, options={"tissue": "blood"}
    )
    assert cells.obsm["X_umap"].any()
    ran = command(*words[:-1], f"output={tmp_path / 'out.csv'}")
    assert (ran.code, "umap=true" in ran.err) == (2, True)


def test_equal_cells_have_places(capfd, monkeypatch):
    """Gaussian weights between them would be no numbers, about which LAPACK prints lines."""
    # to compile them takes longer than to run them
    for name in ("smooth_knn_dist", "compute_membership_strengths"):
        monkeypatch.setattr(f"umap.umap_.{name}", getattr(umap_, name).py_func)
    points = np.repeat(np.random.default_rng(0).normal(size=(20, 5)), 18, axis=0).astype(np.float32)
    assert np.isfinite(umap.place_points(points, 0)).all()
    assert "illegal value" not in "".join(capfd.readouterr())
