"""Opened cells: in memory and on disk alike; what is asked about them is found once."""

import anndata as ad
import numpy as np
import pytest
from scipy import sparse
from support.refusal import refusal

from scperformer.base.errors import InputError
from scperformer.cells import opened as module
from scperformer.cells.opened import open_cells
from scperformer.cells.quality import block_quality, mitochondrial
from scperformer.config.options import ModelOptions
from scperformer.io import rows as stored_rows

OPTIONS = ModelOptions(inputs=["x"])


@pytest.fixture(params=["memory", "disk"])
def source(request, few_pbmc, write):
    few_pbmc.obs["run"] = ["a", "b"] * (few_pbmc.n_obs // 2)
    few_pbmc.obsm["X_pca"] = np.zeros((few_pbmc.n_obs, 2))
    few_pbmc.obsp["connectivities"] = sparse.identity(few_pbmc.n_obs, format="csr")
    few_pbmc.obs.index.name = "barcode"
    return few_pbmc if request.param == "memory" else str(write(few_pbmc))


def test_both_kinds_answer_alike(source, few_pbmc):
    with open_cells(source, OPTIONS) as cells:
        assert (cells.n_obs, cells.index_name) == (few_pbmc.n_obs, "barcode")
        assert cells.names(1, 3) == list(few_pbmc.obs_names[1:3])
        assert list(cells.columns(["run", "none"])) == ["run"]
        assert cells.keys()["obs"] == {"cell_type", "run"}
        assert "X_pca" in cells.keys()["obsm"]
        assert cells.neighbour_graph().shape == (few_pbmc.n_obs, few_pbmc.n_obs)
        assert cells.findings.kind == "counts"
        assert cells.gene_names == list(few_pbmc.var_names)
        assert bool(cells.sha256) == isinstance(source, str)
        assert cells.to_adata().shape == few_pbmc.shape


def test_the_expression_is_judged_once(source, monkeypatch):
    judged = []
    detect = module.detect_expression
    monkeypatch.setattr(
        module, "detect_expression", lambda *given: judged.append(1) or detect(*given)
    )
    with open_cells(source, OPTIONS) as cells:
        first = cells.find_expression("human")
        assert cells.find_expression("mouse") is cells.findings is first
        assert cells.rows is cells.rows
    assert judged == [1]


def test_samples_and_quality_are_those_of_the_whole_matrix_read_once(source, few_pbmc, monkeypatch):
    monkeypatch.setattr(stored_rows, "MAX_BLOCK_CELLS", 7)  # nine blocks
    monkeypatch.setattr("scperformer.cells.values.SAMPLE_CELLS", 10)
    whole = few_pbmc.X.toarray()
    with open_cells(source, OPTIONS) as cells:
        chosen = np.array([1, 5, 8, 30, 59])
        np.testing.assert_array_equal(cells.some(chosen).toarray(), whole[chosen])
        for start in range(0, 60, 7):
            np.testing.assert_array_equal(cells.block(start).toarray(), whole[start : start + 7])
        expected = block_quality(whole, mitochondrial(cells.var), cells.findings)
        monkeypatch.setattr(cells.rows, "_read", None)  # nothing is read again
        np.testing.assert_array_equal(cells.some(chosen[1:4]).toarray(), whole[chosen[1:4]])
        np.testing.assert_array_equal(cells.quality(), expected)
        with pytest.raises((TypeError, InputError)):  # the control: a sample with other cells
            cells.some(np.array([2, 5]))


def test_cells_without_expression_are_refused_with_their_path(tmp_path):
    cells = ad.AnnData(np.full((5, 3), -1.0))
    cells.write_h5ad(tmp_path / "negative.h5ad")
    with (
        open_cells(tmp_path / "negative.h5ad", OPTIONS) as opened,
        refusal("no-expression", "negative.h5ad"),
    ):
        opened.find_expression()
