"""Training and prediction on a GPU: cells a second, share of what it can do, memory; beside performer-pytorch.

    python benchmarks/gpu.py                     # the presets scbert and base, in bf16-mixed
    python benchmarks/gpu.py --device cpu --tiny # does the script work? its numbers mean nothing

Cells are made up: 16,906 genes, of which each expresses about 1,500. Training runs as `scperformer train` does, loading
of batches and optimiser included; prediction as `scperformer predict`. The share is that of the fastest bf16 product of
two square matrices in the same run; operations are counted by torch on one cell, in the plain form of attention. The
last table has the layers of scBERT's encoder alone, ours and performer-pytorch's with the same weights.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import numpy as np
import torch
from machine import machine, peak_gb
from performer import LENGTH, our_layers, performer, run_ours
from scipy import sparse
from torch.utils.flop_counter import FlopCounterMode

from scperformer.config.compose import make_config
from scperformer.config.steps import TrainConfig
from scperformer.network.batches import Cells
from scperformer.network.inference import predict_cells
from scperformer.network.network import CellTypeModel
from scperformer.training.batch_size import with_batch_size
from scperformer.training.learner import train_network
from scperformer.training.learning_curve import read_history

PRESETS = {"scbert": ["model=scbert", "model.positions=gene"], "base": ["model=base", "model.wide=false"]}
NUM_LABELS = 11
EPOCHS = 3  # of which the first is left out
NO_GPU = "error: no GPU; expected one that torch can use: see docs/training.md, or try --device cpu --tiny"


def made_up(num_cells: int, num_genes: int, cfg: TrainConfig) -> Cells:
    """Cells with about a tenth of the genes expressed."""
    rng = np.random.default_rng(0)
    x = sparse.random(num_cells, num_genes, density=0.09, format="csr", dtype=np.float32, random_state=rng)
    x.data = np.log1p(rng.gamma(0.5, 4.0, x.nnz)).astype(np.float32)
    return Cells(x, cfg.tokens, np.arange(num_cells) % NUM_LABELS)


def median_seconds(function: Callable[[], object], device: str, rounds: int) -> float:
    """Of a call, all work on the device included; the first two calls are left out."""
    found = []
    for _ in range(rounds + 2):
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return median(found[2:])


def peak_flops(device: str, size: int, rounds: int) -> float:
    """Operations a second of the product of two square bf16 matrices."""
    a, b = torch.randn(2, size, size, device=device, dtype=torch.bfloat16)
    return 2 * size**3 / median_seconds(lambda: a @ b, device, rounds)


def flops_of_a_cell(network: CellTypeModel, cells: Cells) -> tuple[int, int]:
    """Operations of a forward pass on a typical cell, and of a training step."""
    batch, labels_B = cells.labelled_batch(np.argsort(cells.lengths)[[len(cells) // 2]])
    with FlopCounterMode(display=False) as forward:
        logits_BC, _ = network(batch)
    with FlopCounterMode(display=False) as backward:
        torch.nn.functional.cross_entropy(logits_BC, labels_B).backward()
    network.zero_grad(set_to_none=True)
    return forward.get_total_flops(), forward.get_total_flops() + backward.get_total_flops()


def in_use(device: str) -> float:
    """GB at most: of the GPU, or of the process."""
    return torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else peak_gb()


def measure(preset: str, device: str, tiny: bool, peak: float) -> str:
    """A row of the first table."""
    kind = ["trainer=gpu", "trainer.batch_size=auto"] if device == "cuda" else ["trainer.batch_size=4"]
    smaller = ["model.dim=8", "model.depth=1", "model.num_heads=2", "model.head_dim=4"] if tiny else []
    words = ["inputs=[x]", "label_key=x", "logger=none", f"trainer.max_epochs={EPOCHS}", *PRESETS[preset], *kind]
    cfg = make_config("train", [*words, *smaller, "trainer.progress_bar=false"])
    num_genes, num_cells = (60, 16) if tiny else (16_906, 2048)
    cells, held_out = made_up(num_cells, num_genes, cfg), made_up(NUM_LABELS, num_genes, cfg)
    parts = {"tokens": cfg.tokens, "model": cfg.model, "attention": cfg.attention, "head": cfg.head}
    network = CellTypeModel(num_genes, NUM_LABELS, **parts)
    forward, step = flops_of_a_cell(network, cells)
    cfg = with_batch_size(cfg, cells, network, None)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with tempfile.TemporaryDirectory() as folder:
        train_network(network, cells, held_out, cfg, Path(folder))
        seconds = median(epoch["seconds"] for epoch in read_history(Path(folder))[1:])
    training, memory = num_cells / seconds, in_use(device)
    precision = "bf16-mixed" if device == "cuda" else "32-true"
    size = cfg.trainer.batch_size
    predicting = num_cells / median_seconds(lambda: predict_cells(network, cells, size, device, precision), device, 3)
    shares = (f"{speed * flops / peak:.1%}" for speed, flops in ((training, step), (predicting, forward)))
    speeds = (f"{training:,.0f}", f"{predicting:,.0f}")
    both = (word for pair in zip(speeds, shares, strict=True) for word in pair)
    return " | ".join([preset, str(size), *both, f"{memory:.1f}"])


def layers(network: torch.nn.Module, run: Callable, precision: str, sizes: tuple[int, int], device: str) -> list[str]:
    """Cells a second of scBERT's layers, forward and with the backward pass, and memory."""
    network = network.to(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    h_BLD = torch.randn(*sizes, 200, device=device, generator=torch.Generator(device).manual_seed(1))
    mixed = torch.autocast(device, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()

    def forward() -> torch.Tensor:
        with mixed:
            return run(h_BLD, network)

    def without_gradients() -> None:
        with torch.no_grad():
            forward()

    def both() -> None:
        forward().float().square().mean().backward()

    speeds = [sizes[0] / median_seconds(call, device, 5) for call in (without_gradients, both)]
    found = [*(f"{speed:.1f}" for speed in speeds), f"{in_use(device):.1f}"]
    network.to("cpu")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes that mean nothing, to try the script")
    parser.add_argument("--cells", type=int, default=4, help="cells of a batch in the table of layers")
    arguments = parser.parse_args()
    device, tiny = arguments.device, arguments.tiny
    if device == "cuda" and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    peak = peak_flops(device, 256 if tiny else 8192, 20)
    print(f"{machine()}; bf16 product of {peak / 1e12:.3g} TFLOP/s\n", flush=True)
    print("| preset | cells a step | training: cells/s | share of peak | prediction: cells/s | share of peak | GB |")
    print("|---|---|---|---|---|---|---|")
    for preset in PRESETS:
        print(f"| {measure(preset, device, tiny, peak)} |", flush=True)
    print("\n| layers of scBERT | forward: cells/s | forward and backward: cells/s | GB |\n|---|---|---|---|")
    sizes = (1, 65) if tiny else (arguments.cells, LENGTH)
    for precision in ("float32", "bf16"):
        for name, make, run in (
            ("performer-pytorch", performer, lambda h, network: network(h)),
            ("scperformer", lambda: our_layers({}, chunk_tokens=None), run_ours),
        ):
            row = layers(make(), run, precision, sizes, device)
            print(f"| {name}, {precision} | {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
