"""Take some cells of the human pancreas of Baron et al. 2016, which the workflow annotates without a model.

The cells are spread over types and donors, so that rare types are in the file. Genes that fewer than 6 cells express
are left out.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pandas as pd
from anndata.io import write_elem
from scipy import sparse

CELLS = Path(__file__).with_name("baron_pancreas.h5ad")
LABELS, DONOR = "cell_type", "donor"
COLUMNS = [LABELS, "cell_ontology_class", DONOR]  # of obs, which are kept
NUM_EACH = 9  # cells of a type and a donor, at most
MIN_CELLS = 6  # in which a gene must be expressed


def choose(obs: pd.DataFrame, rng: np.random.Generator) -> np.ndarray:
    """Draw at most `NUM_EACH` cells of each type of each donor; their ascending numbers."""
    order = rng.permutation(len(obs))
    rank = obs.iloc[order].groupby([LABELS, DONOR], observed=True).cumcount().to_numpy()
    return np.sort(order[rank < NUM_EACH])


def main(argv: Sequence[str] | None = None) -> None:
    """Write the chosen cells."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "cells", type=Path, help="cells of GSE84133, human: counts in X, cell_type and donor in obs"
    )
    parser.add_argument(
        "--output", type=Path, default=CELLS, help="the file to write (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw (%(default)s)")
    options = parser.parse_args(argv)

    whole = ad.read_h5ad(options.cells)
    rows = choose(whole.obs, np.random.default_rng(options.seed))
    counts = sparse.csr_matrix(whole.X)[rows].astype(np.uint16)
    is_expressed = counts.getnnz(axis=0) >= MIN_CELLS
    obs = whole.obs.iloc[rows][COLUMNS].astype(str).astype("category")
    var = pd.DataFrame(index=whole.var_names[is_expressed])
    chosen = ad.AnnData(counts[:, is_expressed].toarray(), obs=obs, var=var)
    with h5py.File(options.output, "w") as file:  # dense and shuffled: the file is small
        write_elem(
            file,
            "/",
            chosen,
            dataset_kwargs={"compression": "gzip", "compression_opts": 9, "shuffle": True},
        )
    print(
        f"{options.output}: {chosen.n_obs} cells x {chosen.n_vars} genes, {options.output.stat().st_size:,} bytes"
    )


if __name__ == "__main__":
    main()
