"""Whatever the columns of a file are called: its annotation is read back by anndata, or the file is refused."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.refusal import refusal

import scperformer
from scperformer.adaptation.load import load_model
from scperformer.cli.predict import PredictConfig
from scperformer.cli.predict import run as run_predict

KEY = "scperformer"


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(tiny_model)


ODD = ["é", "1", "codes", "column-order", "B cell"]


@pytest.mark.parametrize(("name", "kind"), [("B cell", "h5ad"), ("x/y", "zarr")])
def test_columns_and_index_of_any_name_are_read_back(
    name, kind, model, counts_adata, write, tmp_path
):
    """Also an index with the name of a label, which is a column of the probabilities."""
    cells = counts_adata[:6].copy()
    cells.obs.index.name = name
    cells.obs = cells.obs.assign(**{column: np.arange(6) for column in ODD if column != name})
    path, output = write(cells), tmp_path / f"out.{kind}"
    run_predict(
        PredictConfig(inputs=[str(path)], output=str(output), adapt="false", shift="false"), model
    )
    known, found = ad.read_h5ad(path), (ad.read_zarr if kind == "zarr" else ad.read_h5ad)(output)
    pd.testing.assert_frame_equal(
        known.obs, found.obs[list(known.obs.columns)], check_names=kind == "h5ad"
    )
    assert list(found.obsm[f"{KEY}_proba"].columns) == model.saved.labels
    assert list(found.obsm[f"{KEY}_proba"].index) == list(known.obs_names)


def test_an_index_with_the_name_of_a_new_column_is_refused(model, counts_adata, write, tmp_path):
    cells = counts_adata[:6].copy()
    cells.obs.index.name = f"{KEY}_label"
    cfg = PredictConfig(inputs=[str(write(cells))], overwrite=True, output=str(tmp_path / "x.h5ad"))
    with refusal("index-name-taken"):
        run_predict(cfg, model)
    with refusal("index-name-taken"):
        scperformer.annotate(cells, model)
