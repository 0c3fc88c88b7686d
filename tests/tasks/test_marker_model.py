"""From a list of marker genes to an annotated file, a model for others, and a report."""

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import scperformer as scp

ROOT = Path(__file__).parents[2]
LIST = ROOT / "data" / "markers" / "blood.csv"
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("markers")
    cells = ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")
    cells[np.arange(0, cells.n_obs, 3)].copy().write_h5ad(folder / "sample.h5ad")
    scp.annotate(folder / "sample.h5ad", options={"types": str(LIST)})
    return folder


def test_cells_get_the_types_of_the_list(folder):
    cells = ad.read_h5ad(folder / "sample.annotated.h5ad")
    label = cells.obs["scperformer_label"].astype(str)
    truth = cells.obs["cell_type"].astype(str)
    assert (label[truth.str.contains("Mono")] == "monocyte").mean() > 0.95
    assert (label[truth == "B"] == "B cell").mean() > 0.95
    assert (label[truth == "NK"] == "NK cell").mean() > 0.85
    assert set(cells.obs["scperformer_named_by"]) == {"markers"}
    record = cells.uns["scperformer"]["markers"]
    assert record["source"] == "blood.csv"
    assert {"MS4A1", "CD3E"} <= set(record["gene"])
    codes = set(cells.uns["scperformer"]["remarks"]["code"])
    assert "repeats" not in codes
    assert "marker-list" in codes
    assert np.isnan(cells.uns["scperformer"]["coverage"]["expected_accuracy"])


def test_the_report_shows_its_genes(folder):
    scp.report(folder / "sample.annotated.h5ad", output=folder / "report.html")
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert 'id="figure-marker-list"' in page
    assert "expected accuracy" not in page.partition("<nav")[0]


def test_a_finished_file_is_known_by_its_list(folder):
    output = folder / "sample.annotated.h5ad"
    before = output.stat().st_mtime_ns
    scp.annotate(folder / "sample.h5ad", options={"types": str(LIST), "resume": True})
    assert output.stat().st_mtime_ns == before


def test_a_tissue_names_all_other_cells(folder):
    path = folder / "mine.csv"
    path.write_text(
        "type,gene\nmy B,MS4A1\nmy B,CD79A\nmy B,CD79B\nmy platelet,PPBP\nmy platelet,PF4\nmy platelet,GP9\n"
    )
    cells = ad.read_h5ad(folder / "sample.h5ad")
    scp.annotate(cells, options={"types": str(path), "tissue": "blood"})
    by = cells.obs["scperformer_named_by"]
    label = cells.obs["scperformer_label"].astype(str)
    assert (by == "markers").to_numpy().tolist() == label.str.startswith("my ").tolist()
    assert (label[cells.obs["cell_type"] == "B"] == "my B").mean() > 0.8
    assert label[by == "reference"].nunique() > 4


def test_a_model_is_kept_for_other_samples(folder):
    options = {"types": str(LIST), "model.encoder": False}
    model = scp.train(folder / "sample.h5ad", output=folder / "model", options=options)
    cells = ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")
    others = cells[np.arange(1, cells.n_obs, 3)].copy()
    scp.annotate(others, model.path)
    label = others.obs["scperformer_label"].astype(str)
    assert (label[others.obs["cell_type"] == "B"] == "B cell").mean() > 0.9
    levels = pd.DataFrame(others.obsm["scperformer_details"])
    assert "T cell" in set(levels["level1"].astype(str))
