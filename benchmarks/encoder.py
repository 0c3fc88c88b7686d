"""Accuracy of variants of the Performer on held-out cells, beside the same network without attention.

    python benchmarks/encoder.py pbmc3k.h5ad cell_type runs model.depth=0 default constant
    python benchmarks/encoder.py kang.h5ad cell_type runs --where condition=CTRL --cells 1000,4000 model.depth=0 default
    python benchmarks/encoder.py pbmc3k.h5ad cell_type runs model.depth=0 model.num_heads=4,attention.num_features=32

A variant is a comma-separated list of options of `train`; `default` stands for none. The first one is the reference of
the differences. `constant` in a list is a control: the query is the same for all cells, so that attention is only a
learned pooling. All variants are fitted and called by `fit_branches`, as in `train`: up to 4,000 cells are called by
fits to other cells. `--cells` draws that many cells of the file for each seed. The file holds raw counts in X.

The logits of each run are kept in a folder, and runs that are there are not repeated. The result is printed as
Markdown, mean ± standard error over the seeds: accuracy and macro-F1 of the encoder alone; loss (mean negative log
likelihood), accuracy and macro-F1 with the linear branch; and the CPU seconds of the encoder. Differences are paired:
to the first variant with the same seed.
"""

import argparse
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
import scanpy as sc
import torch
from machine import machine
from scipy.sparse import csr_matrix

from scperformer.base.metrics import negative_log_likelihood, score
from scperformer.config import make_config
from scperformer.fitting import LinearOptions, branch_scales, fit_branches
from scperformer.network.performer import ReadLayer

CONSTANT = "constant"
LINEAR = "linear"
MIN_CELLS = 3  # that express a gene
# The options that `train` finds by cross-validation of most references.
LINEAR_OPTIONS = LinearOptions((0.5, 2.0), 0.1, "balanced", "signal")


def read_cells(path: str, label_key: str, where: str | None) -> sc.AnnData:
    """The labelled cells of a file with raw counts in X, perhaps only those with a value of an obs column."""
    adata = sc.read_h5ad(path)
    labels = adata.obs[label_key].astype(str)
    keep = adata.obs[label_key].notna() & (labels != "")
    if where is not None:
        column, value = where.split("=", 1)
        keep &= adata.obs[column].astype(str) == value
    return adata[keep].copy()


def drawn(adata: sc.AnnData, label_key: str, num_cells: int, seed: int) -> tuple[csr_matrix, np.ndarray]:
    """ln(1 + counts per 10,000) of random cells, CSR float32 N x G, and the index of their label, int64 N."""
    rows = np.random.default_rng(seed).choice(adata.n_obs, min(num_cells, adata.n_obs), replace=False)
    adata = adata[np.sort(rows)].copy()
    sc.pp.filter_genes(adata, min_cells=MIN_CELLS)
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    x = csr_matrix(adata.X, dtype=np.float32)
    x.sort_indices()
    return x, np.unique(adata.obs[label_key].astype(str), return_inverse=True)[1].astype(np.int64)


@contextmanager
def constant_queries():
    """Give all cells the same queries, which are learned."""
    queries = ReadLayer.queries

    def constant(layer: ReadLayer, c_BD: torch.Tensor) -> torch.Tensor:
        return queries(layer, torch.linspace(-1, 1, c_BD.shape[-1]).expand_as(c_BD))

    ReadLayer.queries = constant
    try:
        yield
    finally:
        ReadLayer.queries = queries


