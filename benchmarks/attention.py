"""Attention mechanisms and the Performer: time, memory and accuracy.

    python benchmarks/attention.py layer
    python benchmarks/attention.py scbert
    python benchmarks/attention.py unexpressed pbmc3k.h5ad
    python benchmarks/attention.py mechanisms pbmc3k.h5ad cell_type runs.jsonl --train model=tiny model.dim=64
    python benchmarks/attention.py variants pbmc3k.h5ad cell_type runs
    python benchmarks/attention.py variants kang.h5ad cell_type runs --where condition=CTRL --cells 1000 4000

`layer`: one encoder layer with each mechanism at 1,000, 4,000 and 16,907 tokens; one cell, float32. Every measurement
runs in a new process. Memory is the peak without the weights and the cell. Slopes are of log(value) by log(tokens).

`scbert`: six layers, 10 heads of 64, 266 features, width 200, 16,907 tokens, and performer-pytorch with the same
weights. The largest difference between the outputs is printed, too (ours adds no epsilon to the features).

`unexpressed`: encoders of equal widths with all genes of the file annotate the same cells in turn.

`mechanisms`: 80 % of a labelled file, then the rest, without the linear branch. Mechanisms that depend on the order of
the tokens run twice: with the genes in the order of the file, and in a random order.

`variants`: out-of-fold predictions of variants of the Performer with the linear branch. A variant is a comma-separated
list of options of `train`; `default` stands for none. `constant` is a control: the query is the same for all cells, so
that attention is only a learned pooling. Differences are paired with the first variant; ± is the standard error.

Everything runs on one thread. Finished runs are not repeated. The results are printed as Markdown tables.
"""

import argparse
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import anndata as ad
import numpy as np
import scanpy as sc
import torch
from machine import machine, peak_gb, run
from panel import Lines
from scipy.sparse import csr_matrix
from scipy.special import softmax
from scipy.stats import sem
from sklearn.metrics import accuracy_score, f1_score, log_loss
from sklearn.model_selection import train_test_split

from scperformer.attention.base import Sizes
from scperformer.attention.registry import MECHANISMS, all_mechanisms, make_attention
from scperformer.attention.tokens import Batch
from scperformer.cli.compose import make_config
from scperformer.config.training import ModelConfig, TokensConfig
from scperformer.fits.evidence import FitPlan, fit_branches
from scperformer.fits.folds import evidence_folds
from scperformer.fits.linear import LinearOptions
from scperformer.fits.scales import branch_scales
from scperformer.lab.encoder import Encoder, Layer
from scperformer.model.inference import fast_cpu, predict_cells
from scperformer.model.minibatches import Cells
from scperformer.model.network import CellTypeModel
from scperformer.model.performer import CrossAttentionLayer

LENGTHS = (1000, 4000, 16_907)
PRESETS = {
    "scbert: width 200, 10 heads of 64": {"dim": 200, "num_heads": 10, "head_dim": 64},
    "small: width 64, 4 heads of 16": {"dim": 64, "num_heads": 4, "head_dim": 16},
}
IN_CHUNKS = {"chunk_tokens": 512, "checkpointing": True}
LAYERS: dict[str, tuple[str, dict]] = {name: (name, {}) for name in MECHANISMS}
LAYERS |= {
    f"{name}, in chunks": (name, IN_CHUNKS)
    for name, kind in all_mechanisms().items()
    if kind.sums_over_keys
}
MODES = ("forward", "forward and backward")
LONG = 10.0  # seconds; longer measurements run once
LENGTH = 16_907
CHUNK = 512  # tokens
THEIRS = "performer-pytorch"
SWITCHED = "performer-pytorch, huge pages and oneDNN"
OURS = "scperformer"
STORED = "scperformer, activations stored"
PUBLISHED = "scperformer, epsilon=1e-4"
BF16 = "scperformer, bf16"
SCBERT_VARIANTS = {
    "forward": [THEIRS, SWITCHED, OURS, PUBLISHED, BF16],
    "forward and backward": [THEIRS, SWITCHED, OURS, STORED],
}
WAYS = ("full", "skip", "memory")
BATCH_SIZE = 64
CONSTANT = "constant"
LINEAR = "linear"
MIN_CELLS = 3  # that express a gene
# The options that `train` finds by cross-validation of most references.
LINEAR_OPTIONS = LinearOptions((0.5, 2.0), 0.1, "balanced", "signal")


