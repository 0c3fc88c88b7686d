"""Time and memory of one encoder layer with each attention mechanism at 1,000, 4,000 and 16,907 tokens.

    python benchmarks/attention.py --rounds 3

One cell, one thread, float32, on a GPU if there is one (`--device cpu` prevents this). Every measurement runs in a new
process, so that measurements do not affect each other. Memory is the peak of the process or the GPU without the weights
and the cell. Slopes are fitted to log(value) against log(tokens) for the three lengths. The
result is printed as Markdown.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from machine import machine, peak_gb

from scperformer.attention import MECHANISMS, Sizes, make_attention
from scperformer.config import ModelConfig
from scperformer.network import fast_cpu
from scperformer.network.encoder import Layer

LENGTHS = (1000, 4000, 16_907)
PRESETS = {
    "scbert: width 200, 10 heads of 64": {"dim": 200, "num_heads": 10, "head_dim": 64},
    "small: width 64, 4 heads of 16": {"dim": 64, "num_heads": 4, "head_dim": 16},
}
IN_CHUNKS = {"chunk_tokens": 512, "checkpointing": True}
VARIANTS: dict[str, tuple[str, dict]] = {name: (name, {}) for name in MECHANISMS}
VARIANTS |= {f"{name}, in chunks": (name, IN_CHUNKS) for name, kind in MECHANISMS.items() if kind.additive}
MODES = ("forward", "forward and backward")
LONG = 10.0  # seconds; longer measurements run once


def layer_and_cell(variant: str, preset: str, length: int, device: str) -> Callable[[bool], None]:
    """A function that runs the layer once, forward only or forward and backward."""
    name, options = VARIANTS[variant]
    model = ModelConfig(**PRESETS[preset], **options, depth=1, dropout=0.0)
    assert model.head_dim is not None
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    attention = {"name": name} | ({"max_length": length} if name == "softmax" else {})
    sizes = Sizes(num_heads=model.num_heads, head_dim=model.head_dim, length=length)
    layer = Layer(model, make_attention(attention, sizes, generator)).to(device)
    h_1LD = torch.randn(1, length, model.dim, generator=generator).to(device).requires_grad_()
    keep_1L = torch.ones(1, length, dtype=torch.bool, device=device)
    positions_1L = torch.arange(length, device=device)[None]

    def run(backward: bool) -> None:
        with torch.set_grad_enabled(backward):
            out = layer.train(backward)(h_1LD, keep_1L, positions_1L)
            if backward:
                out.sum().backward()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def work(sender, variant: str, preset: str, mode: str, length: int, device: str, rounds: int) -> None:
    """Send the seconds (median) and GB of one measurement."""
    run = layer_and_cell(variant, preset, length, device)
    backward = mode != "forward"
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 1e9
    else:
        Path("/proc/self/clear_refs").write_text("5")  # resets the recorded peak to the current memory
        before = peak_gb()
    seconds: list[float] = []
    with fast_cpu(device):
        for index in range(rounds + 1):  # the first round is a warm-up: it gives the peak, not the time
            start = time.perf_counter()
            run(backward)
            seconds.append(time.perf_counter() - start)
            if index == 0:
                after = torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else peak_gb()
            if seconds[-1] > LONG:
                break
    sender.send((median(seconds[1:] or seconds), after - before))


def measure(*arguments) -> tuple[float, float]:
    """Run `work` in a new process."""
    # A fork saves the import of torch, but a process that has used the GPU cannot use it in a fork.
    context = multiprocessing.get_context("spawn" if torch.cuda.is_initialized() else "fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(sender, *arguments))
    process.start()
    sender.close()
    found = receiver.recv()
    process.join()
    return found


def slope(values: list[float]) -> float:
    return float(np.polyfit(np.log(LENGTHS), np.log(values), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variants", type=lambda text: text.split(";"), default=list(VARIANTS))
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    device = ("cuda" if torch.cuda.is_available() else "cpu") if arguments.device == "auto" else arguments.device
    for preset in PRESETS:
        for mode in MODES:
            print(f"\n**{preset}, {mode}, {device}**\n")
            print(f"| | {' | '.join(f's at {length:,}' for length in LENGTHS)} | slope ", end="")
            print(f"| {' | '.join(f'GB at {length:,}' for length in LENGTHS)} | slope |")
            print("|---" * (3 + 2 * len(LENGTHS)) + "|")
            for variant in arguments.variants:
                found = [measure(variant, preset, mode, length, device, arguments.rounds) for length in LENGTHS]
                seconds, gb = ([row[i] for row in found] for i in (0, 1))
                cells = [*(f"{value:.3g}" for value in seconds), f"{slope(seconds):.2f}"]
                cells += [*(f"{value:.3f}" for value in gb), f"{slope(gb):.2f}"]
                print(f"| `{variant}` | {' | '.join(cells)} |", flush=True)
                print(f"{preset}, {mode}, {variant} done", file=sys.stderr)


if __name__ == "__main__":
    main()
