"""A model of CellTypist, made by CellTypist on the spot, there and here: scores, genes, time and memory.

    python benchmarks/celltypist_models.py PYTHON table.md                      # 98 labels, 100,000 cells
    python benchmarks/celltypist_models.py PYTHON table.md --cells 10000 --rounds 3

PYTHON is that of an environment with CellTypist. The model has 6,639 genes, as many as CellTypist's immune models, and
98 labels: those of PBMC 3k, each split at random, so that only sizes are those of a real model. Cells are drawn from
PBMC 3k with replacement. Each run is a new process, measured from its start to the written file; the two take turns.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import scanpy as sc
from machine import machine
from speed import in_new_process, run
from words import as_options

import scperformer as scp
from scperformer.genes import human_genes

THERE = Path(__file__).with_name("celltypist_there.py")
DATA = Path(__file__).parents[1] / "data" / "pbmc3k.h5ad"
NUM_LABELS = 98
NUM_GENES = 6_639
NUM_COMPARED = 2_638  # cells whose scores are compared


def log_normalised(source: Path) -> ad.AnnData:
    cells = ad.read_h5ad(source)
    cells.X = cells.X.astype(np.float32)
    sc.pp.normalize_total(cells, target_sum=1e4)
    sc.pp.log1p(cells)
    cells.uns.pop("log1p")
    return cells


def write_reference(source: Path, path: Path) -> None:
    """Write cells with labels that are split at random, and the most variable genes."""
    cells = log_normalised(source)
    order = np.argsort(-np.asarray(cells.X.power(2).mean(0) - np.square(cells.X.mean(0))).ravel(), kind="stable")
    cells = cells[:, np.sort(order[:NUM_GENES])].copy()
    rng = np.random.default_rng(0)
    types = cells.obs["cell_type"].astype(str).to_numpy()
    counts = pd.Series(types).value_counts()
    parts = np.maximum(1, np.floor(NUM_LABELS * counts / counts.sum()).astype(int))
    parts[counts.index[0]] += NUM_LABELS - parts.sum()
    cells.obs["label"] = [f"{name} {rng.integers(parts[name])}" for name in types]
    cells.write_h5ad(path)


def write_cells(source: Path, num_cells: int, path: Path) -> None:
    """Write log-normalised cells drawn with replacement."""
    cells = log_normalised(source)
    rows = np.random.default_rng(1).integers(0, cells.n_obs, num_cells)
    drawn = ad.AnnData(cells.X[rows], var=cells.var[[]])
    drawn.obs_names = [f"cell_{number}" for number in range(num_cells)]
    drawn.write_h5ad(path)


def forms(source: Path) -> dict[str, ad.AnnData]:
    """Return the same cells as files of other kinds."""
    cells = log_normalised(source)
    counts = ad.read_h5ad(source)
    found = {"log-normalised, symbols": cells, "counts, symbols": counts}
    ids = human_genes().ids
    found["log-normalised, Ensembl ids"] = cells.copy()
    found["log-normalised, Ensembl ids"].var_names = [ids.get(name, name) for name in cells.var_names]
    found["log-normalised, Ensembl ids"].var_names_make_unique()
    found["log-normalised, lower case"] = cells.copy()
    found["log-normalised, lower case"].var_names = cells.var_names.str.lower()
    found["scaled, counts in a layer"] = cells.copy()
    found["scaled, counts in a layer"].layers["counts"] = counts.X
    found["scaled, counts in a layer"].X = np.clip((cells.X.toarray() - 0.2) / 0.5, None, 10)
    panel = counts[:, ::20].copy()
    found["counts of a panel"] = panel
    return found


def compare_scores(python: str, model: Path, folder: Path, source: Path) -> str:
    """Return the largest differences of scores, probabilities and labels with genes=exact."""
    sample = folder / "compared.h5ad"
    log_normalised(source)[:NUM_COMPARED].write_h5ad(sample)
    run([python, str(THERE), "scores", str(sample), str(model), str(folder / "there.npz")])
    there = np.load(folder / "there.npz")
    cells = scp.annotate(ad.read_h5ad(sample), "immune", options=as_options(["genes=exact"]))
    found = np.abs(cells.obsm["X_scperformer"] - there["decision"]).max()
    own = np.abs(cells.obsm["scperformer_own_proba"].to_numpy() - there["probability"]).max()
    same = (cells.obs["scperformer_label"].astype(str) == there["labels"]).sum()
    largest = np.abs(there["decision"]).max()
    return (
        f"Scores of {cells.n_obs:,} cells (up to {largest:.1f}): largest difference {found:.1e}; probabilities: "
        f"{own:.1e}; the same label: {same:,}."
    )


def compare_forms(python: str, model: Path, folder: Path, source: Path) -> str:
    """Return a table of what each makes of files of several kinds."""
    lines = ["| file | CellTypist | genes found by exactly the same name | genes found by default | same labels |"]
    lines.append("|---" * 5 + "|")
    usual = None
    for name, cells in forms(source).items():
        path = folder / "form.h5ad"
        cells.write_h5ad(path)
        run([python, str(THERE), "scores", str(path), str(model), str(folder / "form.npz")])
        content = (folder / "form.npz").read_bytes()
        said = "annotated"
        if content.startswith(b"refused"):
            said = "refused: " + " ".join(content.decode().removeprefix("refused: ").split())[:90]
        options = {"min_overlap": 0.0, "species": "human"}
        found = scp.annotate(cells.copy(), "immune", options=options)
        try:
            exact = scp.annotate(cells.copy(), "immune", options=options | {"genes": "exact"})
            num_exact = exact.uns["scperformer"]["genes"]["num_shared"]
        except scp.InputError:
            num_exact = 0
        labels = found.obs["scperformer_label"].astype(str).to_numpy()
        usual = labels if usual is None else usual
        num = found.uns["scperformer"]["genes"]["num_shared"]
        lines.append(f"| {name} | {said} | {num_exact:,} | {num:,} | {(labels == usual).mean():.1%} |")
    return "\n".join(lines)


def measure(python: str, model: Path, folder: Path, arguments: argparse.Namespace, result: Path) -> None:
    """Write a table of time and memory of both, for a file of many cells."""
    sample = folder / "sample.h5ad"
    in_new_process(write_cells, arguments.source, arguments.cells, sample)
    out = folder / "out.h5ad"
    ours = [sys.executable, "-m", "scperformer", "predict", str(sample), "model_path=immune", f"output={out}"]
    commands = {
        "scperformer": ours,
        "CellTypist": [python, str(THERE), "annotate", str(sample), str(model), str(out)],
    }
    lines = []
    for _ in range(arguments.rounds):
        for name, words in commands.items():
            cost = run(words)
            out.unlink()
            print(json.dumps({"method": name, **vars(cost)}), file=sys.stderr, flush=True)
            lines.append({"method": name, **vars(cost)})
    medians = pd.DataFrame(lines).groupby("method", sort=False).median()
    text = ["| | wall time (s) | CPU time (s) | cells/s | peak memory (GiB) |", "|---" * 5 + "|"]
    for name, row in medians.iterrows():
        speed = f"{arguments.cells / row.wall:,.0f}"
        text.append(f"| {name} | {row.wall:.1f} | {row.cpu:.1f} | {speed} | {row.memory:.2f} |")
    result.write_text("\n".join(text), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python", help="Python of an environment with CellTypist")
    parser.add_argument("markdown", type=Path, help="the tables are written to this file")
    parser.add_argument("--cells", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--source", type=Path, default=DATA)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["SCPERFORMER_MODELS"] = str(folder / "models")
        in_new_process(write_reference, arguments.source, folder / "reference.h5ad")
        model = folder / "immune.pkl"
        run([arguments.python, str(THERE), "train", str(folder / "reference.h5ad"), str(model), ""])
        saved = scp.import_model(model).load().saved
        sizes = f"{len(saved.labels)} labels, {len(saved.genes):,} genes, {model.stat().st_size / 1e6:.1f} MB"
        parts = [
            f"{machine()}; the model: {sizes}, {saved.imported['estimator']}.",
            compare_scores(arguments.python, model, folder, arguments.source),
            compare_forms(arguments.python, model, folder, arguments.source),
        ]
        # The peak memory of a process includes that of its parent at its start: a new parent has little.
        in_new_process(measure, arguments.python, model, folder, arguments, folder / "measured.md")
        parts.append(f"{arguments.cells:,} cells:\n\n{(folder / 'measured.md').read_text(encoding='utf-8')}")
    arguments.markdown.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print("\n\n".join(parts))


if __name__ == "__main__":
    main()
