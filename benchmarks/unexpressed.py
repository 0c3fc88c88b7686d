"""Time per cell with unexpressed genes as tokens (`full`), left out (`skip`), or as keys and values only (`memory`).

    python benchmarks/unexpressed.py pbmc3k.h5ad --preset small --cells 64

Encoders of equal widths with all genes of the file, scBERT's bins and `attention=favor` annotate the same cells of the
file (raw counts in X) in turn, on one thread. Medians over the rounds are printed as Markdown. The time that `memory`
needs once per model is printed separately.
"""

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np
import scanpy as sc
import torch
from machine import machine
from scipy.sparse import csr_matrix

from scperformer.config import TokensConfig, make_config
from scperformer.network import Cells, CellTypeModel, predict_cells

WAYS = ("full", "skip", "memory")
BATCH_SIZE = 64


def normalised(path: str, num_cells: int) -> csr_matrix:
    """ln(1 + counts per 10,000) of random cells of the file."""
    adata = sc.read_h5ad(path)
    rows = np.random.default_rng(0).choice(adata.n_obs, min(num_cells, adata.n_obs), replace=False)
    adata = adata[np.sort(rows)].copy()
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    return csr_matrix(adata.X, dtype=np.float32)


def network_for(way: str, preset: str, num_genes: int) -> tuple[CellTypeModel, TokensConfig]:
    """An untrained model with the sizes of the preset."""
    options = [f"model={preset}", "tokens=scbert", f"tokens.unexpressed={way}", "head=mean", "model.positions=gene"]
    cfg = make_config("train", ["inputs=[x]", "label_key=x", *options, "model.linear=false"])
    torch.manual_seed(0)
    network = CellTypeModel(num_genes, 9, tokens=cfg.tokens, model=cfg.model, attention=cfg.attention, head=cfg.head)
    return network.eval(), cfg.tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--preset", default="small")
    parser.add_argument("--cells", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    x = normalised(arguments.path, arguments.cells)
    made = {way: network_for(way, arguments.preset, x.shape[1]) for way in WAYS}
    once = 0.0
    seconds = {way: [] for way in WAYS}
    for _ in range(arguments.rounds):
        for way, (network, tokens) in made.items():
            cells = Cells(x, tokens)
            if way == "memory":
                assert network.encoder is not None
                network.encoder.kept_memory = None
                start = time.perf_counter()
                with torch.inference_mode():
                    network.encoder.memory()
                once = time.perf_counter() - start
            start = time.perf_counter()
            predict_cells(network, cells, BATCH_SIZE)
            seconds[way].append((time.perf_counter() - start) / len(cells))
    print(f"{machine()}\n\n{Path(arguments.path).name}: {x.shape[0]} cells, {x.shape[1]} genes, ", end="")
    print(f"median {np.median(np.diff(x.indptr)):.0f} expressed; model={arguments.preset}\n")
    print("| unexpressed genes | ms per cell | times as fast as `full` |\n|---|---|---|")
    for way in WAYS:
        ratio = median(a / b for a, b in zip(seconds["full"], seconds[way], strict=True))
        print(f"| `{way}` | {1000 * median(seconds[way]):.1f} | {ratio:.1f} |")
    print(f"\n`memory`, once per model: {1000 * once:.0f} ms")


if __name__ == "__main__":
    main()
