"""Training and prediction on a GPU: cells per second, share of peak speed, memory; compared with performer-pytorch.

    python benchmarks/gpu.py                     # everything; `--tables mechanisms` for one table
    python benchmarks/gpu.py --tables commands --file reference.h5ad --label-key cell_type
    python benchmarks/gpu.py --device cpu --tiny # tests the script; the numbers are meaningless

`commands`: whole trainings and predictions of the default model for the cells of `--file`, on the GPU with a thread of
the CPU, and on a thread alone; with the share of labels that both predict. The cells of the other tables are
simulated: each expresses about 1,500 of 16,906 genes.

`presets`: training is measured as in `scperformer train`, including the loading of batches and the optimiser,
prediction as in `scperformer predict` in each precision, with the share of labels that are those of float32. The peak
is the speed of the fastest bf16 product of two square matrices in the same run. torch counts the operations on one
cell, with the plain form of attention.

`layers` compares scBERT's encoder with performer-pytorch's, with the same weights. The error is the norm of the
difference from the same layers in float64, divided by the norm of the output. `mechanisms`: one layer of scBERT's sizes
and the last norm, with each mechanism, in bf16.

Every table is a new process. A row that fails shows the reason instead.
"""

import argparse
import copy
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median

import anndata as ad
import numpy as np
import pandas as pd
import torch
from attention import LENGTH, our_layers, performer, run_ours
from machine import machine, peak_gb, run
from scipy import sparse
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from scperformer.cli.compose import make_config
from scperformer.cli.train import TrainConfig
from scperformer.config.training import ModelConfig, TokensConfig
from scperformer.fits.trainer import EPOCHS_TABLE
from scperformer.lab.encoder import Encoder
from scperformer.lab.epochs import run_epochs
from scperformer.lab.supervised import Learner
from scperformer.model.inference import predict_cells
from scperformer.model.minibatches import Cells
from scperformer.model.network import CellTypeModel

SCBERT = ["model=scbert", "model.positions=gene"]
PUBLISHED = [
    "attention.num_features=266",
    "attention.epsilon=1e-4",
    "attention.stabiliser=all_heads",
]
PRESETS = {
    "scbert, model.checkpointing=false": [*SCBERT, "model.checkpointing=false"],
    "scbert as published, model.checkpointing=false": [
        *SCBERT,
        *PUBLISHED,
        "model.checkpointing=false",
    ],
    "base": ["model=base", "model.linear=false"],
}
BATCH = dict.fromkeys(PRESETS, 32) | {"base": 256}  # cells of a training step, which fit into 80 GB
NUM_CELLS = dict.fromkeys(PRESETS, 768) | {"base": 4096}  # a few seconds of work each
FLOAT32_CELLS = 240  # float32 takes several times as long
MECHANISMS: dict[str, dict] = {
    "favor": {},
    "favor kernel=relu": {"kernel": "relu"},
    "favor projection=fastfood": {"projection": "fastfood"},
    "favor causal=true": {"causal": True},
    "favor as published": {"num_features": 266, "epsilon": 1e-4, "stabiliser": "all_heads"},
    **{name: {} for name in ("rbf", "linformer", "window", "evo", "conv", "lsh")},
    "softmax": {"max_length": LENGTH},
}
THEIRS = "performer-pytorch"
LAYERS = {"scperformer": {}, "scperformer as published": {"epsilon": 1e-4}}
PRESET_COLUMNS = (
    *("cells a step", "training: cells/s", "share of peak", "GB"),
    *(
        "prediction: cells/s",
        "share of peak",
        "GB",
        "labels of float32",
        "tf32: cells/s",
        "labels of float32",
    ),
    "float32: cells/s",
)
COMMAND_COLUMNS = (
    "train: s (of the CPU)",
    "predict: s (of the CPU)",
    "out-of-fold accuracy / macro-F1",
    "same labels",
)
LAYER_COLUMNS = ("forward: cells/s", "forward and backward: cells/s", "GB", "error")
MECHANISM_COLUMNS = (
    "forward: cells/s",
    "share of peak",
    "GB",
    "forward and backward: cells/s",
    "share of peak",
    "GB",
)
TABLES = {
    "commands": COMMAND_COLUMNS,
    "presets": PRESET_COLUMNS,
    "layers": LAYER_COLUMNS,
    "mechanisms": MECHANISM_COLUMNS,
}
NUM_LABELS = 11
EPOCHS = 3  # the first is not measured
NO_GPU = "error: no GPU; expected one that torch can use: see docs/training.md, or try --device cpu --tiny"


