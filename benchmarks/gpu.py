"""Training and prediction on a GPU: cells per second, share of peak speed, memory; compared with performer-pytorch.

    python benchmarks/gpu.py                     # the default, then the presets scbert and base in bf16-mixed
    python benchmarks/gpu.py --device cpu --tiny # tests the script; the numbers are meaningless

The cells are simulated: each expresses about 1,500 of 16,906 genes. The first table is about 100,000 cells and the
default model, on the GPU and on one thread of the CPU: the sums over genes that training starts from, its 600 steps of
128 cells for six copies, and prediction; with the share of labels that both give.

In the second table, training is measured as in `scperformer train`, including the loading of batches and the
optimiser, prediction as in `scperformer predict`. The peak is the speed of the fastest bf16 product of two square
matrices in the same run. torch counts the operations on one cell, with the plain form of attention. The last table
compares the layers of scBERT's encoder with performer-pytorch's, with the same weights. The error is the norm of the
difference from the same layers in float64, divided by the norm of the output.

Every row is a new process. A row that fails, or takes longer than `--timeout` seconds, shows the reason instead.
"""

import argparse
import copy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import numpy as np
import pandas as pd
import torch
from attention import LENGTH, our_layers, performer, run_ours
from machine import machine, peak_gb
from scipy import sparse
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from scperformer.cli.compose import make_config
from scperformer.cli.train import TrainConfig
from scperformer.lab.batch_size import with_batch_size
from scperformer.lab.supervised import train_network
from scperformer.model.batches import Cells
from scperformer.model.inference import predict_cells
from scperformer.model.network import CellTypeModel
from scperformer.training.evidence import Fitted, FittedEncoder, fill_network
from scperformer.training.fit_performer import scaled_vectors, start_performer, train_readouts
from scperformer.training.trainer import EPOCHS_TABLE

PRESETS = {
    "scbert": ["model=scbert", "model.positions=gene"],
    "scbert model.checkpointing=false": ["model=scbert", "model.positions=gene", "model.checkpointing=false"],
    "base": ["model=base", "model.linear=false"],
}
NUM_CELLS = dict.fromkeys(PRESETS, 2048) | {"base": 4096}  # a few seconds of work each
FLOAT32_CELLS = 240  # float32 takes several times as long
DEFAULT = "model=performer, "
COPIES = 6  # of the network: that of the model, and those of the folds of the evidence
THEIRS = "performer-pytorch"
OURS = "scperformer"
PRECISIONS = ("float32", "tf32", "bf16")  # tf32: float32, but products may round their factors to 10 bits
PRESET_COLUMNS = (
    *("cells a step", "training: cells/s", "share of peak", "GB"),
    *("prediction: cells/s", "share of peak", "GB", "prediction in float32: cells/s"),
)
DEFAULT_COLUMNS = ("sums: s", "training: s", "cells a second of training", "prediction: cells/s", "same labels")
DEFAULT_CELLS = 100_000
LAYER_COLUMNS = ("forward: cells/s", "forward and backward: cells/s", "GB", "error")
NUM_LABELS = 11
EPOCHS = 3  # the first is not measured
NO_GPU = "error: no GPU; expected one that torch can use: see docs/training.md, or try --device cpu --tiny"


def made_up(num_cells: int, num_genes: int, cfg: TrainConfig) -> Cells:
    """Cells with about a tenth of the genes expressed."""
    rng = np.random.default_rng(0)
    x = sparse.random(num_cells, num_genes, density=0.09, format="csr", dtype=np.float32, random_state=rng)
    x.data = np.log1p(rng.gamma(0.5, 4.0, x.nnz)).astype(np.float32)
    return Cells(x, cfg.tokens, np.arange(num_cells) % NUM_LABELS)


def median_seconds(function: Callable[[], object], device: str, rounds: int) -> float:
    """Seconds per call, including all work on the device; the first two calls are left out."""
    found = []
    for _ in range(rounds + 2):
        start = time.perf_counter()
        function()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return median(found[2:])


def peak_flops(device: str, size: int, rounds: int) -> float:
    """Operations per second of the product of two square bf16 matrices."""
    a, b = torch.randn(2, size, size, device=device, dtype=torch.bfloat16)
    return 2 * size**3 / median_seconds(lambda: a @ b, device, rounds)


