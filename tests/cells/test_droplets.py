"""Empty droplets are found in unfiltered matrices, and in no other files."""

import anndata as ad
import numpy as np
import pytest
from scipy import sparse
from support.opened import detected

from scperformer.cells.droplets import find_droplets
from scperformer.io import rows
from scperformer.io.read import open_adata

NUM_GENES = 30_000


FORMS = {
    "csr": lambda adata: adata,
    "csc": lambda adata: ad.AnnData(adata.X.tocsc(), obs=adata.obs, var=adata.var),
    "dense": lambda adata: ad.AnnData(adata.X.toarray(), obs=adata.obs, var=adata.var),
}


@pytest.mark.parametrize("form", FORMS)
def test_empty_droplets_are_found(raw_pbmc, form, write, monkeypatch):
    is_cell = raw_pbmc.obs["is_cell"].to_numpy()
    monkeypatch.setattr(rows, "MAX_BLOCK_CELLS", 100)
    with open_adata(write(FORMS[form](raw_pbmc))) as cells:
        findings = detected(cells)
    found = findings.droplets
    assert found.num_empty == 600
    np.testing.assert_array_equal(found.is_cell, is_cell)
    note = f"91 % of barcodes have fewer than {found.floor} counts: this looks like the unfiltered matrix"
    assert note in findings.sentence
    assert 60 < found.floor < 500


def lognormal(median, spread, num, seed=0):
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.lognormal(np.log(median), spread, num))


AMBIENT = {
    "nearly no RNA in the solution": lognormal(2, 0.8, 8000),
    "much RNA": lognormal(60, 0.7, 8000),
    "very much RNA": lognormal(200, 0.5, 8000),
}


@pytest.mark.parametrize("ambient", AMBIENT)
def test_the_floor_is_above_single_counts_and_ambient_droplets(ambient):
    cells = lognormal(3000, 0.5, 1000, 1)
    errors = lognormal(1, 0.8, 30_000, 2)  # barcodes with single reads, by sequencing errors
    found = find_droplets(np.concatenate([errors, AMBIENT[ambient], cells]), NUM_GENES)
    is_cell = np.arange(38_000 + len(cells)) >= 38_000
    assert (found.is_cell & ~is_cell).sum() < 0.05 * len(cells)
    assert (~found.is_cell & is_cell).sum() < 0.05 * len(cells)


@pytest.fixture
def deep_and_low(pbmc3k):
    """60 cells of PBMC 3k, and other cells or samples of their RNA with some 90 counts each."""
    rng = np.random.default_rng(0)
    x = sparse.csr_matrix(pbmc3k.X[:240]).astype(int)
    ambient = np.asarray(x[:60].sum(axis=0)).ravel() / x[:60].sum()
    low = {
        "droplets": np.stack(
            [rng.multinomial(total, ambient) for total in rng.integers(30, 151, 180)]
        )
    }
    thin = x[60:].copy()
    thin.data = rng.binomial(thin.data, 0.04)
    low["cells"] = thin.toarray()
    return {
        kind: sparse.vstack([x[:60], sparse.csr_matrix(rows)], "csr").astype(np.float32)
        for kind, rows in low.items()
    }


def test_droplets_that_a_loose_filter_left_are_found_and_shallow_cells_are_not(deep_and_low):
    found = detected(ad.AnnData(deep_and_low["droplets"])).droplets
    np.testing.assert_array_equal(found.is_cell, np.arange(240) < 60)
    assert detected(ad.AnnData(deep_and_low["cells"])).droplets is None
    # shallow as a whole
    assert detected(ad.AnnData(deep_and_low["droplets"][60:])).droplets is None


SOUND = {
    "shallow cells": lognormal(40, 0.5, 2000),
    "shallow and deep cells": np.concatenate(
        [lognormal(100, 0.4, 3000), lognormal(5000, 0.5, 2000)]
    ),
    "small and large cells": np.concatenate(
        [lognormal(300, 0.3, 3000), lognormal(8000, 0.5, 1000)]
    ),
    "beads": lognormal(30, 1.2, 20_000),
    "beads with few counts": lognormal(9, 0.5, 20_000),
    "beads and some cells": np.concatenate([lognormal(30, 1.2, 20_000), lognormal(9000, 0.3, 5)]),
    "some empty cells": np.concatenate([np.zeros(300, int), lognormal(2000, 0.5, 1000)]),
    "one cell": np.array([1]),
    "nothing": np.zeros(50, int),
    "no cells": np.array([], dtype=int),
}


@pytest.mark.parametrize("name", SOUND)
def test_cells_and_beads_are_not_taken_for_droplets(name):
    assert find_droplets(SOUND[name], NUM_GENES) is None


@pytest.mark.parametrize("num_genes", [20, 200, 2000])
@pytest.mark.parametrize("chosen", ["variable", "random"])
def test_panels_are_not_taken_for_droplets(few_pbmc, chosen, num_genes):
    x = sparse.csr_matrix(few_pbmc.X)
    order = np.random.default_rng(0).permutation(few_pbmc.n_vars)
    if chosen == "variable":
        order = np.argsort(-x.toarray().var(axis=0))
    assert detected(few_pbmc[:, np.sort(order[:num_genes])].copy()).droplets is None
    thin = np.random.default_rng(0).binomial(x.toarray().astype(int), 0.05).astype(np.float32)
    few_pbmc.X = thin
    assert detected(few_pbmc).droplets is None