def made_up(num_cells: int, num_genes: int, cfg: TrainConfig) -> Cells:
    """Cells with about a tenth of the genes expressed."""
    rng = np.random.default_rng(0)
    blocks = [min(1000, num_cells - start) for start in range(0, num_cells, 1000)]
    # `sparse.random` takes five times as long
    expressed = [
        sparse.csr_matrix(rng.random((size, num_genes), dtype=np.float32) < 0.09) for size in blocks
    ]
    x = sparse.vstack(expressed, format="csr").astype(np.float32)
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
    network = copy.deepcopy(network)
    for layer in network.encoder.stack:
        layer.chunk_tokens = None  # a GPU takes all tokens at once
    batch, labels_B = cells.labelled_batch(np.argsort(cells.lengths)[[len(cells) // 2]])
    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as forward:
        logits_BC, _ = network(batch)
        loss = torch.nn.functional.cross_entropy(logits_BC, labels_B)
    with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as backward:
        loss.backward()
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
    size = BATCH[preset] if device == "cuda" else 4
    kind = [f"trainer={'gpu' if device == 'cuda' else 'cpu'}", f"trainer.batch_size={size}"]
    smaller = (
        ["model.dim=8", "model.depth=1", "model.num_heads=2", "model.head_dim=4"] if tiny else []
    )
    words = [
        "inputs=[x]",
        "label_key=x",
        "logger=none",
        f"trainer.max_epochs={EPOCHS}",
        *PRESETS[preset],
        *kind,
    ]
    cfg = make_config("train", [*words, *smaller])
    num_genes, num_cells = (60, 16) if tiny else (16_906, NUM_CELLS[preset])
    cells = made_up(num_cells, num_genes, cfg)
    held_out = made_up(NUM_LABELS, num_genes, cfg)
    parts = {"tokens": cfg.tokens, "model": cfg.model, "attention": cfg.attention, "head": cfg.head}
    network = CellTypeModel(num_genes, NUM_LABELS, **parts)
    forward, step = flops_of_a_cell(network, cells)
    in_use(device)
    with tempfile.TemporaryDirectory() as folder:
        run_epochs(Learner(network, cells.known_labels, cfg), cells, held_out, cfg, Path(folder))
        seconds = pd.read_csv(Path(folder) / EPOCHS_TABLE)["seconds"][1:].median()
    training = num_cells / seconds
    memory = in_use(device)

    found = {}
    for precision in ("bf16-mixed", "tf32", "32-true") if device == "cuda" else ("32-true",):
        some = cells if precision == "bf16-mixed" else Cells(cells.x[:FLOAT32_CELLS], cells.tokens)
        predict = partial(predict_cells, network, some, size, device, precision)
        speed = len(some) / median_seconds(predict, device, 1)
        found[precision] = (speed, in_use(device), predict().proba.argmax(1)[:FLOAT32_CELLS])
    speed, _, exact = found["32-true"]
    fast_speed, fast_gigabytes, fast = found.get("bf16-mixed", found["32-true"])
    tf32_speed, _, tf32 = found.get("tf32", found["32-true"])
    return [
        *(str(size), f"{training:,.0f}", f"{training * step / peak:.1%}", f"{memory:.1f}"),
        *(f"{fast_speed:,.0f}", f"{fast_speed * forward / peak:.1%}", f"{fast_gigabytes:.1f}"),
        *(
            f"{(fast == exact).mean():.1%}",
            f"{tf32_speed:,.0f}",
            f"{(tf32 == exact).mean():.1%}",
            f"{speed:,.0f}",
        ),
    ]


def command_row(device: str, arguments: argparse.Namespace) -> list[str]:
    """A row of the table of whole commands; the labels are compared with those of the first row."""
    folder = Path(arguments.folder)
    model, out = folder / device, folder / f"{device}.h5ad"
    accelerator = "gpu" if device == "cuda" else "cpu"
    train = [
        f"label_key={arguments.label_key}",
        f"output={model}",
        f"trainer.accelerator={accelerator}",
    ]
    predict = [
        f"model_path={model}",
        f"output={out}",
        f"device={device}",
        "adapt=false",
        "threads=1",
    ]
    row = []
    for step, words in (("train", train), ("predict", predict)):
        cost = run(
            [sys.executable, "-m", "scperformer", step, arguments.file, "overwrite=true", *words]
        )
        row.append(f"{cost.wall:.0f} ({cost.cpu:.0f})")
    scores = json.loads((model / "bundle.json").read_text(encoding="utf-8"))["metrics"][
        "out_of_fold"
    ]
    here, there = (
        ad.read_h5ad(folder / f"{name}.h5ad").obs["scperformer_label"]
        for name in (arguments.device, device)
    )
    return [
        *row,
        f"{scores['accuracy']:.3f} / {scores['macro_f1']:.3f}",
        f"{(here == there).mean():.2%}",
    ]


def layers_row(name: str, precision: str, sizes: tuple[int, int], device: str) -> list[str]:
    """A row of the last table: cells per second of scBERT's layers, forward and with backward, memory and error."""
    network, run = (
        (performer(), lambda h_BLD, network: network(h_BLD))
        if name == THEIRS
        else (our_layers(LAYERS[name], chunk_tokens=None), run_ours)
    )
    network = network.to(device)
    h_BLD = torch.randn(
        *sizes, 200, device=device, generator=torch.Generator(device).manual_seed(1)
    )
    exact_1LD = in_float64(network, run, h_BLD[:1])
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


def mechanism_row(name: str, device: str, tiny: bool, num_cells: int, peak: float) -> list[str]:
    """A row of the table of mechanisms: one layer in bf16; the operations are those of the same layer on a CPU."""
    length = 65 if tiny else LENGTH
    model = ModelConfig(dim=200, depth=1, num_heads=10, head_dim=64, dropout=0.0)
    options = {"name": name.split()[0], **MECHANISMS[name]}
    tokens = TokensConfig(name="scbert", unexpressed="full")
    generator = torch.Generator().manual_seed(0)
    encoder = Encoder(length - 1, tokens, model, options, generator).eval()
    h_BLD = torch.randn(num_cells, length, 200, generator=torch.Generator().manual_seed(1))
    # whose pieces depend on the data
    uncut = {key: value for key, value in options.items() if key != "causal"}
    counted = Encoder(length - 1, tokens, model, uncut, generator)
    flops = []
    for count_gradients in (False, True):
        with FakeTensorMode(allow_non_fake_inputs=True), FlopCounterMode(display=False) as counter:
            h_1LD = h_BLD[:1].clone().requires_grad_(count_gradients)
            out = counted.stack[0](h_1LD, torch.ones(1, length, dtype=torch.bool), None)
            if count_gradients:
                out.sum().backward()
        flops.append(counter.get_total_flops())
    encoder, h_BLD = encoder.to(device), h_BLD.to(device)
    mixed = torch.autocast(device, dtype=torch.bfloat16)

    def forward() -> None:
        with torch.no_grad(), mixed:
            run_ours(h_BLD, encoder)

    def both() -> None:
        with mixed:
            out = run_ours(h_BLD.requires_grad_(), encoder)
        out.float().square().mean().backward()

    row = []
    for call, count in zip((forward, both), flops, strict=True):
        in_use(device)
        speed = num_cells / median_seconds(call, device, 3)
        row += [f"{speed:,.1f}", f"{speed * count / peak:.1%}", f"{in_use(device):.1f}"]
    return row


def in_float64(network: torch.nn.Module, run: Callable, h_1LD: torch.Tensor) -> torch.Tensor:
    """The output of the same layers in float64 for one cell."""
    with torch.no_grad():
        return run(h_1LD.double(), copy.deepcopy(network).double())


def rows_of(
    table: str, arguments: argparse.Namespace
) -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """Yield the name of each row of a table, and the function that measures it."""
    device, tiny, peak = arguments.device, arguments.tiny, arguments.peak
    if table == "commands":
        yield from (
            (kind, partial(command_row, kind, arguments)) for kind in dict.fromkeys((device, "cpu"))
        )
    elif table == "presets":
        yield from ((name, partial(preset_row, name, device, tiny, peak)) for name in PRESETS)
    elif table == "mechanisms":
        for name in MECHANISMS:
            yield (
                name,
                partial(mechanism_row, name, device, tiny, 1 if tiny else arguments.cells, peak),
            )
    else:
        sizes = (1, 65) if tiny else (arguments.cells, LENGTH)
        for kind in ("float32", "bf16"):
            for name in (THEIRS, *LAYERS):
                yield f"{name}, {kind}", partial(layers_row, name, kind, sizes, device)


def work(arguments: argparse.Namespace) -> None:
    """Measure the rows of one table and print them."""
    for name, measure in rows_of(arguments.work, arguments):
        try:
            row = measure()
        except (RuntimeError, ValueError) as error:  # such as a GPU without memory
            row = [f"failed: {str(error).splitlines()[0]}"]
        print(f"| {' | '.join([name, *row])} |", flush=True)
        if arguments.device == "cuda":
            torch.cuda.empty_cache()


def started(
    table: str, device: str, peak: float, arguments: argparse.Namespace
) -> subprocess.Popen:
    """Start the measurement of a table in a new process."""
    options = ["--tiny"] if arguments.tiny else []
    if table == "commands":
        options += [
            "--file",
            arguments.file,
            "--label-key",
            arguments.label_key,
            "--folder",
            arguments.folder,
        ]
    options += [
        "--device",
        device,
        "--cells",
        str(arguments.cells),
        "--peak",
        str(peak),
        "--work",
        table,
    ]
    return subprocess.Popen([sys.executable, __file__, *options], stdout=subprocess.PIPE, text=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="sizes that mean nothing, to try the script"
    )
    parser.add_argument(
        "--cells", type=int, default=4, help="cells of a batch in the tables of layers"
    )
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument(
        "--file", help="labelled cells of the table of commands; without it, there is none"
    )
    parser.add_argument("--label-key", help="their column of labels")
    parser.add_argument("--folder", default=".", help="where the table of commands writes")
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
    print(f"{machine()}; bf16 product of {peak / 1e12:.3g} TFLOP/s", flush=True)
    for table in arguments.tables:
        if table == "commands" and arguments.file is None:
            continue
        print(
            f"\n| {' | '.join([table, *TABLES[table]])} |\n|{'---|' * (len(TABLES[table]) + 1)}",
            flush=True,
        )
        for line in started(table, device, peak, arguments).stdout or ():
            print(line, end="", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
