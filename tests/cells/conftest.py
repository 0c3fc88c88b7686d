"""Real counts for the tests of how cells are prepared."""

from pathlib import Path

import anndata as ad
import pytest


@pytest.fixture(scope="session")
def pbmc3k() -> ad.AnnData:
    """1,000 PBMC x 13,714 genes of counts; tests that change them copy them first."""
    return ad.read_h5ad(Path(__file__).parents[2] / "data" / "pbmc3k.h5ad")[:1000].copy()