def flops_of_a_cell(network: CellTypeModel, cells: Cells) -> tuple[int, int]:
    """The number of operations of a forward pass and of a training step for a typical cell; counted, not run."""
    batch, labels_B = cells.labelled_batch(np.argsort(cells.lengths)[[len(cells) // 2]])
    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as forward:
        logits_BC, _ = network(batch)
        loss = torch.nn.functional.cross_entropy(logits_BC, labels_B)
    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as backward:
        loss.backward()
    network.zero_grad(set_to_none=True)
    return forward.get_total_flops(), forward.get_total_flops() + backward.get_total_flops()


def in_use(device: str) -> float:
    """Peak memory in GB: of the GPU since the last call, or of the process."""
    if device != "cuda":
        return peak_gb()
    found = torch.cuda.max_memory_allocated() / 1e9
    torch.cuda.reset_peak_memory_stats()
    return found


def preset_row(preset: str, device: str, tiny: bool, peak: float) -> list[str]:
    """A row of the first table."""
    kind = ["trainer=gpu", "trainer.batch_size=auto"] if device == "cuda" else ["trainer=cpu", "trainer.batch_size=4"]
    smaller = ["model.dim=8", "model.depth=1", "model.num_heads=2", "model.head_dim=4"] if tiny else []
    words = ["inputs=[x]", "label_key=x", "logger=none", f"trainer.max_epochs={EPOCHS}", *PRESETS[preset], *kind]
    cfg = make_config("train", [*words, *smaller])
    num_genes, num_cells = (60, 16) if tiny else (16_906, NUM_CELLS[preset])
    cells = made_up(num_cells, num_genes, cfg)
    held_out = made_up(NUM_LABELS, num_genes, cfg)
    parts = {"tokens": cfg.tokens, "model": cfg.model, "attention": cfg.attention, "head": cfg.head}
    network = CellTypeModel(num_genes, NUM_LABELS, **parts)
    forward, step = flops_of_a_cell(network, cells)
    cfg = with_batch_size(cfg, cells, network, None)
    size = cfg.trainer.batch_size
    precision = "bf16-mixed" if device == "cuda" else "32-true"
    in_use(device)
    with tempfile.TemporaryDirectory() as folder:
        train_network(network, cells, held_out, cfg, Path(folder))
        seconds = pd.read_csv(Path(folder) / EPOCHS_TABLE)["seconds"][1:].median()
    training = num_cells / seconds
    memory = in_use(device)

    def predicting(cells: Cells, precision: str) -> float:
        return len(cells) / median_seconds(lambda: predict_cells(network, cells, size, device, precision), device, 3)

    mixed = predicting(cells, precision)
    in_mixed = in_use(device)
    exact = predicting(cells.subset(np.arange(min(num_cells, FLOAT32_CELLS))), "32-true")
    return [
        *(str(size), f"{training:,.0f}", f"{training * step / peak:.1%}", f"{memory:.1f}"),
        *(f"{mixed:,.0f}", f"{mixed * forward / peak:.1%}", f"{in_mixed:.1f}", f"{exact:,.0f}"),
    ]


def default_row(device: str, tiny: bool) -> list[str]:
    """A row of the table about the default model; the labels are compared with those that the CPU predicts."""
    num_genes, num_cells = (60, 300) if tiny else (16_906, DEFAULT_CELLS)
    words = ["inputs=[x]", "label_key=x", f"trainer.accelerator={'gpu' if device == 'cuda' else 'cpu'}"]
    cfg = make_config("train", [*words, *(["trainer.max_steps=5"] if tiny else [])])
    cells = made_up(num_cells, num_genes, cfg)
    vectors = np.random.default_rng(0).normal(size=(num_genes, cfg.model.dim))
    performer = start_performer(scaled_vectors(vectors, cells.x), cells.x, cfg)
    start = time.perf_counter()
    sums = performer.sums_of(cells.x)
    seconds = [time.perf_counter() - start]
    start = time.perf_counter()
    sides = np.ones((COPIES, num_cells), dtype=bool)
    readout = train_readouts(performer, sums, cells.known_labels, sides, NUM_LABELS, cfg)[0]
    seconds.append(time.perf_counter() - start)
    trained = COPIES * cfg.trainer.max_steps * cfg.trainer.batch_size / seconds[1]
    parts = {"tokens": cfg.tokens, "model": cfg.model, "attention": cfg.attention, "head": cfg.head}
    network = CellTypeModel(num_genes, NUM_LABELS, **parts)
    fill_network(network, Fitted(None, FittedEncoder(performer, readout), {}, {}, None), {})
    predicted = num_cells / median_seconds(lambda: predict_cells(network, cells, 256, device), device, 1)
    some = cells.subset(np.arange(min(num_cells, 2000)))
    here, there = (predict_cells(network, some, 256, where)[0].argmax(1) for where in ("cpu", device))
    same = f"{(here == there).mean():.2%}"
    return [*(f"{number:.1f}" for number in seconds), f"{trained:,.0f}", f"{predicted:,.0f}", same]


def layers_row(name: str, precision: str, sizes: tuple[int, int], device: str) -> list[str]:
    """A row of the last table: cells per second of scBERT's layers, forward and with backward, memory and error."""
    network, run = (
        (performer(), lambda h_BLD, network: network(h_BLD))
        if name == THEIRS
        else (our_layers({}, chunk_tokens=None), run_ours)
    )
    network = network.to(device)
    h_BLD = torch.randn(*sizes, 200, device=device, generator=torch.Generator(device).manual_seed(1))
    exact_1LD = in_float64(network, run, h_BLD[:1])
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    mixed = torch.autocast(device, dtype=torch.bfloat16) if precision == "bf16" else nullcontext()

    def forward() -> torch.Tensor:
        with mixed:
            return run(h_BLD, network)

    def without_gradients() -> torch.Tensor:
        with torch.no_grad():
            return forward()

    def both() -> None:
        forward().float().square().mean().backward()

    found_1LD = without_gradients()[:1].double()
    error = float((found_1LD - exact_1LD).norm() / exact_1LD.norm())
    in_use(device)
    speeds = [sizes[0] / median_seconds(call, device, 5) for call in (without_gradients, both)]
    return [*(f"{speed:.1f}" for speed in speeds), f"{in_use(device):.1f}", f"{error:.1e}"]


def in_float64(network: torch.nn.Module, run: Callable, h_1LD: torch.Tensor) -> torch.Tensor:
    """The output of the same layers in float64 for one cell."""
    with torch.no_grad():
        return run(h_1LD.double(), copy.deepcopy(network).double())


def work(arguments: argparse.Namespace) -> None:
    """Measure one row and print it."""
    device = arguments.device
    tiny = arguments.tiny
    name = arguments.work
    if name.startswith(DEFAULT):
        torch.set_num_threads(1)
        row = default_row(name.removeprefix(DEFAULT), tiny)
    elif name in PRESETS:
        row = preset_row(name, device, tiny, arguments.peak)
    else:
        sizes = (1, 65) if tiny else (arguments.cells, LENGTH)
        row = layers_row(*name.split(", "), sizes, device)
    print(f"| {' | '.join([name, *row])} |")


def row_of(name: str, peak: float, arguments: argparse.Namespace) -> str:
    """The row measured in a new process, or why there is none."""
    options = ["--tiny"] if arguments.tiny else []
    options += ["--device", arguments.device, "--cells", str(arguments.cells), "--peak", str(peak), "--work", name]
    try:
        ran = subprocess.run(
            [sys.executable, __file__, *options], capture_output=True, text=True, check=False, timeout=arguments.timeout
        )
    except subprocess.TimeoutExpired:
        return f"| {name} | not done after {arguments.timeout} s |"
    if ran.returncode == 0:
        return ran.stdout.splitlines()[-1]
    print(ran.stderr, file=sys.stderr)
    return f"| {name} | failed: {ran.stderr.strip().splitlines()[-1] if ran.stderr.strip() else ran.returncode} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="sizes that mean nothing, to try the script")
    parser.add_argument("--cells", type=int, default=4, help="cells of a batch in the table of layers")
    parser.add_argument("--timeout", type=float, default=180, help="seconds that a row may take")
    parser.add_argument("--peak", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = arguments.device
    tiny = arguments.tiny
    if device == "cuda" and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    if arguments.work:
        work(arguments)
        return 0
    peak = peak_flops(device, 256 if tiny else 8192, 20)
    print(f"{machine()}; bf16 product of {peak / 1e12:.3g} TFLOP/s\n", flush=True)
    devices = dict.fromkeys([device, "cpu"])
    tables = (
        ("default", DEFAULT_COLUMNS, [f"{DEFAULT}{each}" for each in devices]),
        ("preset", PRESET_COLUMNS, list(PRESETS)),
        ("layers of scBERT", LAYER_COLUMNS, [f"{name}, {kind}" for kind in PRECISIONS for name in (THEIRS, OURS)]),
    )
    for first, columns, names in tables:
        print(f"| {' | '.join([first, *columns])} |\n|{'---|' * (len(columns) + 1)}")
        for name in names:
            print(row_of(name, peak, arguments), flush=True)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
