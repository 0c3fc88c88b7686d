"""The embedded data: the file that its README describes, and the reference and the samples made from it."""

import hashlib
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import anndata as ad
import numpy as np
import pandas as pd
import pytest

DATA = Path(__file__).parents[2] / "data"
SAMPLES = ("sample_full", "sample_shallow", "sample_panel")
PARTS = ("reference", *SAMPLES)


@pytest.fixture(scope="module")
def make_example() -> ModuleType:
    """data/make_example.py, which is a script outside the package."""
    spec = importlib.util.spec_from_file_location("make_example", DATA / "make_example.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def example(make_example: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the script writes."""
    folder = tmp_path_factory.mktemp("example") / "made"
    make_example.main([str(folder)])
    return folder


@pytest.fixture(scope="module")
def pbmc3k() -> ad.AnnData:
    return ad.read_h5ad(DATA / "pbmc3k.h5ad")


def test_file_is_the_one_that_the_readme_describes(pbmc3k: ad.AnnData) -> None:
    file = (DATA / "pbmc3k.h5ad").read_bytes()
    assert re.findall(r"SHA-256.*?`([0-9a-f]{64})`", (DATA / "README.md").read_text()) == [
        hashlib.sha256(file).hexdigest()
    ]
    assert len(file) < 6e6
    # Cells, genes and expressed values of Seurat's pbmc3k.final, which others made from the same reads.
    assert (*pbmc3k.shape, pbmc3k.X.nnz) == (2638, 13714, 2238732)
    np.testing.assert_array_equal(pbmc3k.X.data, np.round(pbmc3k.X.data))
    sizes = [697, 483, 480, 344, 271, 162, 155, 32, 14]  # of the clusters of Seurat's tutorial
    assert sorted(pbmc3k.obs["cell_type"].value_counts(), reverse=True) == sizes


def test_parts_share_no_cell_and_samples_no_label(example: Path, pbmc3k: ad.AnnData) -> None:
    cells: list[str] = []
    for name in PARTS:
        part = ad.read_h5ad(example / f"{name}.h5ad")
        labels = pbmc3k.obs.loc[part.obs_names, "cell_type"].astype(str)
        assert set(labels) == set(pbmc3k.obs["cell_type"])
        cells += list(part.obs_names)
        if name == "reference":
            assert list(part.obs["cell_type"]) == list(labels)
            assert part.n_obs == pytest.approx(0.6 * pbmc3k.n_obs, rel=0.01)  # rounded for each label
            continue
        assert not list(part.obs)
        assert not part.uns
        truth = pd.read_csv(example / f"truth/{name}.csv", index_col="cell")["cell_type"]
        pd.testing.assert_series_equal(truth, labels, check_names=False)
    assert sorted(cells) == sorted(pbmc3k.obs_names)


def test_shallow_sample_has_a_third_of_each_count_by_binomial_draws(example: Path, pbmc3k: ad.AnnData) -> None:
    shallow = ad.read_h5ad(example / "sample_shallow.h5ad")
    assert list(shallow.var_names) == list(pbmc3k.var_names)
    before, after = pbmc3k[shallow.obs_names].X.toarray(), shallow.X.toarray()
    assert shallow.X.nnz == np.count_nonzero(after)
    np.testing.assert_array_equal(after, np.round(after))
    assert (after <= before).all()
    # Binomial draws of n counts have mean n/3 and variance 2n/9; the sums are of 800,000 counts, so five standard
    # deviations of the first are 0.3 % of it.
    assert after.sum() == pytest.approx(before.sum() / 3, rel=0.005)
    assert ((after - before / 3) ** 2).sum() == pytest.approx(before.sum() * 2 / 9, rel=0.02)
    lost = after[before == 1] == 0
    assert lost.mean() == pytest.approx(2 / 3, abs=0.005)


def test_panel_has_the_genes_that_vary_most_in_the_reference(example: Path, pbmc3k: ad.AnnData) -> None:
    panel = ad.read_h5ad(example / "sample_panel.h5ad")
    counts = ad.read_h5ad(example / "reference.h5ad").to_df().astype(float)
    dispersion = (counts.var(ddof=0) / counts.mean()).dropna()
    assert len(set(panel.var_names)) == panel.n_vars == 1000
    assert dispersion[panel.var_names].min() >= dispersion.drop(panel.var_names).max()
    assert (panel.X != pbmc3k[panel.obs_names, panel.var_names].X).nnz == 0
    # Markers of six labels, as Seurat's tutorial names them.
    assert {"MS4A1", "GNLY", "NKG7", "LYZ", "FCGR3A", "FCER1A", "PPBP"} <= set(panel.var_names)