def layer_and_cell(variant: str, preset: str, length: int, device: str) -> Callable[[bool], None]:
    """A function that runs the layer once, forward only or forward and backward."""
    name, options = LAYERS[variant]
    model = ModelConfig(**PRESETS[preset], **options, depth=1, dropout=0.0)
    assert model.head_dim is not None
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    attention = {"name": name} | ({"max_length": length} if name == "softmax" else {})
    sizes = Sizes(num_heads=model.num_heads, head_dim=model.head_dim, length=length)
    one = Layer(model, make_attention(attention, sizes, generator)).to(device)
    h_1LD = torch.randn(1, length, model.dim, generator=generator).to(device).requires_grad_()
    keep_1L = torch.ones(1, length, dtype=torch.bool, device=device)
    positions_1L = torch.arange(length, device=device)[None]

    def run(backward: bool) -> None:
        with torch.set_grad_enabled(backward):
            out = one.train(backward)(h_1LD, keep_1L, positions_1L)
            if backward:
                out.sum().backward()
        if device == "cuda":
            torch.cuda.synchronize()

    return run


def work(
    sender, variant: str, preset: str, mode: str, length: int, device: str, rounds: int
) -> None:
    """Send the seconds (median) and GB of one measurement."""
    run = layer_and_cell(variant, preset, length, device)
    backward = mode != "forward"
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() / 1e9
    else:
        # resets the recorded peak to the current memory
        Path("/proc/self/clear_refs").write_text("5")
        before = peak_gb()
    seconds: list[float] = []
    with fast_cpu(device):
        # the first round is a warm-up: it gives the peak, not the time
        for index in range(rounds + 1):
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


def layer(arguments: argparse.Namespace) -> None:
    device = (
        ("cuda" if torch.cuda.is_available() else "cpu")
        if arguments.device == "auto"
        else arguments.device
    )
    for preset in PRESETS:
        for mode in MODES:
            print(f"\n**{preset}, {mode}, {device}**\n")
            print(f"| | {' | '.join(f's at {length:,}' for length in LENGTHS)} | slope ", end="")
            print(f"| {' | '.join(f'GB at {length:,}' for length in LENGTHS)} | slope |")
            print("|---" * (3 + 2 * len(LENGTHS)) + "|")
            for variant in arguments.variants:
                found = [
                    measure(variant, preset, mode, length, device, arguments.rounds)
                    for length in LENGTHS
                ]
                seconds, gb = ([row[i] for row in found] for i in (0, 1))
                cells = [*(f"{value:.3g}" for value in seconds), f"{slope(seconds):.2f}"]
                cells += [*(f"{value:.3f}" for value in gb), f"{slope(gb):.2f}"]
                print(f"| `{variant}` | {' | '.join(cells)} |", flush=True)


def our_layers(options: dict, chunk_tokens: int | None = CHUNK, stored: bool = False) -> Encoder:
    """Our encoder: in chunks that the backward pass recomputes, in chunks that are `stored` for it, or as a whole."""
    model = ModelConfig(dim=200, depth=6, num_heads=10, head_dim=64, dropout=0.0)
    model = replace(
        model, chunk_tokens=chunk_tokens, checkpointing=not stored and chunk_tokens is not None
    )
    torch.manual_seed(0)
    attention = {"name": "favor", "num_features": 266, **options}
    generator = torch.Generator().manual_seed(0)
    return Encoder(
        LENGTH - 1, TokensConfig(name="scbert", unexpressed="full"), model, attention, generator
    )


