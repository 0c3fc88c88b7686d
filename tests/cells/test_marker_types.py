"""Cells that a list of marker genes names: the score is that of ordinary regression, and absent types name none."""

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from support.refusal import refusal

from scperformer.cells.marker_types import marker_matrix, marker_scores, with_marker_labels
from scperformer.cells.normalisation import normalise
from scperformer.cells.opened import OpenedCells
from scperformer.cells.profiles import has_profiles
from scperformer.config.compose import make_options
from scperformer.config.training import TrainOptions
from scperformer.io.marker_lists import read_marker_list

ROOT = Path(__file__).parents[2]
FILE = ROOT / "data" / "pbmc3k.h5ad"
LIST = ROOT / "data" / "markers" / "blood.csv"
SAME = {
    "monocyte": ["CD14+ Mono", "FCGR3A+ Mono"],
    "CD4 T": ["Naive CD4 T", "Memory CD4 T"],
    "CD8 T": ["CD8 T"],
}
SAME |= {"B cell": ["B"], "NK cell": ["NK"], "dendritic cell": ["DC"], "platelet": ["Platelet"]}


def opened(adata, types=LIST, **options):
    return OpenedCells(
        adata, make_options(TrainOptions, {"inputs": [FILE], "types": str(types), **options}), FILE
    )


@pytest.fixture(scope="module")
def pbmc():
    return ad.read_h5ad(FILE)


@pytest.fixture(scope="module")
def markers():
    return read_marker_list(str(LIST))


@pytest.fixture(scope="module")
def labelled(pbmc, markers):
    return with_marker_labels(opened(pbmc), pbmc.obs, markers)


def test_the_score_is_the_t_statistic_of_a_regression(pbmc, markers):
    cells = opened(pbmc[:20].copy())
    weights = marker_matrix(cells, markers)
    x = normalise(cells.some(np.arange(20)), cells.findings, 1e4)
    scores = marker_scores(x, weights)
    for cell, column in ((0, 0), (5, 3), (19, 6)):
        fit = scipy.stats.linregress(weights[:, column], x[cell].toarray().ravel())
        assert scores[cell, column] == pytest.approx(fit.slope / fit.stderr, rel=1e-4)


def test_clear_cells_have_the_right_type(pbmc, labelled):
    is_clear = labelled["type"].notna()
    assert is_clear.mean() > 0.8
    pairs = zip(labelled["type"][is_clear], pbmc.obs["cell_type"][is_clear], strict=True)
    right = [truth in SAME.get(label, []) for label, truth in pairs]
    assert np.mean(right) > 0.95
    assert set(labelled["type 1"].dropna()) == {"T cell"}


def test_types_without_cells_name_none(pbmc, markers, labelled):
    assert "erythrocyte" not in set(labelled["type"])
    without = pbmc[pbmc.obs["cell_type"] != "B"].copy()
    found = with_marker_labels(opened(without), without.obs, markers)
    assert "B cell" not in set(found["type"])


def test_cells_of_a_type_that_the_list_lacks_are_not_named(pbmc, tmp_path):
    table = pd.read_csv(LIST)
    path = tmp_path / "list.csv"
    table[table["type"] != "B cell"].to_csv(path, index=False)
    found = with_marker_labels(opened(pbmc, types=path), pbmc.obs, read_marker_list(str(path)))
    assert found.loc[pbmc.obs["cell_type"] == "B", "type"].notna().mean() < 0.05


def test_other_labels_stay_where_no_type_of_the_list_is(pbmc, tmp_path):
    path = tmp_path / "list.csv"
    path.write_text(
        "type,gene,term\nplatelets,PPBP,CL:0000233\nplatelets,PF4,\nB,MS4A1,\nB,CD79A,\n"
    )
    cells = opened(pbmc, path, label_key="cell_type")
    found = with_marker_labels(cells, pbmc.obs, read_marker_list(str(path)))
    assert set(found["cell_type"].dropna()) - {"Platelet"} == {
        *pbmc.obs["cell_type"],
        "platelets",
    } - {"Platelet"}
    is_platelet = found["cell_type"] == "platelets"
    assert is_platelet[pbmc.obs["cell_type"] == "Platelet"].mean() > 0.7
    assert set(found.loc[is_platelet, "cell_type_ontology_term_id"]) == {"CL:0000233"}


def test_the_order_of_cells_changes_nothing(pbmc, markers, labelled):
    order = np.random.default_rng(1).permutation(pbmc.n_obs)
    shuffled = pbmc[order].copy()
    found = with_marker_labels(opened(shuffled), shuffled.obs, markers)["type"].fillna("")
    assert (found == labelled["type"].fillna("").iloc[order]).mean() > 0.999


def test_wrong_genes_are_refused_in_one_line(pbmc, tmp_path):
    path = tmp_path / "list.csv"
    path.write_text(
        "type,gene\n"
        + "".join(
            f"t{i % 3},{gene.capitalize()}\n" for i, gene in enumerate(pbmc.var_names[5000:5060])
        )
    )
    with refusal("other-species", "species=human"):
        with_marker_labels(opened(pbmc, types=path), pbmc.obs, read_marker_list(str(path)))
    path.write_text("type,gene\nislet,INS\nislet,IAPP\nacinar,PRSS1\nacinar,CPA1\n")
    with refusal("few-types", "list.csv"):
        with_marker_labels(opened(pbmc, types=path), pbmc.obs, read_marker_list(str(path)))


def test_cells_with_names_of_types_are_no_profiles(pbmc):
    names = [f"{label}_{number}" for number, label in enumerate(pbmc.obs["cell_type"])]
    cells = ad.AnnData(pbmc.X, obs=pd.DataFrame(index=names), var=pbmc.var)[:40].copy()
    assert not has_profiles(opened(cells))


def test_cells_that_are_not_looked_at_keep_no_label(pbmc, monkeypatch):
    monkeypatch.setattr("scperformer.cells.marker_types.MAX_CELLS", 1000)
    found = with_marker_labels(
        opened(pbmc, label_key="cell_type"), pbmc.obs, read_marker_list(str(LIST))
    )
    assert found["cell_type"].notna().sum() <= 1000


def test_three_cells_are_refused_in_one_line(pbmc, markers):
    cells = pbmc[:3].copy()
    with refusal("few-types", "blood.csv"):
        with_marker_labels(opened(cells), cells.obs, markers)


def test_one_marker_that_other_cells_express_names_none(pbmc, markers, tmp_path):
    is_nk = (pbmc.obs["cell_type"] == "NK").to_numpy()
    only_gzmb = pbmc[:, ~pbmc.var_names.isin(["LILRA4", "CLEC4C", "IL3RA"])].copy()
    labels = with_marker_labels(opened(only_gzmb), pbmc.obs, markers)["type"][is_nk]
    assert (labels == "NK cell").mean() > 0.8
    table = pd.read_csv(LIST, keep_default_na=False)
    table[table["type"] != "NK cell"].to_csv(tmp_path / "list.csv", index=False)
    labels = with_marker_labels(
        opened(pbmc), pbmc.obs, read_marker_list(str(tmp_path / "list.csv"))
    )["type"][is_nk]
    assert labels.isna().mean() > 0.7
