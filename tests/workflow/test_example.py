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
    pancreas = (DATA / "baron_pancreas.h5ad").read_bytes()
    found = [hashlib.sha256(content).hexdigest() for content in (file, pancreas)]
    assert re.findall(r"SHA-256.*?`([0-9a-f]{64})`", (DATA / "README.md").read_text()) == found
    assert len(file) < 6e6
    # Cells, genes and expressed values of Seurat's pbmc3k.final, which others made from the same reads.
    assert (*pbmc3k.shape, pbmc3k.X.nnz) == (2638, 13714, 2238732)
    np.testing.assert_array_equal(pbmc3k.X.data, np.round(pbmc3k.X.data))
    sizes = [697, 483, 480, 344, 271, 162, 155, 32, 14]  # of the clusters of Seurat's tutorial
    assert sorted(pbmc3k.obs["cell_type"].value_counts(), reverse=True) == sizes


def test_cells_of_the_pancreas_are_those_that_the_readme_describes() -> None:
    file = DATA / "baron_pancreas.h5ad"
    assert file.stat().st_size <= 1e6
    cells = ad.read_h5ad(file)
    assert (cells.shape, cells.X.dtype) == ((319, 11522), np.uint16)
    assert (cells.X > 0).sum(axis=0).min() == 6
    sizes = cells.obs.groupby(["cell_type", "donor"], observed=True).size()
    assert (sizes.max(), cells.obs["cell_type"].nunique(), cells.obs["donor"].nunique()) == (
        9,
        14,
        4,
    )
    assert cells.obs["cell_type"].value_counts().agg(["min", "max"]).tolist() == [2, 36]


def test_parts_share_no_cell_and_samples_no_label(example: Path, pbmc3k: ad.AnnData) -> None:
    cells: list[str] = []
    for name in PARTS:
        part = ad.read_h5ad(example / f"{name}.h5ad")
        labels = pbmc3k.obs.loc[part.obs_names, "cell_type"].astype(str)
        assert set(labels) == set(pbmc3k.obs["cell_type"])
        cells += list(part.obs_names)
        if name == "reference":
            assert list(part.obs["cell_type"]) == list(labels)
            # rounded for each label
            assert part.n_obs == pytest.approx(0.6 * pbmc3k.n_obs, rel=0.01)
            continue
        assert not list(part.obs)
        assert not part.uns
        truth = pd.read_csv(example / f"truth/{name}.csv", index_col="cell")["cell_type"]
        pd.testing.assert_series_equal(truth, labels, check_names=False)
    assert sorted(cells) == sorted(pbmc3k.obs_names)
