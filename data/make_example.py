"""Make the data that the workflow runs on when it is given none: a labelled reference and three samples.

The cells are those of `pbmc3k.h5ad` beside this script (see README.md there). Each sample has cells of its own, without
labels: `sample_full` as they are, `sample_shallow` with a third of their counts, `sample_panel` with 1,000 genes.
"""

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import anndata as ad
import numpy as np
from anndata import AnnData
from scipy import sparse

CELLS = Path(__file__).with_name("pbmc3k.h5ad")
LABELS = "cell_type"
SAMPLES = ("sample_full", "sample_shallow", "sample_panel")
SHARE = 2 / 15  # of each label's cells, for each sample; the rest, three fifths, is the reference
DEPTH = 1 / 3  # of the counts of `sample_shallow`
PANEL_SIZE = 1000  # genes of `sample_panel`


def split(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draw the part of each cell, within each label so that rare labels reach every part.

    Parameters
    ----------
    labels
        Label of each of N cells.
    rng
        Source of the draw.

    Returns
    -------
    N names: "reference" or one of `SAMPLES`.
    """
    parts = np.full(len(labels), "reference", dtype=object)
    for label in np.unique(labels):
        cells = rng.permutation(np.flatnonzero(labels == label))
        size = round(SHARE * len(cells))
        for number, sample in enumerate(SAMPLES):
            parts[cells[number * size : (number + 1) * size]] = sample
    return parts


def thin(counts: sparse.csr_matrix, rng: np.random.Generator) -> sparse.csr_matrix:
    """Keep each counted molecule with the probability `DEPTH`, as if the cells had been sequenced less deeply.

    Parameters
    ----------
    counts
        Counts, N cells x G genes.
    rng
        Source of the draw.

    Returns
    -------
    Counts of the same shape and dtype; each is a binomial draw from that of `counts`.
    """
    thinned = counts.copy()
    thinned.data[:] = rng.binomial(counts.data.astype(np.int64), DEPTH)
    thinned.eliminate_zeros()
    return thinned


def choose_panel(counts: sparse.csr_matrix) -> np.ndarray:
    """Choose the `PANEL_SIZE` genes whose counts vary most: those of the highest variance / mean over the cells.

    Parameters
    ----------
    counts
        Counts of the reference, N cells x G genes.

    Returns
    -------
    `PANEL_SIZE` column numbers, ascending.
    """
    counts = counts.astype(np.float64)
    mean = np.asarray(counts.mean(axis=0)).ravel()
    variance = np.asarray(counts.multiply(counts).mean(axis=0)).ravel() - mean**2
    # 0 for a gene without counts
    dispersion = np.divide(variance, mean, out=np.zeros_like(mean), where=mean > 0)
    return np.sort(np.argsort(-dispersion, kind="stable")[:PANEL_SIZE])


def write_truth(adata: AnnData, label_key: str, path: Path) -> None:
    """Write the labels of a sample as a table with the columns `cell` and `label_key`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    adata.obs[LABELS].astype(str).rename(label_key).rename_axis("cell").to_csv(path)


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
    parser.add_argument(
        "--cells",
        type=Path,
        default=CELLS,
        help="the labelled cells (pbmc3k.h5ad beside this script)",
    )
    parser.add_argument(
        "--label-key", default=LABELS, help="name of the label column (%(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the split and of the thinning (%(default)s)"
    )
    options = parser.parse_args(argv)

    cells = ad.read_h5ad(options.cells)
    rng = np.random.default_rng(options.seed)
    parts = split(cells.obs[LABELS].to_numpy(dtype=str), rng)
    part_of = {name: cells[parts == name].copy() for name in ("reference", *SAMPLES)}
    reference = part_of["reference"]
    part_of["sample_shallow"].X = thin(part_of["sample_shallow"].X, rng)
    part_of["sample_panel"] = part_of["sample_panel"][:, choose_panel(reference.X)].copy()

    options.folder.mkdir(parents=True, exist_ok=True)
    for name in SAMPLES:
        sample = part_of[name]
        write_truth(sample, options.label_key, options.folder / "truth" / f"{name}.csv")
        sample.obs = sample.obs.drop(columns=LABELS)
        sample.write_h5ad(options.folder / f"{name}.h5ad")
    reference.obs = reference.obs.rename(columns={LABELS: options.label_key})
    reference.write_h5ad(options.folder / "reference.h5ad")
    write_sheet(options.folder / "samples.tsv")
    sizes = ", ".join(
        f"{name} {part.n_obs} cells x {part.n_vars} genes" for name, part in part_of.items()
    )
    print(f"{options.folder}: {sizes}")


if __name__ == "__main__":
    main()