def run_ours(h_BLD: torch.Tensor, encoder: Encoder) -> torch.Tensor:
    genes_BL = torch.arange(h_BLD.shape[1], device=h_BLD.device).expand(len(h_BLD), -1)
    return encoder.encode(
        h_BLD, Batch(genes_BL, genes_BL, h_BLD[..., 0], torch.ones_like(genes_BL, dtype=torch.bool))
    )


def performer() -> torch.nn.Module:
    """performer-pytorch's encoder with our weights and directions, and our last layer norm."""
    from performer_pytorch import Performer

    network = Performer(dim=200, depth=6, heads=10, dim_head=64, nb_features=266, qkv_bias=False)
    for layer, (attention, feedforward) in zip(
        our_layers({}).stack, network.net.layers, strict=True
    ):
        weights = layer.to_qkv.weight.detach().chunk(3)
        for name, weight in zip(("to_q", "to_k", "to_v"), weights, strict=True):
            getattr(attention.fn, name).load_state_dict({"weight": weight})
        attention.norm.load_state_dict(layer.norm_attention.state_dict())
        attention.fn.to_out.load_state_dict(layer.to_out.state_dict())
        feedforward.norm.load_state_dict(layer.norm_feedforward.state_dict())
        feedforward.fn.fn.w1.load_state_dict(layer.feedforward[0].state_dict())
        feedforward.fn.fn.w2.load_state_dict(layer.feedforward[2].state_dict())
        attention.fn.fast_attention.projection_matrix.copy_(layer.attention.directions_ME)
    return torch.nn.Sequential(network, torch.nn.LayerNorm(200))


def scbert_work(variant: str, mode: str, out: str) -> None:
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
        network = our_layers(
            {"epsilon": 1e-4} if variant == PUBLISHED else {}, stored=variant == STORED
        )
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


