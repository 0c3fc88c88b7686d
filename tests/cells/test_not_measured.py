"""Genes that a batch did not measure are left out of a reference, in memory and on disk."""

import anndata as ad
import numpy as np
import pytest
from scipy import sparse
from support.logs import said
from support.refusal import refusal

from scperformer.cells.collection import stored_cells
from scperformer.cells.not_measured import genes_not_measured
from scperformer.cells.opened import OpenedCells
from scperformer.cells.reference import make_reference
from scperformer.config.training import TrainOptions


def outer_join(cells: ad.AnnData, shares: tuple[float, float], key: str = "study") -> ad.AnnData:
    """Two studies of the cells, each of which measured a share of the genes."""
    rng = np.random.default_rng(0)
    parts = [cells[half::2, rng.random(cells.n_vars) < share] for half, share in enumerate(shares)]
    joined = ad.concat(parts, join="outer", fill_value=0, label=key, keys=["one", "two"])
    joined.X = sparse.csr_matrix(joined.X, dtype=np.float32)
    return joined


def shared_genes(cells: ad.AnnData) -> set[str]:
    """The genes that are expressed in cells of both studies, by a loop."""
    halves = [cells[cells.obs["study"] == study] for study in ("one", "two")]
    return set.intersection(
        *({*half.var_names[np.asarray(half.X.sum(axis=0)).ravel() > 0]} for half in halves)
    )


@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on disk"])
def test_a_reference_has_the_genes_of_both_studies(pbmc3k, write, on_disk, caplog):
    cells = outer_join(pbmc3k, (0.7, 0.8))
    path = write(cells)
    cfg = TrainOptions(inputs=[str(path)], label_key="cell_type")
    found = make_reference([stored_cells(path, cfg) if on_disk else OpenedCells(cells, cfg, path)])
    everywhere = shared_genes(cells)
    num_cells = np.asarray((cells.X > 0).sum(axis=0)).ravel()
    frequent = {*cells.var_names[num_cells >= 30]}
    assert {*found.genes} & frequent == everywhere & frequent
    assert found.own_totals
    # over these genes alone
    np.testing.assert_allclose(np.expm1(found.x.toarray()).sum(axis=1), 1e4, rtol=1e-4)
    if found.stream is not None:
        assert found.stream.collection.genes == found.genes
    assert said(caplog, "genes_not_measured", "'one'")
    assert len(said(caplog, "genes_not_measured", f"{len(found.genes):,}").splitlines()) == 1


def test_genes_of_ordinary_batches_stay(pbmc3k, caplog):
    """Batches of random cells, of other depth, of other types, and a batch of few cells."""
    rng = np.random.default_rng(0)
    cells = pbmc3k.copy()
    is_t = cells.obs["cell_type"].isin(["Naive CD4 T", "Memory CD4 T", "CD8 T"])
    cells.obs["donor"] = np.where(rng.random(cells.n_obs) < 0.3, "one", "two")
    cells.obs["sample"] = np.where(is_t, "T", "others")
    cells.obs["batch"] = np.where(np.arange(cells.n_obs) < 10, "few", "others")
    shallow = cells.obs["donor"] == "one"
    x = cells.X.toarray()
    x[shallow] = rng.binomial(x[shallow].astype(int), 0.3)
    cells.X = sparse.csr_matrix(x, dtype=np.float32)
    found = make_reference(
        [OpenedCells(cells, TrainOptions(inputs=["r.h5ad"], label_key="cell_type"))]
    )
    assert not found.own_totals
    assert not said(caplog, "genes_not_measured")


def test_the_column_may_have_any_name_that_is_given(pbmc3k):
    cells = outer_join(pbmc3k, (0.7, 0.8), key="origin")
    usual = TrainOptions(inputs=["r.h5ad"], label_key="cell_type")
    # the control: it is not looked at
    assert not make_reference([OpenedCells(cells, usual)]).own_totals
    named = TrainOptions(inputs=["r.h5ad"], label_key="cell_type", batch_key="origin")
    assert make_reference([OpenedCells(cells, named)]).own_totals


def test_studies_that_share_few_genes_are_refused():
    x = np.zeros((60, 200), dtype=np.float32)
    x[:30, :110] = x[30:, 90:] = 1
    genes = [f"GENE{number}" for number in range(200)]
    batches = {"obs['study']": np.repeat(["one", "two"], 30)}
    with refusal("few-genes"):
        genes_not_measured(sparse.csr_matrix(x), np.arange(60) % 2, batches, genes)
