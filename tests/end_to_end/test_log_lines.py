"""Lines of the log and errors: none is longer than 300 characters, also with many labels of long names."""

import shlex

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse

LONGEST = 300
NUM_LABELS = 102
QUICK = ["experiment=linear", "data.min_genes=0", "logger=none"]
COMMANDS = {  # and their exit codes
    "train a.h5ad label_keys=[lineage,cell_type] batch_key=batch output=m": 0,
    "train a.h5ad b.h5ad label_key=cell_type output=joint": 0,
    "train a.h5ad label_key=cell_type data.rare_labels=error data.min_cells_per_label=4 output=x": 2,
    "train a.h5ad label_key=none output=x": 2,
    "train a.h5ad label_key=cell_type batch_key=none output=x": 2,
    "predict query.h5ad model_path=m prior=em": 0,
    "predict query.h5ad model_path=joint output=by_joint.h5ad alpha=0.1 min_confidence=0.5 clusters=auto": 0,
    "predict query.h5ad model_path=m output=x.h5ad allow_labels=[none]": 2,
    "predict query.h5ad model_path=m output=x.h5ad clusters=none": 2,
    "check query.h5ad model_path=joint": 0,
    "check a.h5ad label_key=cell_type": 0,
    "evaluate query.annotated.h5ad truth_key=truth": 0,
    "evaluate query.annotated.h5ad truth_key=none output=x": 2,
}


def made_cells(seed: int) -> AnnData:
    """Three cells of each of 102 labels in 17 lineages, from 20 batches, all with long names; 90 more columns."""
    rng = np.random.default_rng(seed)
    codes = np.arange(3 * NUM_LABELS) % NUM_LABELS
    mean = np.full((len(codes), 400), 0.6)
    for label, genes in enumerate(np.random.default_rng(0).integers(0, 400, (NUM_LABELS, 30))):
        mean[np.ix_(codes == label, genes)] = 3
    obs = pd.DataFrame({f"a column with a long name {i}": np.arange(len(codes)) for i in range(90)})
    obs["cell_type"] = [f"a cell type with a long name, number {code}" for code in codes]
    obs["lineage"] = [f"a lineage with a long name, number {code % 17}" for code in codes]
    obs["batch"] = [f"a donor with a long name, number {i % 20}" for i in range(len(codes))]
    obs["truth"] = [f"another {label}" if i % 2 else label for i, label in enumerate(obs["cell_type"])]
    obs.index = obs.index.astype(str)
    var = pd.DataFrame(index=[f"GENE{i}" for i in range(400)])
    return AnnData(sparse.csr_matrix(rng.poisson(mean), dtype=np.float32), obs=obs, var=var)


@pytest.mark.slow
def test_no_line_is_longer_than_300_characters(command):
    for seed, name in enumerate(["a", "b", "query"]):
        made_cells(seed).write_h5ad(f"{name}.h5ad")
    too_long = []
    for text, code in COMMANDS.items():
        done = command(*shlex.split(text), *(QUICK if text.startswith("train") else []))
        assert done.code == code, done.err
        too_long += [line for line in done.err.splitlines() if len(line) > LONGEST]
    assert too_long == []
