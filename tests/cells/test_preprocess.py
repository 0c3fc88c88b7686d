"""Prepared references, compared with the plain formula and loops; the preprocess step."""

import logging

import anndata as ad
import numpy as np
import pytest
import scanpy
from scipy import sparse
from support.logs import said
from support.normalised import plain, plan_of
from support.opened import detected
from support.refusal import refusal

from scperformer.cells.collection import Filters, make_collection, stored_cells
from scperformer.cells.normalisation import align_rows
from scperformer.cells.opened import OpenedCells, whole_cells
from scperformer.cells.preprocess import prepare_reference
from scperformer.cli.preprocess import PreprocessConfig
from scperformer.cli.preprocess import run as run_preprocess
from scperformer.config.training import DataConfig
from scperformer.io.h5ad import PREPARED_KEY
from scperformer.io.rows import Rows
from scperformer.model.bundle import NetworkConfig

# The values are float32 (relative precision 6e-8), and so is scanpy's division by the total.
TOLERANCE = {"rtol": 1e-6, "atol": 0}


def config(**data):
    return PreprocessConfig(inputs=["r.h5ad"], data=DataConfig(**data))


def test_a_reference_is_the_one_that_scanpy_prepares_bit_for_bit(pbmc3k, write, monkeypatch):
    """In memory and from disk, in blocks; and cells to annotate are prepared to the same values without scanpy."""
    expected = pbmc3k.copy()
    scanpy.pp.filter_cells(expected, min_genes=800)
    _, num_cells = scanpy.pp.filter_genes(expected, min_cells=20, inplace=False)
    scanpy.pp.normalize_total(expected, target_sum=1e4)
    scanpy.pp.log1p(expected)
    expected = expected[:, num_cells >= 20]
    assert 100 < expected.n_obs < 900
    assert 1000 < expected.n_vars < 13_000

    monkeypatch.setattr(Rows, "block_cells", 300)
    cfg = config(min_genes=800, min_cells=20)
    prepared = prepare_reference(OpenedCells(pbmc3k, cfg))
    assert list(prepared.obs_names) == list(expected.obs_names)
    assert list(prepared.var_names) == list(expected.var_names)
    collection = make_collection([stored_cells(write(pbmc3k), cfg)], Filters.by(cfg.data))
    plan = plan_of(pbmc3k.var, detected(pbmc3k), collection.genes)
    aligned = align_rows(pbmc3k[prepared.obs_names].X, plan)
    for x in (prepared.X, collection.read(np.arange(len(collection))), aligned):
        np.testing.assert_array_equal(
            x.toarray().view(np.int32), expected.X.toarray().view(np.int32)
        )


@pytest.mark.parametrize("name", ["filter_cells", "filter_genes", "normalize_total", "log1p"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_references_are_filtered_and_normalised_by_scanpy(
    counts_adata, write, monkeypatch, name, on_disk
):
    used = []
    own = getattr(scanpy.pp, name)
    monkeypatch.setattr(
        scanpy.pp, name, lambda *args, **given: used.append(name) or own(*args, **given)
    )
    cfg = config(min_genes=50)
    prepare_reference(
        stored_cells(write(counts_adata), cfg) if on_disk else OpenedCells(counts_adata, cfg)
    )
    assert used


def test_a_prepared_reference_is_not_changed_again(counts_adata, write):
    cfg = config(min_genes=50, min_cells=100)
    prepared = prepare_reference(OpenedCells(counts_adata, cfg))
    assert prepared.n_vars < 200
    again = prepare_reference(whole_cells(write(prepared), cfg))
    np.testing.assert_array_equal(again.X.toarray(), prepared.X.toarray())


# the step


def test_the_step_writes_into_the_folder_of_the_input(counts_adata, write, caplog):
    path = write(counts_adata, "a.b.h5ad")
    with caplog.at_level(logging.INFO):
        output = run_preprocess(PreprocessConfig(inputs=[str(path)]))
    assert output == path.with_name("a.b.prepared.h5ad")
    assert said(caplog, "preprocess.run", 120, 200, 0, 10000)
    result = ad.read_h5ad(output)
    np.testing.assert_allclose(result.X.toarray(), plain(counts_adata.X), **TOLERANCE)
    with refusal("output-exists"):
        run_preprocess(PreprocessConfig(inputs=[str(path)]))
    run_preprocess(PreprocessConfig(inputs=[str(path)], overwrite=True))


def test_the_step_aligns_to_a_model(counts_adata, write, tmp_path, monkeypatch):
    class Model:
        name, config, importance, has_reference_cells = (
            "small",
            NetworkConfig(target_sum=1e3),
            None,
            False,
        )
        genes = ["GENE9", "ABSENT", "GENE1"]  # noqa: RUF012
        studies = ()

    monkeypatch.setattr("scperformer.cells.preprocess.read_model", lambda path: Model)
    # empty cells are kept
    counts_adata.X = sparse.diags([0.0] + [1.0] * 119).tocsr() @ counts_adata.X
    path, output = write(counts_adata), tmp_path / "out.h5ad"
    run_preprocess(PreprocessConfig(inputs=[str(path)], output=str(output), model_path="model"))
    result = ad.read_h5ad(output)
    assert list(result.var_names) == Model.genes
    assert list(result.obs_names) == list(counts_adata.obs_names)
    np.testing.assert_allclose(
        result.X.toarray()[:, [0, 2]], plain(counts_adata.X, 1e3)[:, [9, 1]], **TOLERANCE
    )
    assert result.uns[PREPARED_KEY]["genes_absent"] == 1
