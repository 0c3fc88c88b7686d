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
    profiles = tissue.profiles.iloc[: tissue.sources.count(tissue.sources[0])]
    counts = simulated_counts(csr_matrix(profiles.to_numpy() / 1e6), num, seed)
    labels = np.repeat(profiles.index.to_numpy(object), num)
    obs = pd.DataFrame(
        {"cell_type": pd.Categorical(labels)}, index=[f"cell{i}" for i in range(len(labels))]
    )
    return ad.AnnData(counts, obs=obs, var=pd.DataFrame(index=profiles.columns.to_numpy(object)))


def cells_of_tissue(name: str, num: int = 12, seed: int = 1) -> ad.AnnData:
    """Return `num` simulated cells of each type of the set of a tissue, with obs.cell_type; a fresh copy."""
    return _cells(name, num, seed).copy()


def cells_of_profiles(profiles: pd.DataFrame, num: int | list[int], seed: int = 1) -> ad.AnnData:
    """Return simulated cells, `num` of each of some profiles of types x genes, with obs.cell_type."""
    cells = profiles.iloc[np.repeat(np.arange(len(profiles)), num)]
    counts = simulated_counts(csr_matrix(cells.to_numpy() / 1e6), 1, seed)
    obs = pd.DataFrame(
        {"cell_type": cells.index.to_numpy(object)}, index=[f"cell{i}" for i in range(len(cells))]
    )
    return ad.AnnData(counts, obs=obs, var=pd.DataFrame(index=profiles.columns.to_numpy(object)))


def common_and_specific(name: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the profiles of the set of a tissue: types that occur everywhere, and the other ones."""
    source = collection().tissues().set_index("name").loc[name, "set"]
    profiles = collection().profiles(source)
    is_common = np.array([collection().is_common(term) for term in collection().terms(source)])
    return profiles[is_common], profiles[~is_common]


def joined_profiles(*parts: pd.DataFrame) -> pd.DataFrame:
    """Return the profiles of several studies, of the genes that all of them measure."""
    return pd.concat(parts, join="inner")


def malignant(profile: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Return a profile that resembles no type: one with permuted genes."""
    genes = np.random.default_rng(seed).permutation(profile.shape[1])
    return pd.DataFrame(
        profile.to_numpy()[:, genes], index=["malignant cell"], columns=profile.columns
    )
