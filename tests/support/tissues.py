"""Cells of a tissue, simulated from its profiles."""

from functools import cache

import anndata as ad
import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from scperformer.cells.profiles import simulated_counts
from scperformer.model.tissues import collection


@cache
def _cells(name: str, num: int, seed: int) -> ad.AnnData:
    tissue = collection().tissue(name)
    profiles = tissue.profiles.iloc[: len(tissue.profiles) - tissue.num_added]
    counts = simulated_counts(csr_matrix(profiles.to_numpy() / 1e6), num, seed)
    labels = np.repeat(profiles.index.to_numpy(object), num)
    obs = pd.DataFrame({"cell_type": pd.Categorical(labels)}, index=[f"cell{i}" for i in range(len(labels))])
    return ad.AnnData(counts, obs=obs, var=pd.DataFrame(index=profiles.columns.to_numpy(object)))


def cells_of_tissue(name: str, num: int = 12, seed: int = 1) -> ad.AnnData:
    """Return `num` simulated cells of each type of the set of a tissue, with obs.cell_type; a fresh copy."""
    return _cells(name, num, seed).copy()
