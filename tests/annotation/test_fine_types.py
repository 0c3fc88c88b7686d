"""Fine types of a file without a model, told apart at the gap between their cells."""

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

import scperformer as scp
from scperformer.adaptation.predictions import Predictions
from scperformer.annotation.fine_types import (
    Family,
    as_nearest,
    clear_gap,
    slope,
    smoothed,
    with_families,
)

PBMC = Path(__file__).parents[2] / "data" / "pbmc3k.h5ad"
KEY = "scperformer"
MONOCYTES = {"CD14+ Mono": "classical monocyte", "FCGR3A+ Mono": "non-classical monocyte"}


@pytest.fixture(autouse=True)
def _no_model(monkeypatch):
    monkeypatch.delenv("SCPERFORMER_MODEL", raising=False)


@pytest.fixture(scope="module")
def pbmc() -> ad.AnnData:
    cells = ad.read_h5ad(PBMC)
    return cells[np.random.default_rng(0).choice(cells.n_obs, 800, replace=False)].copy()


def annotated(cells: ad.AnnData, **options: object) -> ad.AnnData:
    cells = cells.copy()
    scp.annotate(cells, options={"tissue": "blood"} | options)
    return cells


def right(cells: ad.AnnData) -> float:
    """Return the share of monocytes with the label of their type."""
    truth = cells.obs["cell_type"].astype(str).map(MONOCYTES)
    return float((cells.obs[f"{KEY}_label"].astype(str) == truth)[truth.notna()].mean())


def test_monocytes_are_told_apart_at_their_gap(pbmc):
    cells, without = annotated(pbmc), annotated(pbmc, relabel="false")
    assert right(cells) > 0.95 > right(without) + 0.05
    record = cells.uns[KEY]["fine_types"]
    place = list(record["first"]).index("classical monocyte")
    assert record["second"][place] == "non-classical monocyte"
    assert record["cut"][place] > 0.3  # the file resembles non-classical monocytes
    labels = [each.obs[f"{KEY}_label"].astype(str) for each in (cells, without)]
    are_monocytes = labels[1].isin(MONOCYTES.values())
    assert record["num_cells"][place] == are_monocytes.sum()
    assert record["num_changed"][place] == (labels[0] != labels[1])[are_monocytes].sum() > 5
    assert "fine_types" not in without.uns[KEY]
    proba = [each.obsm[f"{KEY}_proba"].to_numpy().sum(axis=1) for each in (cells, without)]
    assert proba[0] == pytest.approx(proba[1], abs=1e-5)
    table = pd.DataFrame(dict(record))
    assert set(table) == {"first", "second", "cut", "num_cells", "num_changed"}
    assert (table["num_changed"] <= table["num_cells"]).all()


def test_one_type_alone_keeps_its_labels(pbmc):
    alone = pbmc[pbmc.obs["cell_type"] == "CD14+ Mono"].copy()
    assert alone.n_obs > 60
    assert right(annotated(alone)) >= right(annotated(alone, relabel="false")) - 0.02


def test_few_cells_and_parts_of_a_sample_are_not_cut(pbmc):
    assert "fine_types" not in annotated(pbmc[:40]).uns[KEY]
    part = pbmc[:300].copy()
    scp.annotate(part, full_sample=pbmc, options={"tissue": "blood"})
    assert "fine_types" not in part.uns[KEY]


def test_the_mean_of_the_nearest_cells_is_that_of_a_naive_search():
    rng = np.random.default_rng(0)
    points, others, ratio = rng.normal(size=(50, 4)), rng.normal(size=(20, 4)), rng.normal(size=50)
    for other, value in zip(others, smoothed(ratio, points, others), strict=True):
        order = sorted(
            range(50), key=lambda i, other=other: float(((points[i] - other) ** 2).sum())
        )
        assert value == pytest.approx(np.mean([ratio[i] for i in order[:16]]))


def test_a_gap_is_clear_only_between_two_groups():
    rng = np.random.default_rng(0)
    low, high = rng.normal(0.5, 0.3, 300), rng.normal(3, 0.3, 300)
    cut = clear_gap(np.concatenate([low, high]))
    assert cut is not None
    assert 1 < cut < 2.5
    cut = clear_gap(np.concatenate([low, high[:15]]))  # 95/5
    assert cut is not None
    assert 1 < cut < 2.5
    assert clear_gap(low) is None
    assert clear_gap(np.concatenate([low, high[:5]])) is None


def test_the_slope_is_the_share_of_the_difference_of_two_types():
    rng = np.random.default_rng(0)
    means = np.full((2, 200), 50.0)
    means[0, :50] *= 4
    means[1, 50:100] *= 3
    is_second = np.arange(400) >= 200
    x = csr_matrix(np.log1p(rng.poisson(means[is_second.astype(int)])))
    assert slope(x, is_second, means) == pytest.approx(1, abs=0.05)
    assert slope(x, ~is_second, means) == pytest.approx(-1, abs=0.05)
    assert abs(slope(x, rng.permutation(is_second), means)) < 0.1


def test_a_label_that_the_nearest_cells_lack_is_no_more_certain_than_the_next():
    shares = np.array([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [0.7, 0.2, 0.1], [0.55, 0.45, 0]])
    mean = np.array([[0.9, 0.1, 0], [0.5, 0.3, 0.2], [0.2, 0.8, 0], [0.1, 0.9, 0]])
    found = as_nearest(shares, mean)
    assert found.sum(axis=1) == pytest.approx(1)
    assert (found.argmax(axis=1) == 0).all()
    assert found[0] == pytest.approx(shares[0])
    assert found[1] == pytest.approx([0.6, 0.8 / 3, 0.4 / 3])
    assert found[2] == pytest.approx([0.4, 0.4, 0.2], abs=1e-3)
    assert found[3] == pytest.approx([0.5, 0.5, 0], abs=1e-3)


def test_families_keep_their_probability():
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(4), 30).astype(np.float32)
    rows = np.sort(rng.choice(30, 12, replace=False))
    shares = rng.dirichlet(np.ones(2), 12)
    names = [name for name in Predictions.__dataclass_fields__ if name != "proba"]
    parts = [
        Predictions(proba=part, **dict.fromkeys(names, np.zeros(10))) for part in np.split(proba, 3)
    ]
    family = Family(rows, np.array([1, 3]), shares)
    found = np.concatenate([block.proba for block in with_families(lambda: parts, [family])])
    expected = proba.copy()
    for row, share in zip(rows, shares, strict=True):
        expected[row, [1, 3]] = share * (proba[row, 1] + proba[row, 3])
    assert found == pytest.approx(expected)
