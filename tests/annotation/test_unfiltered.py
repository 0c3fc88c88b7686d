"""Cells in unfiltered matrices, and in files with features other than genes, get the calls of a file of these cells."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.logs import said

import scperformer
from scperformer.cells.detect import SMOOTHED
from scperformer.cli.predict import PredictConfig
from scperformer.cli.predict import run as run_predict

KEY = "scperformer"
COLUMNS = [f"{KEY}_{name}" for name in ("call", "label", "confidence", "novelty")]


def require_same_calls(obs: pd.DataFrame, expected: pd.DataFrame) -> None:
    for column in COLUMNS:
        np.testing.assert_array_equal(obs[column].astype(str), expected[column].astype(str))


@pytest.fixture
def expected(few_pbmc) -> ad.AnnData:
    return scperformer.annotate(few_pbmc)


def test_cells_of_an_unfiltered_matrix_get_the_same_calls(raw_pbmc, expected, caplog):
    """If the 600 droplets counted, the file would be shallow, and the model would be adapted to that."""
    scperformer.annotate(raw_pbmc, options={"alpha": 0.1})
    is_cell = raw_pbmc.obs["is_cell"]
    obs = raw_pbmc.obs
    record = raw_pbmc.uns[KEY]
    require_same_calls(obs.loc[expected.obs_names], expected.obs)
    assert record["coverage"]["depth"] == expected.uns[KEY]["coverage"]["depth"]
    assert not record["coverage"]["adapted"]
    means = record["fit"]["mean_confidence"], expected.uns[KEY]["fit"]["mean_confidence"]
    assert means[0] == pytest.approx(means[1], rel=1e-6)
    assert record["sets"]["mean_size"] == obs.loc[is_cell, f"{KEY}_set_size"].mean()
    assert obs.loc[~is_cell, f"{KEY}_low_quality"].all()
    assert obs.loc[~is_cell, f"{KEY}_doublet_score"].isna().all()
    assert obs.loc[is_cell, f"{KEY}_doublet_score"].notna().all()
    found = dict(zip(record["remarks"]["code"], record["remarks"]["value"], strict=True))
    assert {"repeats", "droplets"} <= set(found)  # the packaged model was trained on these cells
    assert said(caplog, "annotation_of", found["repeats"], 60, "100 %")
    assert said(caplog, "annotation_of", found["droplets"], "91 %")
    assert record["droplets"]["num_empty"] == 600
    assert record["num_unknown"] == (obs[f"{KEY}_call"] == "unknown").sum() > 500


@pytest.mark.parametrize("form", [pytest.param("memory", marks=pytest.mark.slow), "h5ad"])
def test_quality_of_an_unfiltered_matrix(raw_pbmc, expected, write, tmp_path, form, monkeypatch):
    monkeypatch.setattr("scperformer.io.rows.MAX_BLOCK_CELLS", 150)
    is_cell = raw_pbmc.obs["is_cell"].to_numpy()
    if form == "memory":
        annotated = scperformer.annotate(raw_pbmc)
    else:
        path = str(write(raw_pbmc))
        output = str(tmp_path / "out.h5ad")
        run_predict(PredictConfig(inputs=[path], output=output))
        annotated = ad.read_h5ad(output)
    require_same_calls(annotated.obs.loc[expected.obs_names], expected.obs)
    low = annotated.obs[f"{KEY}_low_quality"].to_numpy()
    assert low[~is_cell].all()
    assert low[is_cell].sum() < 6
    assert annotated.uns[KEY]["quality"]["least_genes"] > 100


def test_labels_of_clusters_depend_on_cells_alone(raw_pbmc, few_pbmc):
    few_pbmc.obs["group"] = raw_pbmc.obs["group"] = "a"
    for adata in (few_pbmc, raw_pbmc):
        scperformer.annotate(adata, clusters="group")
    names = few_pbmc.obs_names
    annotated = raw_pbmc.obs.loc[names]
    for column in ("label", "cluster_label", "cluster_disagrees"):
        assert (
            annotated[f"{KEY}_{column}"].astype(str).tolist()
            == few_pbmc.obs[f"{KEY}_{column}"].astype(str).tolist()
        )


def test_no_accuracy_is_expected_of_imputed_values(few_pbmc, caplog):
    plain = few_pbmc.copy()
    shares = few_pbmc.X / few_pbmc.X.sum(axis=1)
    few_pbmc.X = np.asarray(
        np.log1p(1e4 * (shares + 0.05 * shares.mean(axis=0)) / 1.05), dtype=np.float32
    )
    for adata in (plain, few_pbmc):
        scperformer.annotate(adata)
    shifts = [adata.uns[KEY]["shift"] for adata in (plain, few_pbmc)]
    assert [np.isnan(shift["expected_lowest"]) for shift in shifts] == [False, True]
    assert [
        any(SMOOTHED in text for text in adata.uns[KEY]["remarks"]["text"])
        for adata in (plain, few_pbmc)
    ] == [False, True]


@pytest.mark.parametrize("form", ["memory", "h5ad"])
def test_antibodies_stay_in_the_file_and_change_no_call(cite_pbmc, expected, write, form):
    x = cite_pbmc.X.copy()
    if form == "memory":
        annotated = scperformer.annotate(cite_pbmc)
    else:
        annotated = ad.read_h5ad(run_predict(PredictConfig(inputs=[str(write(cite_pbmc))]))[0])
    require_same_calls(annotated.obs, expected.obs)
    assert (x != annotated.X).nnz == 0
    assert annotated.n_vars == expected.n_vars + 4
    assert annotated.uns[KEY]["genes"]["num_file"] == expected.n_vars