def measure_scbert(variant: str, mode: str, folder: Path) -> tuple[dict[str, float], np.ndarray]:
    """Run one variant in a new process."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    if variant == SWITCHED:
        environment["THP_MEM_ALLOC_ENABLE"] = "1"
    out = str(folder / "out.npy")
    words = [sys.executable, __file__, "scbert", "--work", variant, mode, out]
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout.splitlines()[-1]), np.load(out)


def scbert(arguments: argparse.Namespace) -> None:
    if arguments.work:
        return scbert_work(*arguments.work)
    for mode in arguments.modes:
        found: dict[str, list[dict[str, float]]] = {
            variant: [] for variant in SCBERT_VARIANTS[mode]
        }
        outputs = {}
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(arguments.rounds):
                for variant in SCBERT_VARIANTS[mode]:
                    row, outputs[variant] = measure_scbert(variant, mode, Path(folder))
                    found[variant].append(row)
        print(
            f"| {mode} | seconds | times as fast | peak GB | largest difference |\n|---|---|---|---|---|"
        )
        for variant, rows in found.items():
            ratio = median(
                a["seconds"] / b["seconds"] for a, b in zip(found[THEIRS], rows, strict=True)
            )
            off = float(np.abs(outputs[variant] - outputs[THEIRS]).max())
            seconds, gb = (median(row[key] for row in rows) for key in ("seconds", "GB"))
            print(f"| {variant} | {seconds:.1f} | {ratio:.1f} | {gb:.2f} | {off:.1e} |")
        print()


def normalised(path: str, num_cells: int) -> csr_matrix:
    """ln(1 + counts per 10,000) of random cells of the file."""
    adata = ad.read_h5ad(path)
    rows = np.random.default_rng(0).choice(adata.n_obs, min(num_cells, adata.n_obs), replace=False)
    adata = adata[np.sort(rows)].copy()
    sc.pp.normalize_total(adata, target_sum=1e4)
    sc.pp.log1p(adata)
    return csr_matrix(adata.X, dtype=np.float32)


def network_for(way: str, preset: str, num_genes: int) -> tuple[CellTypeModel, TokensConfig]:
    """An untrained model with the sizes of the preset."""
    options = [
        f"model={preset}",
        "tokens=scbert",
        f"tokens.unexpressed={way}",
        "head=mean",
        "model.positions=gene",
    ]
    cfg = make_config("train", ["inputs=[x]", "label_key=x", *options, "model.linear=false"])
    torch.manual_seed(0)
    network = CellTypeModel(
        num_genes, 9, tokens=cfg.tokens, model=cfg.model, attention=cfg.attention, head=cfg.head
    )
    return network.eval(), cfg.tokens


def unexpressed(arguments: argparse.Namespace) -> None:
    x = normalised(arguments.path, arguments.cells)
    made = {way: network_for(way, arguments.preset, x.shape[1]) for way in WAYS}
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(arguments.rounds):
        for way, (network, tokens) in made.items():
            cells = Cells(x, tokens)
            if way == "memory":
                with torch.inference_mode():
                    network.encoder.unexpressed.memory(training=False)  # once per model
            start = time.perf_counter()
            predict_cells(network, cells, BATCH_SIZE)
            seconds[way].append((time.perf_counter() - start) / len(cells))
    print(
        f"{x.shape[0]} cells, {x.shape[1]} genes, median {np.median(np.diff(x.indptr)):.0f} expressed\n"
    )
    print("| unexpressed genes | ms per cell | times as fast as `full` |\n|---|---|---|")
    for way in WAYS:
        ratio = median(a / b for a, b in zip(seconds["full"], seconds[way], strict=True))
        print(f"| `{way}` | {1000 * median(seconds[way]):.1f} | {ratio:.1f} |")


def held_out_scores(
    adata: ad.AnnData, label_key: str, seed: int, options: list[str]
) -> dict[str, float]:
    """Train on 80 % of the cells and predict the rest, by the commands; scores of model and baseline, CPU seconds."""
    labels = adata.obs[label_key].astype(str)
    rows, held_out = train_test_split(
        np.arange(adata.n_obs), test_size=0.2, stratify=labels, random_state=seed
    )
    command = [sys.executable, "-m", "scperformer"]
    with tempfile.TemporaryDirectory() as folder:
        adata[rows].copy().write_h5ad(f"{folder}/reference.h5ad")
        adata[held_out].copy().write_h5ad(f"{folder}/sample.h5ad")
        words = [
            f"label_key={label_key}",
            f"output={folder}/model",
            f"seed={seed}",
            "logger=none",
            *options,
        ]
        trained = run([*command, "train", f"{folder}/reference.h5ad", *words])
        words = [f"model_path={folder}/model", f"output={folder}/out.h5ad"]
        predicted = run([*command, "predict", f"{folder}/sample.h5ad", *words])
        annotated = ad.read_h5ad(f"{folder}/out.h5ad")
    found = {"training CPU s": trained.cpu, "predict CPU s": predicted.cpu}
    truth = labels.iloc[held_out]
    by_baseline = annotated.obsm["scperformer_details"]["baseline_label"]
    for name, column in (("", annotated.obs["scperformer_label"]), ("LR ", by_baseline)):
        found[f"{name}accuracy"] = accuracy_score(truth, column.astype(str))
        found[f"{name}macro-F1"] = f1_score(
            truth, column.astype(str), labels=np.unique(truth), average="macro"
        )
    return found


def mechanisms(arguments: argparse.Namespace) -> None:
    adata = ad.read_h5ad(arguments.path)
    options = [f"trainer.max_epochs={arguments.epochs}", "model.linear=false", *arguments.train]
    done = Lines(arguments.jsonl, ["mechanism", "order", "seed", "options"])
    for seed, name, order in product(
        range(arguments.seeds), arguments.mechanisms, ("file", "shuffled")
    ):
        key = (name, order, seed, " ".join(options))
        if key in done.found or (
            order == "shuffled" and not all_mechanisms()[name].order_sensitive
        ):
            continue
        genes = (
            np.arange(adata.n_vars)
            if order == "file"
            else np.random.default_rng(seed).permutation(adata.n_vars)
        )
        found = held_out_scores(
            adata[:, genes], arguments.label_key, seed, [f"attention={name}", *options]
        )
        done.add(key, found)
    columns = [
        "accuracy",
        "macro-F1",
        "LR accuracy",
        "LR macro-F1",
        "training CPU s",
        "predict CPU s",
    ]
    print(f"| Attention | Genes | {' | '.join(columns)} |\n{'|---' * (2 + len(columns))}|")
    for (name, order), runs in done.table().groupby(["mechanism", "order"], sort=False):
        numbers = (
            f"{runs[column].mean():.3f} ± {runs[column].std(ddof=0):.3f}" for column in columns
        )
        print(f"| `{name}` | {order} | {' | '.join(numbers)} |")


def read_cells(path: str, label_key: str, where: str | None) -> ad.AnnData:
    """The labelled cells of a file with raw counts in X, perhaps only those with a value of an obs column."""
    adata = ad.read_h5ad(path)
    labels = adata.obs[label_key].astype(str)
    keep = adata.obs[label_key].notna() & (labels != "")
    if where is not None:
        column, value = where.split("=", 1)
        keep &= adata.obs[column].astype(str) == value
    return adata[keep].copy()


def drawn(
    adata: ad.AnnData, label_key: str, num_cells: int, seed: int
) -> tuple[csr_matrix, np.ndarray]:
    """ln(1 + counts per 10,000) of random cells, CSR float32 N x G, and the index of their label, int64 N."""
    rows = np.random.default_rng(seed).choice(
        adata.n_obs, min(num_cells, adata.n_obs), replace=False
    )
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
    queries = CrossAttentionLayer.queries

    def constant(layer: CrossAttentionLayer, c_BD: torch.Tensor) -> torch.Tensor:
        return queries(layer, torch.linspace(-1, 1, c_BD.shape[-1]).expand_as(c_BD))

    CrossAttentionLayer.queries = constant
    try:
        yield
    finally:
        CrossAttentionLayer.queries = queries


def called(x: csr_matrix, labels: np.ndarray, variant: str, seed: int) -> dict[str, np.ndarray]:
    """Logits of held-out cells by the linear branch alone or by the encoder alone, their labels, and CPU seconds."""
    options = [word for word in variant.split(",") if word not in ("default", CONSTANT, LINEAR)]
    is_linear = variant == LINEAR
    words = [
        "inputs=[x]",
        "label_key=x",
        "logger=none",
        f"seed={seed}",
        f"model.encoder={not is_linear}".lower(),
    ]
    cfg = make_config("train", [*words, *options])
    begin = time.process_time()
    with constant_queries() if CONSTANT in variant.split(",") else nullcontext():
        plan = FitPlan(cfg, LINEAR_OPTIONS if is_linear else None)
        fitted = fit_branches(x, labels, plan, evidence_folds(labels, cfg.seed))
    seconds = time.process_time() - begin
    assert fitted.held_out is not None
    return {
        "logits": fitted.held_out.logits,
        "labels": fitted.held_out.labels,
        "seconds": np.array(seconds),
    }


def kept(
    adata: sc.AnnData, arguments: argparse.Namespace, num_cells: int, seed: int
) -> dict[str, dict]:
    """The runs of all variants with one seed, from the folder or new."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    data = None
    runs = {}
    for variant in [LINEAR, *arguments.variants]:
        name = "-".join(
            [Path(arguments.path).stem, str(arguments.where), str(num_cells), str(seed), variant]
        )
        path = arguments.folder / f"{name}.npz"
        if not path.exists():
            data = data or drawn(adata, arguments.label_key, num_cells, seed)
            np.savez(path, **called(*data, variant, seed))
            print(path.name, flush=True)
        runs[variant] = dict(np.load(path))
    return runs


