"""Training from disk compared with training in memory: cells per second, and memory of whole runs.

    python benchmarks/streaming.py pbmc3k.h5ad
    python benchmarks/streaming.py pbmc3k.h5ad --cells 20000 --rounds 3 model.dim=64
    python benchmarks/streaming.py pbmc3k.h5ad --cells 20000,1000000 --disk-only

The temporary files consist of cells of the given file, drawn with replacement. Memory is measured for `scperformer
pretrain` with a very small network for one epoch; each run is a new process, including imports. Cells per second are
those of pretraining steps (forward, backward, optimiser) of `model=tiny`, alternately from disk and from memory;
a turn has as many cells as are read at a time. `--disk-only` leaves out memory: a million cells do not fit into the
memory of most machines. Trailing words are options of `scperformer pretrain` for that network.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch
from machine import machine
from speed import in_new_process, resample, run

from scperformer.cells import Corpus, make_corpus
from scperformer.config import PretrainConfig, make_config
from scperformer.learning.loaders import StreamedCells
from scperformer.network import Cells, drop_genes
from scperformer.training.masked import hidden_loss, hide_values
from scperformer.training.pretrain import new_masked_model

# A small network: an epoch of 200,000 cells would take most of an hour with that of the preset.
SMALL = ["model=tiny", "model.dim=8", "model.num_heads=1", "model.head_dim=8"]
SMALL += ["model.gene_dropout=0.95", "trainer.batch_size=128"]
BUFFER = 4096  # cells per turn, as many as are read at a time


def endless(cells: Cells | StreamedCells, batch_size: int) -> Iterator:
    epoch = 0
    while True:
        yield from cells.epoch_batches(batch_size, seed=0, epoch=epoch, rank=0, world_size=1)
        epoch += 1


def throughput(corpus: Corpus, cfg: PretrainConfig, rounds: int) -> dict[str, list[float]]:
    """Cells per second of each turn, from disk and in memory, without the first turn of each."""
    assert corpus.stream is not None
    stream = corpus.stream
    sample = Cells(corpus.x, cfg.tokens, corpus.file_of_cell)
    in_memory = Cells(stream.collection.read(stream.cells), cfg.tokens, stream.labels)
    network, _ = new_masked_model(corpus, sample, cfg, None)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    size = cfg.trainer.batch_size
    sources = {"disk": endless(StreamedCells(stream, cfg.tokens, sample), size), "memory": endless(in_memory, size)}
    found: dict[str, list[float]] = {name: [] for name in sources}
    for _ in range(rounds + 1):
        for name, batches in sources.items():
            start = time.perf_counter()
            for _ in range(BUFFER // size):
                tokens, _ = next(batches)
                seen = drop_genes(tokens, cfg.model.gene_dropout)
                hidden, chosen_BL = hide_values(seen, cfg.tokens, cfg.masking, seed=0)
                hidden_loss(network(hidden, chosen_BL), seen.values_BL[chosen_BL], cfg.masking).backward()
                optimizer.step()
                optimizer.zero_grad()
            found[name].append(BUFFER // size * size / (time.perf_counter() - start))
            print(f"{name}: {found[name][-1]:.0f} cells/s", file=sys.stderr, flush=True)
    return {name: speeds[1:] for name, speeds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path")
    parser.add_argument("--cells", type=lambda text: [int(n) for n in text.split(",")], default=[20_000, 200_000])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--disk-only", action="store_true", help="only the memory of training from disk")
    parser.add_argument("overrides", nargs="*")
    arguments = parser.parse_intermixed_args()
    sources = "| from disk: peak GiB | seconds |" + ("" if arguments.disk_only else " in memory: peak GiB | seconds |")
    print(f"{machine()}\n\n| cells | file (GB) {sources}\n{'|---' * (sources.count('|') + 1)}|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for num_cells in arguments.cells:
            corpus = folder / f"{num_cells}.h5ad"
            in_new_process(resample, arguments.path, num_cells, "csr", corpus)
            row = f"| {num_cells:,} | {corpus.stat().st_size / 1e9:.2f} "
            for in_memory in ("false",) if arguments.disk_only else ("false", "true"):
                words = [str(corpus), f"output={folder / 'encoder'}", "overwrite=true", "trainer.max_epochs=1"]
                options = [f"data.in_memory={in_memory}", "logger=none", *SMALL]
                cost = run([sys.executable, "-m", "scperformer", "pretrain", *words, *options])
                row += f"| {cost.memory:.2f} | {cost.wall:.0f} "
            print(f"{row}|", flush=True)
        if arguments.disk_only:
            return
        words = [f"inputs=['{corpus}']", "model=tiny", "data.in_memory=false", *arguments.overrides]
        cfg = make_config("pretrain", words)
        speeds = throughput(make_corpus([corpus], cfg), cfg, arguments.rounds)
    disk, memory = (median(speeds[name]) for name in ("disk", "memory"))
    ratio = median(one / other for one, other in zip(speeds["disk"], speeds["memory"], strict=True))
    print(f"\n{num_cells:,} cells, cells a second (medians of {arguments.rounds}): {disk:.0f} from disk, ", end="")
    print(f"{memory:.0f} in memory; median of the ratios of neighbouring turns {ratio:.2f}")


if __name__ == "__main__":
    main()
