"""Accuracy of an imported model on panels and shallow files, as it is and adapted with labelled cells.

    python benchmarks/imported_panels.py                  # 700 labelled cells, seeds 0 and 1
    python benchmarks/imported_panels.py --kept 100

A model of 3,000 genes, as CellTypist writes it, is fitted to 800 cells of PBMC 3k by scikit-learn; others are its
labelled cells, and 1,138 are annotated. The expected accuracy is that which `predict` states.
"""

import argparse
import os
import pickle
import tempfile
from pathlib import Path

import anndata as ad
import numpy as np
import scanpy as sc
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import scperformer as scp

DATA = Path(__file__).parents[1] / "data" / "pbmc3k.h5ad"
NUM_TRAINED = 800
NUM_GENES = 3_000
PANELS = (1_000, 200, 50)
FIRST_TEST = 1_500


def write_model(cells: ad.AnnData, path: Path) -> np.ndarray:
    """Write a model as CellTypist does, and return its genes."""
    cells = cells.copy()
    sc.pp.normalize_total(cells, target_sum=1e4)
    sc.pp.log1p(cells)
    x = cells.X.toarray()
    genes = np.sort(np.argsort(-x.var(axis=0), kind="stable")[:NUM_GENES])
    scaler = StandardScaler().fit(x[:, genes])
    z = np.minimum(scaler.transform(x[:, genes]), 10)
    classifier = LogisticRegression(C=0.05, max_iter=50).fit(z, cells.obs["cell_type"].astype(str))
    classifier.features = cells.var_names[genes].to_numpy(object)
    path.write_bytes(pickle.dumps({"Model": classifier, "Scaler_": scaler, "description": {}}))
    return classifier.features


def rows(cells: ad.AnnData, seed: int, num_kept: int, folder: Path) -> dict[str, tuple[float, float, float]]:
    """Return the accuracy as it is, adapted, and expected, by the condition of the file."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(cells.n_obs)
    genes = write_model(cells[order[:NUM_TRAINED]], folder / "model.pkl")
    cells[order[NUM_TRAINED : NUM_TRAINED + num_kept]].copy().write_h5ad(folder / "kept.h5ad")
    test = cells[order[FIRST_TEST:]].copy()
    named = {"reference": folder / "kept.h5ad", "label_key": "cell_type", "overwrite": True}
    model = scp.import_model(folder / "model.pkl", **named).load()
    files = {"all genes": test}
    files |= {f"{num:,} genes": test[:, list(rng.choice(genes, num, replace=False))].copy() for num in PANELS}
    shallow = test.copy()
    sc.pp.downsample_counts(shallow, counts_per_cell=(np.asarray(test.X.sum(1)).ravel() / 4).astype(int))
    shallow.X = shallow.X.astype(np.float32)
    files["a quarter of the counts"] = shallow
    truth = test.obs["cell_type"].astype(str).to_numpy()
    found = {}
    for name, file in files.items():
        scores = []
        for adapt in ("false", "auto"):
            made = scp.annotate(file.copy(), model, options={"adapt": adapt, "min_overlap": 0.0})
            scores.append(float((made.obs["scperformer_label"].astype(str) == truth).mean()))
        found[name] = (*scores, float(made.uns["scperformer"]["condition"]["expected_accuracy"]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=int, default=700, help="labelled cells")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--source", type=Path, default=DATA)
    arguments = parser.parse_args()
    cells = ad.read_h5ad(arguments.source)
    cells.X = cells.X.astype(np.float32)
    found = []
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as name:
            os.environ["SCPERFORMER_MODELS"] = str(Path(name) / "models")
            found.append(rows(cells, seed, arguments.kept, Path(name)))
    print("| file | as it is | adapted | expected |\n|---|---|---|---|")
    for name in found[0]:
        columns = (", ".join(f"{row[name][place]:.3f}" for row in found) for place in range(3))
        print(f"| {name} | {' | '.join(columns)} |")


if __name__ == "__main__":
    main()
