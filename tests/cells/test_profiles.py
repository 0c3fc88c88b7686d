"""References of mean profiles: recognised, simulated from, trained on; in every unit."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import scperformer
from scperformer.base.errors import InputError
from scperformer.cells import profiles
from scperformer.cells.profiles import has_profiles, simulate_cells
from scperformer.cli.compose import make_config

OPTIONS = {"experiment": "linear", "data.min_genes": 1, "logger": "none"}


@pytest.fixture
def means(counts_adata) -> ad.AnnData:
    """The mean counts per million of the cells of each label."""
    table = counts_adata.to_df().groupby(counts_adata.obs["cell_type"].to_numpy()).mean()
    table = table.div(table.sum(axis=1), axis=0) * 1e6
    obs = pd.DataFrame({"cell_type": table.index}, index=[f"row{i}" for i in range(len(table))])
    return ad.AnnData(table.to_numpy(np.float32), obs=obs, var=counts_adata.var[[]])


def simulated(adata: ad.AnnData, **options) -> ad.AnnData:
    words = ["inputs=[a.h5ad]", "label_key=cell_type", *(f"{name}={value}" for name, value in options.items())]
    return simulate_cells(adata, make_config("train", words), "a.h5ad")


def test_simulated_cells_have_the_means_of_their_profile(means, monkeypatch):
    monkeypatch.setattr(profiles, "NUM_CELLS", 2000)
    cells = simulated(means)
    assert cells.obs["cell_type"].value_counts().tolist() == [2000] * 3
    counts = cells.X.toarray()
    assert (counts == counts.astype(int)).all()
    assert np.median(counts.sum(1)) == pytest.approx(profiles.DEPTH, rel=0.05)
    shares = counts / counts.sum(1, keepdims=True)
    for row, label in enumerate(means.obs["cell_type"]):
        own = shares[(cells.obs["cell_type"] == label).to_numpy()]
        error = own.std(0) / 2000**0.5
        off = np.abs(own.mean(0) - means.X[row] / 1e6)
        # dividing by the total of a cell lowers large shares by a few per cent
        assert (off < 5 * error + 0.04 * means.X[row] / 1e6).all()


@pytest.mark.parametrize("form", ["counts", "log1p", "log2", "sparse"])
def test_values_are_recognised_as_those_of_cells(means, form):
    forms = {
        "counts": lambda x: np.rint(50 * x),
        "log1p": lambda x: np.log1p(x / 100),
        "log2": lambda x: np.log2(1 + x / 100),
        "sparse": sparse.csr_matrix,
    }
    other = means.copy()
    other.X = forms[form](means.X)
    ours, theirs = (simulated(adata).X.toarray() for adata in (means, other))
    assert (ours != theirs).mean() < 0.01  # the same random numbers, and rates that differ by rounding


def test_a_model_of_profiles_annotates_cells(means, counts_adata, write, tmp_path):
    assert not has_profiles(counts_adata, "cell_type")
    options = OPTIONS | {"orientation": "genes_by_cells"}
    for path in (write(means, "profiles.h5ad"), tmp_path / "profiles.csv"):
        if path.suffix == ".csv":
            means.to_df().set_axis(means.obs["cell_type"].to_numpy()).T.to_csv(path)
        model = scperformer.train(path, "cell_type", output=tmp_path / path.stem, options=options, overwrite=True)
        cells = counts_adata.copy()
        scperformer.annotate(cells, model.load())
        assert (cells.obs["scperformer_label"] == cells.obs["cell_type"]).mean() > 0.9


def test_a_profile_without_expression_is_refused(means):
    means.X[1] = 0
    with pytest.raises(InputError, match=r"a profile without expression in a\.h5ad; .*leave it out"):
        simulated(means)
