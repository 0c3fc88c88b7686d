"""The cells on the map: their expression, coordinates and markers, compared with scanpy."""

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
from scipy import sparse
from sklearn.neighbors import NearestNeighbors
from support.annotated import annotated_sample, write_sample
from support.logs import said

from scperformer.results.cell_map import MIN_CELLS, draw_cells, find_markers, read_expression, umap
from scperformer.results.read_annotations import Annotated, read_annotated


def counts_sample(pbmc: ad.AnnData, first: int, num_cells: int, num_genes: int) -> ad.AnnData:
    """Return annotated cells with the counts of other, real cells in X."""
    annotated = annotated_sample(first, num_cells)
    cells = pbmc[first : first + num_cells, :num_genes]
    entries = {"obsm": dict(annotated.obsm), "uns": dict(annotated.uns)}
    sample = ad.AnnData(cells.X.copy(), obs=annotated.obs, var=cells.var[[]], **entries)
    sample.uns["scperformer"]["input"] |= {"source": "X", "kind": "counts"}
    return sample


@pytest.fixture(scope="module")
def pbmc3k() -> ad.AnnData:
    return ad.read_h5ad(Path(__file__).parents[2] / "data" / "pbmc3k.h5ad")[:1000]


@pytest.fixture(scope="module")
def cells(pbmc3k) -> list[ad.AnnData]:
    """Two samples: one with 3,000 genes, and one with 2,000 of these."""
    return [counts_sample(pbmc3k, 0, 60, 3000), counts_sample(pbmc3k, 60, 50, 2000)]


@pytest.fixture(scope="module")
def samples(cells, tmp_path_factory) -> list[Annotated]:
    folder = tmp_path_factory.mktemp("samples")
    paths = [write_sample(folder, f"s{number}", sample) for number, sample in enumerate(cells)]
    return read_annotated(paths, "scperformer", [])


def log_normalised(cells: ad.AnnData) -> ad.AnnData:
    normalised = cells.copy()
    sc.pp.normalize_total(normalised, target_sum=1e4)
    sc.pp.log1p(normalised)
    return normalised


def test_expression_is_that_of_scanpy_for_the_shared_genes(cells, samples):
    rows = [np.array([4]), np.array([0, 7, 30])]
    found = read_expression(samples, rows)
    assert list(found.var_names) == list(cells[1].var_names)
    normalised = map(log_normalised, cells)
    expected = [
        sample[chosen].X.toarray()[:, :2000]
        for sample, chosen in zip(normalised, rows, strict=True)
    ]
    np.testing.assert_allclose(found.X.toarray(), np.concatenate(expected), rtol=1e-5)


def test_ensembl_ids_become_symbols(cells, tmp_path):
    sample = cells[0].copy()
    sample.var_names = [
        "ENSG00000167286.9",
        "ENSG00000156738",
        *(f"ENSG0000000{place:04d}" for place in range(2998)),
    ]
    [read] = read_annotated([write_sample(tmp_path, "s", sample)], "scperformer")
    names = read_expression([read], [np.array([0])]).var_names
    assert list(names[:3]) == ["CD3D", "MS4A1", "ENSG00000000000"]


@pytest.mark.slow
def test_a_random_sample_of_the_cells_is_drawn(samples):
    drawn = draw_cells(samples, max_cells=40, seed=1)
    assert len(drawn.rows) == len(drawn.xy) == drawn.expression.n_obs == 40
    assert (np.diff(drawn.rows) > 0).all()
    again = draw_cells(samples, max_cells=40, seed=1)
    np.testing.assert_array_equal(drawn.xy, again.xy)


def test_missing_expression_is_the_reason_for_no_map(tmp_path, caplog):
    read = read_annotated(
        [write_sample(tmp_path, "s", annotated_sample(num_cells=40))], "scperformer"
    )
    drawn = draw_cells(read)  # its labels are from .raw, which is missing
    assert (drawn.expression, drawn.xy) == (None, None)
    assert "no raw in" in drawn.source
    assert said(caplog, "draw_cells", drawn.source)


def clouds(num_cells: int = 180) -> tuple[ad.AnnData, np.ndarray]:
    """Return cells in five groups, which express genes of their own."""
    rng = np.random.default_rng(0)
    codes = np.arange(num_cells) % 5
    means = np.where(np.arange(100) % 5 == codes[:, None], 4.0, 0.5)
    return ad.AnnData(sparse.csr_matrix(np.log1p(rng.poisson(means)), dtype=np.float32)), codes


def test_neighbours_stay_neighbours():
    cells, codes = clouds()
    xy = umap(cells, 0)
    nearest = NearestNeighbors(n_neighbors=6).fit(xy).kneighbors(xy, return_distance=False)[:, 1:]
    assert (codes[nearest] == codes[:, None]).mean() > 0.98
    shuffled = np.random.default_rng(0).permutation(codes)
    # a control: random groups are not neighbours
    assert (shuffled[nearest] == shuffled[:, None]).mean() < 0.5


@pytest.mark.parametrize(
    "cells", [clouds(MIN_CELLS - 1)[0], ad.AnnData(sparse.csr_matrix(np.ones((40, 60))))]
)
def test_no_coordinates_for_few_or_equal_cells(cells):
    assert umap(cells, 0) is None


def test_markers_are_those_of_scanpy(pbmc3k):
    cells = log_normalised(pbmc3k)
    calls = pbmc3k.obs["cell_type"].astype(str).to_numpy(object)
    calls[:5] = "unknown"
    calls[5] = "alone"
    found = find_markers(cells, calls)
    assert "unknown" not in found
    assert "alone" not in found
    assert {"CD79A", "MS4A1"} <= set(found["B"])
    assert "NKG7" in found["NK"]
    known = cells[calls != "unknown"].copy()
    known.obs["call"] = pd.Categorical(calls[calls != "unknown"])
    sc.tl.rank_genes_groups(known, "call", groups=list(found), method="t-test_overestim_var")
    for label, genes in found.items():
        ranked = [gene for gene in known.uns["rank_genes_groups"]["names"][label] if gene in genes]
        assert genes == ranked
        assert not [gene for gene in genes if gene.startswith(("RPL", "RPS", "MT-"))]