def scores_of(runs: dict[str, dict]) -> dict[str, dict[str, float]]:
    """Loss, accuracy and macro-F1 of each variant with the linear branch, for one seed."""
    linear, labels = runs[LINEAR]["logits"], runs[LINEAR]["labels"]
    found = {}
    for variant, found_by in runs.items():
        encoder = np.zeros_like(linear) if variant == LINEAR else found_by["logits"]
        wide, deep = branch_scales(linear, encoder, labels)
        proba = softmax((wide * linear + deep * encoder).astype(np.float64), axis=1)
        calls = proba.argmax(axis=1)
        found[variant] = {
            "loss": log_loss(labels, proba, labels=np.arange(proba.shape[1])),
            "accuracy": accuracy_score(labels, calls),
            "macro-F1": f1_score(labels, calls, labels=np.unique(labels), average="macro"),
            "CPU s": float(found_by["seconds"]),
        }
    return found


def variants_table(found: list[dict[str, dict[str, float]]]) -> str:
    """A Markdown table: a row per variant; with the paired difference to the first one after the linear branch."""
    first = list(found[0])[1]
    columns = [*found[0][LINEAR], "difference in loss", "difference in macro-F1"]
    lines = [f"| Variant | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for variant in found[0]:
        cells = []
        for column in columns:
            key = column.removeprefix("difference in ")
            values = [
                seed[variant][key] - (seed[first][key] if key != column else 0) for seed in found
            ]
            cells.append(
                f"{np.mean(values):.4f} ± {sem(values) if len(values) > 1 else np.nan:.4f}"
            )
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return "\n".join(lines)


def variants(arguments: argparse.Namespace) -> None:
    adata = read_cells(arguments.path, arguments.label_key, arguments.where)
    for num_cells in arguments.cells or [adata.n_obs]:
        found = [scores_of(kept(adata, arguments, num_cells, seed)) for seed in arguments.seeds]
        print(
            f"\n{min(num_cells, adata.n_obs):,} cells, seeds {arguments.seeds}\n\n{variants_table(found)}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("layer", help="time and memory of one layer with each mechanism")
    step.set_defaults(run=layer)
    step.add_argument("--rounds", type=int, default=3)
    step.add_argument("--variants", nargs="+", choices=LAYERS, default=list(LAYERS))
    step.add_argument("--device", default="auto")
    step = steps.add_parser("scbert", help="scBERT's encoder, ours and performer-pytorch's")
    step.set_defaults(run=scbert)
    step.add_argument("--rounds", type=int, default=3)
    step.add_argument("--modes", nargs="+", choices=SCBERT_VARIANTS, default=list(SCBERT_VARIANTS))
    step.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    step = steps.add_parser(
        "unexpressed", help="time with unexpressed genes as tokens, left out, or as memory"
    )
    step.set_defaults(run=unexpressed)
    step.add_argument("path", help="an h5ad file of counts")
    step.add_argument("--preset", default="small")
    step.add_argument("--cells", type=int, default=64)
    step.add_argument("--rounds", type=int, default=3)
    step = steps.add_parser("mechanisms", help="accuracy of each mechanism")
    step.set_defaults(run=mechanisms)
    step.add_argument("path", help="a labelled h5ad file")
    step.add_argument("label_key")
    step.add_argument("jsonl", type=Path, help="a line per finished run; created or continued")
    step.add_argument("--mechanisms", nargs="+", choices=MECHANISMS, default=list(MECHANISMS))
    step.add_argument("--seeds", type=int, default=3)
    step.add_argument("--epochs", type=int, default=8)
    step.add_argument("--train", nargs="+", default=[], help="options of 'scperformer train'")
    step = steps.add_parser("variants", help="accuracy of variants of the default's Performer")
    step.set_defaults(run=variants)
    step.add_argument("path", help="a labelled h5ad file of counts")
    step.add_argument("label_key")
    step.add_argument("folder", type=Path, help="the runs; created or continued")
    step.add_argument("--variants", nargs="+", default=["model.depth=0", "default", CONSTANT])
    step.add_argument("--where", help="COLUMN=VALUE of the cells to use")
    step.add_argument("--cells", type=int, nargs="+", help="numbers of cells to draw; default: all")
    step.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not getattr(arguments, "work", None):
        print(f"{machine()}\n")
    arguments.run(arguments)


if __name__ == "__main__":
    main()
