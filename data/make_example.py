"""Make a small data set without a download: a labelled reference, and two samples with their labels apart.

The cells are the 700 PBMC that scanpy carries inside its own package (see data/README.md). They are left as
they are there: X scaled, `.raw` log-normalised, no counts.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scanpy as sc
from anndata import AnnData

SAMPLES = ("sample_a", "sample_b")
SHARE = 0.2  # of each label's cells, for each sample; the rest is the reference
LABELS = "bulk_labels"
# Made from the labels, or a second labelling of the same cells: a sample must not carry them.
FROM_LABELS = {
    "obs": (LABELS, "louvain"),
    "uns": (f"{LABELS}_colors", "louvain", "louvain_colors", "rank_genes_groups"),
}


def split(labels: np.ndarray, seed: int) -> np.ndarray:
    """Part of each cell, drawn within each label so that rare labels reach every part.

    Parameters
    ----------
    labels
        Label of each of N cells.
    seed
        Seed of the draw.

    Returns
    -------
    N names: "reference" or one of `SAMPLES`.
    """
    rng = np.random.default_rng(seed)
    parts = np.full(len(labels), "reference", dtype=object)
    for label in np.unique(labels):
        cells = rng.permutation(np.flatnonzero(labels == label))
        size = round(SHARE * len(cells))
        for number, sample in enumerate(SAMPLES):
            parts[cells[number * size : (number + 1) * size]] = sample
    return parts


def without_labels(adata: AnnData) -> AnnData:
    """A copy of the cells without anything that was made from their labels."""
    sample = adata.copy()
    sample.obs = sample.obs.drop(columns=list(FROM_LABELS["obs"]))
    for key in FROM_LABELS["uns"]:
        del sample.uns[key]
    return sample


def write_truth(adata: AnnData, label_key: str, path: Path) -> None:
    """Write the labels of a sample as a table with the columns `cell` and `label_key`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    truth = adata.obs[LABELS].astype(str).rename(label_key).rename_axis("cell")
    truth.to_csv(path)


def write_sheet(path: Path) -> None:
    """Write the sample sheet that the workflow reads; its paths are relative to the sheet."""
    with path.open("w", newline="") as lines:
        sheet = csv.writer(lines, dialect=csv.excel_tab, lineterminator="\n")
        sheet.writerow(["sample", "path", "truth"])
        sheet.writerows([name, f"{name}.h5ad", f"truth/{name}.csv"] for name in SAMPLES)


def main(argv: Sequence[str] | None = None) -> None:
    """Write reference.h5ad, the samples, their truth and samples.tsv into a folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to write; made if it is not there")
    parser.add_argument("--label-key", default="cell_type", help="name of the label column (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the split (%(default)s)")
    options = parser.parse_args(argv)

    cells = sc.datasets.pbmc68k_reduced()
    parts = split(cells.obs[LABELS].to_numpy(dtype=str), options.seed)
    options.folder.mkdir(parents=True, exist_ok=True)
    reference = cells[parts == "reference"].copy()
    reference.obs[options.label_key] = reference.obs[LABELS]
    reference.write_h5ad(options.folder / "reference.h5ad")
    for name in SAMPLES:
        sample = cells[parts == name]
        write_truth(sample, options.label_key, options.folder / "truth" / f"{name}.csv")
        without_labels(sample).write_h5ad(options.folder / f"{name}.h5ad")
    write_sheet(options.folder / "samples.tsv")
    sizes = ", ".join(f"{name} {np.count_nonzero(parts == name)} cells" for name in ("reference", *SAMPLES))
    print(f"{options.folder}: {sizes}")


if __name__ == "__main__":
    main()