def called(x: csr_matrix, labels: np.ndarray, variant: str, seed: int) -> dict[str, np.ndarray]:
    """Logits of held-out cells by the linear branch alone or by the encoder alone, their labels, and CPU seconds."""
    options = [word for word in variant.split(",") if word not in ("default", CONSTANT, LINEAR)]
    is_linear = variant == LINEAR
    words = ["inputs=[x]", "label_key=x", "logger=none", f"seed={seed}", f"model.encoder={not is_linear}".lower()]
    cfg = make_config("train", [*words, *options])
    begin = time.process_time()
    with constant_queries() if CONSTANT in variant.split(",") else nullcontext():
        fitted = fit_branches(x, labels, linear_options=LINEAR_OPTIONS if is_linear else None, cfg=cfg)
    seconds = time.process_time() - begin
    assert fitted.held_out is not None
    return {"logits": fitted.held_out.logits, "labels": fitted.held_out.labels, "seconds": np.array(seconds)}


def kept(adata: sc.AnnData, arguments: argparse.Namespace, num_cells: int, seed: int) -> dict[str, dict]:
    """The runs of all variants with one seed, from the folder or new."""
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    data = None
    runs = {}
    for variant in [LINEAR, *arguments.variants]:
        name = "-".join([Path(arguments.path).stem, str(arguments.where), str(num_cells), str(seed), variant])
        path = folder / f"{name}.npz"
        if not path.exists():
            data = data or drawn(adata, arguments.label_key, num_cells, seed)
            np.savez(path, **called(*data, variant, seed))
            print(path.name, flush=True)
        runs[variant] = dict(np.load(path))
    return runs


def scores_of(runs: dict[str, dict]) -> dict[str, dict[str, float]]:
    """Scores of each variant with one seed, alone and with the linear branch."""
    linear = runs[LINEAR]["logits"]
    labels = runs[LINEAR]["labels"]
    found = {}
    for variant, run in runs.items():
        encoder = np.zeros_like(linear) if variant == LINEAR else run["logits"]
        wide, deep = branch_scales(linear, encoder, labels)
        both = wide * linear + deep * encoder
        alone = score(labels, run["logits"].argmax(axis=1))
        together = score(labels, both.argmax(axis=1))
        found[variant] = {
            "alone: accuracy": alone.accuracy,
            "alone: macro-F1": alone.macro_f1,
            "loss": negative_log_likelihood(both, labels),
            "accuracy": together.accuracy,
            "macro-F1": together.macro_f1,
            "CPU s": float(run["seconds"]),
        }
    return found


def table(found: list[dict[str, dict[str, float]]]) -> str:
    """A Markdown table: a row per variant; with the paired difference to the first one after the linear branch."""

    def text(values: list[float], decimals: int, sign: str = "") -> str:
        error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.nan
        return f"{np.mean(values):{sign}.{decimals}f} ± {error:.{decimals}f}"

    variants = list(found[0])
    keys = list(found[0][LINEAR])
    compared = ("loss", "macro-F1")
    lines = [f"| Variant | {' | '.join([*keys, *(f'difference in {key}' for key in compared)])} |"]
    lines.append("|---" * (1 + len(keys) + len(compared)) + "|")
    for variant in variants:
        cells = [text([seed[variant][key] for seed in found], 0 if key == "CPU s" else 4) for key in keys]
        for key in compared:
            cells.append(text([seed[variant][key] - seed[variants[1]][key] for seed in found], 4, "+"))
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("label_key")
    parser.add_argument("folder", help="the runs; created or continued")
    parser.add_argument("variants", nargs="+")
    parser.add_argument("--where", help="COLUMN=VALUE of the cells to use")
    parser.add_argument("--cells", default="1000000", help="numbers of cells, separated by commas; the default is all")
    parser.add_argument("--seeds", default="0,1,2")
    arguments = parser.parse_intermixed_args()
    torch.set_num_threads(1)
    print(machine())
    adata = read_cells(arguments.path, arguments.label_key, arguments.where)
    for num_cells in map(int, arguments.cells.split(",")):
        seeds = list(map(int, arguments.seeds.split(",")))
        found = [scores_of(kept(adata, arguments, num_cells, seed)) for seed in seeds]
        print(f"\n{min(num_cells, adata.n_obs):,} cells, seeds {arguments.seeds}\n\n{table(found)}", flush=True)


if __name__ == "__main__":
    main()
