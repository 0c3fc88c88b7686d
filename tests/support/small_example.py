"""A small reference and two samples without counts: the 700 PBMC that scanpy carries, as they are there."""

from pathlib import Path

import numpy as np
import scanpy as sc

SAMPLES = ("sample_a", "sample_b")
SHARE = 0.2  # of each label's cells, for each sample; the rest is the reference
LABELS = "bulk_labels"
# Made from the labels, or a second labelling of the same cells: a sample must not carry them.
FROM_LABELS = {
    "obs": (LABELS, "louvain"),
    "uns": (f"{LABELS}_colors", "louvain", "louvain_colors", "rank_genes_groups"),
}


def write_small_example(folder: Path) -> None:
    """Write reference.h5ad with labels in `cell_type`, the samples, truth/SAMPLE.csv and samples.tsv into a folder."""
    cells = sc.datasets.pbmc68k_reduced()
    labels = cells.obs[LABELS].to_numpy(dtype=str)
    rng = np.random.default_rng(0)
    parts = np.full(len(labels), "reference", dtype=object)
    for label in np.unique(labels):  # so that rare labels reach every part
        drawn = rng.permutation(np.flatnonzero(labels == label))
        size = round(SHARE * len(drawn))
        for number, name in enumerate(SAMPLES):
            parts[drawn[number * size : (number + 1) * size]] = name

    (folder / "truth").mkdir(parents=True)
    reference = cells[parts == "reference"].copy()
    reference.obs["cell_type"] = reference.obs[LABELS]
    reference.write_h5ad(folder / "reference.h5ad")
    for name in SAMPLES:
        sample = cells[parts == name].copy()
        truth = sample.obs[LABELS].astype(str).rename("cell_type").rename_axis("cell")
        truth.to_csv(folder / "truth" / f"{name}.csv")
        sample.obs = sample.obs.drop(columns=list(FROM_LABELS["obs"]))
        for key in FROM_LABELS["uns"]:
            del sample.uns[key]
        sample.write_h5ad(folder / f"{name}.h5ad")
    rows = [f"{name}\t{name}.h5ad\ttruth/{name}.csv\n" for name in SAMPLES]
    (folder / "samples.tsv").write_text("".join(["sample\tpath\ttruth\n", *rows]))
