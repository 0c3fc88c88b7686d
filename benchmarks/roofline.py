"""The time that scBERT's layers spend in each kind of operation on a CPU, compared with the least possible time.

    python benchmarks/roofline.py
    python benchmarks/roofline.py --modes forward --tokens 1000

Our six layers (10 heads of 64, 266 features, width 200) encode one cell of 16,907 tokens on one thread, in chunks. Each
operation is timed in CPU seconds and counted: multiplications and additions of products, exponentials, and the bytes
that other operations read and write. The floor of a kind is its count divided by the best rate of this machine,
measured in the same run: a product of two square matrices of the mode's type, and exponentials and a copy within the
cache. Views take no time and are left out.

The backward pass computes each chunk again; in the mode `stored` it does not, and takes 5 GiB of memory instead of 0.7.
The floor of a table counts all work that is done; the last line also gives the floor without what is computed again,
three times that of a forward pass.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
from machine import machine
from performer import LENGTH, our_layers, run_ours
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scperformer.network import Encoder, fast_cpu

KINDS = {  # prefixes of the names of operations
    "products": ("linear", "matmul", "addmm", "mm", "bmm", "baddbmm"),
    "exponentials": ("exp", "exp2", "softmax"),
    "norms": ("layer_norm", "native_layer_norm"),
    "GELU": ("gelu",),
}
OTHERS = "sums, maxima and copies"
VIEWS = ("transpose", "permute", "slice", "split", "unflatten", "unsqueeze", "select", "unbind", "numpy_T", "detach")
ROUNDS = 20
RUNS = 3


@dataclass
class Work:
    """The work of a kind of operations: CPU seconds, and FLOP of products, numbers of exponentials, or bytes."""

    seconds: float = 0.0
    count: float = 0.0


def kind_of(name: str) -> str:
    return next((kind for kind, names in KINDS.items() if name.strip("_") in names), OTHERS)


def count_of(kind: str, inputs: list[Tensor], output: Tensor) -> float:
    if (
        kind == "products"
    ):  # the right matrix of `linear` is transposed; the inner width is that of the left matrix in both cases
        return 2.0 * output.numel() * inputs[0].shape[-1]
    if kind == "exponentials":
        return float(output.numel())
    return float(sum(x.nbytes for x in [*inputs, output]))


class Meter(TorchDispatchMode):
    """Time and count every operation in a `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.work: dict[str, Work] = defaultdict(Work)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        start = time.process_time()
        output = func(*args, **(kwargs or {}))
        seconds = time.process_time() - start
        name = func.overloadpacket.__name__
        if not name.startswith(VIEWS) and isinstance(output, Tensor):
            inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            work = self.work[kind_of(name)]
            work.seconds += seconds
            work.count += count_of(kind_of(name), inputs, output)
        return output


def best_rate(function: Callable[[], object], count: float) -> float:
    """The best rate of a function per CPU second."""
    function()
    seconds = []
    for _ in range(ROUNDS):
        start = time.process_time()
        function()
        seconds.append(time.process_time() - start)
    return count / min(seconds)


def rates(dtype: torch.dtype) -> dict[str, float]:
    """The best rates of this machine per CPU second: FLOP of products of a type, exponentials, bytes."""
    side = 1024
    small = torch.randn(64, 1024)
    a = torch.randn(side, side).to(dtype)
    b = torch.randn(side, side).to(dtype)
    out = torch.empty_like(small)

    def many(function: Callable[..., object]) -> Callable[[], None]:
        def repeated() -> None:
            for _ in range(100):
                function()

        return repeated

    return {
        "FLOP": best_rate(lambda: a @ b, 2.0 * side**3),
        "exponentials": best_rate(many(lambda: torch.exp2(small, out=out)), 100.0 * small.numel()),
        "bytes": best_rate(many(lambda: out.copy_(small)), 200.0 * small.nbytes),
    }


@dataclass
class Mode:
    """What is measured: the forward pass, or the backward pass, too; with float32 products or mixed ones."""

    backward: bool = False
    mixed: bool = False
    stored: bool = False  # what the backward pass needs, instead of computing it again

    def run(self, layers: Encoder, h_1LD: Tensor) -> None:
        """Encode a cell and, with `backward`, compute the gradients of all weights."""
        precision = torch.autocast("cpu", torch.bfloat16, enabled=self.mixed)
        with precision, torch.enable_grad() if self.backward else torch.inference_mode():
            out_1LD = run_ours(h_1LD, layers)
            if self.backward:
                out_1LD.square().mean().backward()


MODES = {
    "forward": Mode(),
    "backward": Mode(backward=True),
    "stored": Mode(backward=True, stored=True),
    "bf16": Mode(mixed=True),
}


def print_table(name: str, num_tokens: int) -> None:
    """Measure a mode and print a row for each kind of operation."""
    mode = MODES[name]
    precision = "bf16-mixed" if mode.mixed else "32-true"
    layers = our_layers({}, stored=mode.stored).train(mode.backward)
    h_1LD = torch.randn(1, num_tokens, 200, generator=torch.Generator().manual_seed(1))
    with fast_cpu("cpu", precision):
        best = rates(torch.bfloat16 if mode.mixed else torch.float32)
        seconds = []
        for _ in range(RUNS):
            start = time.process_time()
            mode.run(layers, h_1LD)
            seconds.append(time.process_time() - start)
        with Meter() as meter:
            mode.run(layers, h_1LD)
    whole = median(seconds)
    print(f"\n{name}: {whole:.2f} s for a cell of {num_tokens:,} tokens, median of {RUNS}\n")
    print("| | CPU s | work | best rate of the machine | floor, s |\n|---|---|---|---|---|")
    total = floors = 0.0
    for kind in [*KINDS, OTHERS]:
        work = meter.work[kind]
        unit = {"products": "FLOP", "exponentials": "exponentials"}.get(kind, "bytes")
        floor = work.count / best[unit]
        total = total + work.seconds
        floors = floors + floor
        rate = f"{best[unit] / 1e9:.1f} G{unit}/s" if unit != "bytes" else f"{best[unit] / 1e9:.0f} GB/s"
        amount = f"{work.count / 1e9:.1f} G{unit}" if unit != "bytes" else f"{work.count / 1e9:.1f} GB"
        print(f"| {kind} | {work.seconds:.2f} | {amount} | {rate} | {floor:.2f} |")
    print(f"| all | {total:.2f} | | | {floors:.2f} |")
    ratio = f"time over floor: {whole / floors:.2f}"
    if mode.backward:
        with fast_cpu("cpu"), Meter() as meter:
            MODES["forward"].run(layers, h_1LD)
        units = {"products": "FLOP", "exponentials": "exponentials"}
        forward = sum(work.count / best[units.get(kind, "bytes")] for kind, work in meter.work.items())
        ratio += f"; {whole / (3 * forward):.2f} over the floor of {3 * forward:.2f} s without what is computed again"
    print(f"\n{ratio}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=LENGTH)
    parser.add_argument("--modes", type=lambda text: text.split(","), default=list(MODES))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    for name in arguments.modes:
        print_table(name, arguments.tokens)


if __name__ == "__main__":
    main()
