"""scBERT's encoder (6 layers, 10 heads of 64, 266 features, width 200, 16,907 tokens): ours and performer-pytorch's.

    python benchmarks/performer.py --rounds 3

Every run is a new process with one thread. The variants run in turn, so that changes of the machine's load affect all
of them. Medians and ratios are printed as Markdown. Weights, directions and tokens are the same. The largest
difference between the outputs is printed, too (ours adds no epsilon to the features; `epsilon=1e-4` is
performer-pytorch's).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch
from machine import machine, peak_gb

from scperformer.config import ModelConfig, TokensConfig
from scperformer.network import Encoder, fast_cpu

LENGTH = 16_907
CHUNK = 512  # tokens
THEIRS = "performer-pytorch"
SWITCHED = "performer-pytorch, huge pages and oneDNN"
OURS = "scperformer"
STORED = "scperformer, activations stored"
PUBLISHED = "scperformer, epsilon=1e-4"
BF16 = "scperformer, bf16"
VARIANTS = {
    "forward": [THEIRS, SWITCHED, OURS, PUBLISHED, BF16],
    "forward and backward": [THEIRS, SWITCHED, OURS, STORED],
}


def our_layers(options: dict, chunk_tokens: int | None = CHUNK, stored: bool = False) -> Encoder:
    """Our encoder: in chunks that the backward pass recomputes, in chunks that are `stored` for it, or as a whole."""
    model = ModelConfig(dim=200, depth=6, num_heads=10, head_dim=64, dropout=0.0)
    model = replace(model, chunk_tokens=chunk_tokens, checkpointing=not stored and chunk_tokens is not None)
    torch.manual_seed(0)
    attention = {"name": "favor", **options}
    generator = torch.Generator().manual_seed(0)
    return Encoder(LENGTH - 1, TokensConfig(name="scbert", unexpressed="full"), model, attention, generator)


def run_ours(h_BLD: torch.Tensor, encoder: Encoder) -> torch.Tensor:
    keep_BL = torch.ones(h_BLD.shape[:2], dtype=torch.bool, device=h_BLD.device)
    positions_1L = torch.arange(h_BLD.shape[1], device=h_BLD.device)[None]
    for layer in encoder.stack:
        h_BLD = layer(h_BLD, keep_BL, positions_1L)
    return h_BLD


def performer() -> torch.nn.Module:
    """performer-pytorch's encoder with our weights and directions."""
    from performer_pytorch import Performer

    network = Performer(dim=200, depth=6, heads=10, dim_head=64, nb_features=266, qkv_bias=False)
    for layer, (attention, feedforward) in zip(our_layers({}).stack, network.net.layers, strict=True):
        weights = layer.to_qkv.weight.detach().chunk(3)
        for name, weight in zip(("to_q", "to_k", "to_v"), weights, strict=True):
            getattr(attention.fn, name).load_state_dict({"weight": weight})
        attention.norm.load_state_dict(layer.norm_attention.state_dict())
        attention.fn.to_out.load_state_dict(layer.to_out.state_dict())
        feedforward.norm.load_state_dict(layer.norm_feedforward.state_dict())
        feedforward.fn.fn.w1.load_state_dict(layer.feedforward[0].state_dict())
        feedforward.fn.fn.w2.load_state_dict(layer.feedforward[2].state_dict())
        attention.fn.fast_attention.projection_matrix.copy_(layer.attention.directions_ME)
    return network


def work(variant: str, mode: str, out: str) -> None:
    """One measurement: seconds and peak memory as JSON on stdout, the output tokens in a file."""
    torch.set_num_threads(1)
    h_1LD = torch.randn(1, LENGTH, 200, generator=torch.Generator().manual_seed(1))
    precision = ExitStack()
    if variant in (THEIRS, SWITCHED):
        network = performer()
        if variant == SWITCHED:
            torch.set_float32_matmul_precision("medium")

        def function(x):
            return network(x)
    else:
        network = our_layers({"epsilon": 1e-4} if variant == PUBLISHED else {}, stored=variant == STORED)
        precision.enter_context(fast_cpu("cpu", "bf16-mixed" if variant == BF16 else "32-true"))
        if variant == BF16:
            precision.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))

        def function(x):
            return run_ours(x, network)

    backward = mode != "forward"
    network.train(backward)
    with precision, torch.enable_grad() if backward else torch.inference_mode():
        start = time.perf_counter()
        h_1LD = function(h_1LD)
        if backward:
            h_1LD.square().mean().backward()
        seconds = time.perf_counter() - start
    np.save(out, h_1LD.detach().float().numpy())
    print(json.dumps({"seconds": seconds, "GB": peak_gb()}))


def measure(variant: str, mode: str, folder: Path) -> tuple[dict[str, float], np.ndarray]:
    """Run one variant in a new process."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    if variant == SWITCHED:
        environment["THP_MEM_ALLOC_ENABLE"] = "1"
    out = str(folder / "out.npy")
    words = [sys.executable, __file__, "--work", variant, mode, out]
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1]), np.load(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--modes", type=lambda text: text.split(","), default=list(VARIANTS))
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        return work(*arguments.work)
    print(machine() + "\n")
    for mode in arguments.modes:
        found: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS[mode]}
        outputs = {}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(arguments.rounds):
                for variant in VARIANTS[mode]:
                    row, outputs[variant] = measure(variant, mode, Path(folder))
                    found[variant].append(row)
                    print(f"{mode}, {variant}: {row['seconds']:.2f} s, {row['GB']:.2f} GB", file=sys.stderr, flush=True)
        print(f"| {mode} | seconds | times as fast | peak GB | largest difference |\n|---|---|---|---|---|")
        for variant, rows in found.items():
            ratio = median(a["seconds"] / b["seconds"] for a, b in zip(found[THEIRS], rows, strict=True))
            off = float(np.abs(outputs[variant] - outputs[THEIRS]).max())
            seconds, gb = (median(row[key] for row in rows) for key in ("seconds", "GB"))
            print(f"| {variant} | {seconds:.1f} | {ratio:.1f} | {gb:.2f} | {off:.1e} |")
        print()


if __name__ == "__main__":
    main()
