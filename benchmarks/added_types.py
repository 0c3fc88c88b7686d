"""Types that the cells of a reference lack and profiles add: recall of each type when its cells are left out.

    python data/make_references.py PROFILES references
    python benchmarks/added_types.py baron_pancreas_human.h5ad references/human_adult.Pancreas_HCA.h5ad --batches donor

The first half of the batches (sorted), or half of the cells at random, is the reference; the others are called. In
turn, each type that both files have by its ontology id, with 20 called cells or more, is left out of the reference.
Accuracy is of all called cells. The result is printed as a Markdown table.
"""

import argparse
import io
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
from machine import machine
from panel import be_quiet

import scperformer as scp
from scperformer.labels.ontology import find_terms
from scperformer.labels.tree import UNKNOWN_TERM

LABEL = "cell_type"
TERM = f"{LABEL}_ontology_term_id"
MIN_CELLS = 20  # called cells of a type


def called(reference: ad.AnnData, profiles: ad.AnnData, cells: ad.AnnData) -> pd.DataFrame:
    """Return the label and the call of each cell by a model of both, trained with the default options."""
    cells = cells.copy()
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name) / "cells.h5ad", Path(name) / "profiles.h5ad"]
        reference.write_h5ad(files[0])
        profiles.write_h5ad(files[1])
        model = scp.train(files, LABEL, output=Path(name) / "model", options={"logger": "none"})
        with redirect_stdout(io.StringIO()):
            scp.annotate(cells, model.load())
    return cells.obs[["scperformer_label", "scperformer_call"]].astype(str)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cells", type=Path)
    parser.add_argument("profiles", type=Path)
    parser.add_argument("--batches", help="obs column of batches")
    arguments = parser.parse_args()
    be_quiet()
    cells = ad.read_h5ad(arguments.cells)
    cells = cells[cells.obs[LABEL].notna()].copy()
    labels = cells.obs[LABEL].astype(str)
    names = sorted(set(labels))
    terms = find_terms(names, [UNKNOWN_TERM] * len(names), "packaged")[0]
    if TERM not in cells.obs:
        cells.obs[TERM] = labels.map(dict(zip(names, terms, strict=True)))
    label_of = dict(zip(cells.obs[TERM].astype(str), labels, strict=True))
    profiles = ad.read_h5ad(arguments.profiles)
    profiles = profiles[
        profiles.obs[TERM].isin(set(label_of) - {UNKNOWN_TERM}) & ~profiles.obs[TERM].duplicated()
    ].copy()
    as_in_cells = dict(
        zip(profiles.obs[LABEL].astype(str), profiles.obs[TERM].map(label_of), strict=True)
    )
    if arguments.batches is None:
        first = np.random.default_rng(0).random(cells.n_obs) < 0.5
    else:
        batches = sorted(set(cells.obs[arguments.batches]))
        first = cells.obs[arguments.batches].isin(batches[: len(batches) // 2]).to_numpy()
    reference, query = cells[first].copy(), cells[~first].copy()
    truth = query.obs[LABEL].astype(str)
    print(
        f"{machine()}\n\n| Type | Cells | Recall | Precision | Accuracy of all | Flagged unknown | Mostly called |"
    )
    print("|---|---|---|---|---|---|---|")
    for left_out in profiles.obs[TERM].map(label_of):
        is_type = truth == left_out
        if is_type.sum() < MIN_CELLS:
            continue
        found = called(
            reference[reference.obs[LABEL].astype(str) != left_out].copy(), profiles, query
        )
        own = found["scperformer_label"]
        own = own.where(own.isin(names), own.map(as_in_cells))
        is_unknown = found["scperformer_call"] == "unknown"
        scores = (
            (own == left_out)[is_type].mean(),
            is_type[own == left_out].mean(),
            (own == truth).mean(),
        )
        shown = " | ".join(f"{score:.3f}" for score in (*scores, is_unknown[is_type].mean()))
        print(f"| {left_out} | {is_type.sum()} | {shown} | {own[is_type].mode()[0]} |", flush=True)


if __name__ == "__main__":
    main()
