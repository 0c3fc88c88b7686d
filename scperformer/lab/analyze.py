"""Analyses of the attention of a trained model on real cells: the rank of its softmax maps, errors of approximations.

Source: Wang et al. 2020 (Linformer), arXiv 2006.04768.

Shape letters: H heads, L tokens, E head width.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from scperformer.adaptation.fitted import Model
from scperformer.adaptation.load import load_model
from scperformer.adaptation.record import to_uns
from scperformer.annotation.annotate import input_record, model_record, software_versions
from scperformer.attention.base import Sizes
from scperformer.attention.registry import all_mechanisms, make_attention
from scperformer.base.errors import InputError
from scperformer.base.outputs import FolderKind, new_folder, require_absent
from scperformer.base.pictures import png
from scperformer.cells.opened import OpenedCells
from scperformer.cells.query import find_query
from scperformer.io.read import default_output, read_cells, require_readable
from scperformer.lab.encoder import Encoder
from scperformer.model.content import to_json
from scperformer.model.inference import torch_state_kept
from scperformer.model.minibatches import Cells

if TYPE_CHECKING:
    from scperformer.config.steps import AnalyzeConfig

log = logging.getLogger(__name__)

SUMMARY_FILE = "analysis.json"
ANALYSIS = FolderKind("an analysis")
GREY = "#777777"
INDEX = 128  # index of the cumulative value in the heat map, as in Linformer
# the simplest approximation: every token attends equally to all tokens
MEAN_OF_VALUES = "mean of the values"
SIZES = (16, 32, 64, 128, 256, 512)  # values of the option that is the size of a mechanism
DRAWS_PER_MECHANISM = 3  # of the random parts of each mechanism
# columns of the errors
ERROR_KEYS = ["mechanism", "size_option", "size", "has_parameters", "shared_qk"]


@dataclass
class HeadInputs:
    """Queries, keys and values of one cell in one layer, and the position (gene) of each token."""

    q_HLE: torch.Tensor
    k_HLE: torch.Tensor
    v_HLE: torch.Tensor
    positions_L: torch.Tensor

    def exact_map(self, shared_qk: bool = False) -> torch.Tensor:
        """Return softmax(Q K^T / sqrt(E)) of each head, H x L x L float64 (Vaswani et al. 2017, arXiv 1706.03762).

        With `shared_qk`, keys are the queries and no token attends to itself (Kitaev et al. 2020, arXiv 2001.04451).
        """
        q_HLE = self.q_HLE.double()
        k_HLE = (self.q_HLE if shared_qk else self.k_HLE).double()
        scores_HLL = q_HLE @ k_HLE.transpose(1, 2) / q_HLE.shape[-1] ** 0.5
        if shared_qk:
            scores_HLL.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
        return torch.softmax(scores_HLL, dim=-1)


Layers = Iterable[list[HeadInputs]]  # for each layer, the inputs of each cell
# The files of an analysis by name, and its entries in the summary.
Analysis = tuple[dict[str, pd.DataFrame | bytes], dict[str, object]]


@torch.inference_mode()
def layers_of(
    encoder: Encoder, cells: Cells, rows: np.ndarray, *, max_tokens: int, seed: int
) -> Layers:
    """Yield the inputs of attention of each layer of an encoder in eval mode, for the cells in `rows`.

    Hidden states are computed from all tokens of a cell; `max_tokens` random ones are returned, the same in all layers.
    """
    batches = [cells.batch([row]) for row in rows]  # one cell each, so that there is no padding
    inputs = [encoder.attention_inputs(batch) for batch in batches]
    lengths = [batch.keep_BL.shape[1] for batch in batches]
    orders = (
        np.random.default_rng([seed, int(row)]).permutation(n)
        for row, n in zip(rows, lengths, strict=True)
    )
    chosen = [torch.from_numpy(np.sort(order[:max_tokens])) for order in orders]
    if num_long := sum(length > max_tokens for length in lengths):
        message = "%d of %d cells have more than %d tokens (up to %d): a random sample of %d is used of each"
        log.info(message, num_long, len(lengths), max_tokens, max(lengths), max_tokens)
    if encoder.mechanisms[0].is_causal:
        log.info("the model's attention is causal; here every token attends to all tokens")
    for layer in zip(*inputs, strict=True):
        cells_of_layer = []
        for qkv, batch, tokens in zip(layer, batches, chosen, strict=True):
            q_HLE, k_HLE, v_HLE = (x_1HLE[0, :, tokens] for x_1HLE in qkv)
            cells_of_layer.append(HeadInputs(q_HLE, k_HLE, v_HLE, batch.genes_BL[0, tokens]))
        yield cells_of_layer


def draw_spectrum(curves: np.ndarray, at_index: np.ndarray, tokens: np.ndarray) -> bytes:
    """Return a PNG of the cumulative curves of every layer and head, and of their values at index 128."""
    figure = Figure(figsize=(11, 4.6), dpi=160, layout="constrained")
    axes, heat_map = figure.subplots(1, 2, width_ratios=(1.2, 1))
    num_layers, num_heads, length = curves.shape
    indices = np.arange(1, length + 1)
    for layer, head in np.ndindex(num_layers, num_heads):
        label = f"layer {layer + 1}" if head == 0 else None
        colour = colormaps["viridis"](0.9 * layer / max(1, num_layers - 1))
        axes.plot(
            indices, curves[layer, head], label=label, color=colour, linewidth=1.3, alpha=0.85
        )
    # of the same cells, with equal singular values
    full_rank = np.minimum(indices / tokens[:, None], 1).mean(axis=0)
    axes.plot(
        indices, full_rank, color=GREY, linestyle="--", linewidth=1.3, label="all equal (identity)"
    )
    if length > INDEX:
        axes.axvline(INDEX, color=GREY, linewidth=1)
        axes.annotate(str(INDEX), (INDEX, 0), xytext=(4, 4), textcoords="offset points")
    axes.set(xscale="log", xlim=(1, length), ylim=(0, 1.02), ylabel="cumulative share of their sum")
    axes.set_xlabel("index of the singular value, largest first (a line per head)")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.grid(alpha=0.25)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=5, frameon=False, fontsize=9)

    values = at_index.mean(axis=2)
    low = min(np.floor(values.min() * 20) / 20, 0.95)  # from the next lower multiple of 0.05 to 1
    sides = (0.5, num_heads + 0.5, num_layers + 0.5, 0.5)  # heads and layers are counted from 1
    image = heat_map.imshow(values, cmap="YlGnBu", vmin=low, vmax=1, aspect="auto", extent=sides)
    heat_map.set(
        xlabel="head",
        ylabel="layer",
        xticks=range(1, num_heads + 1),
        yticks=range(1, num_layers + 1),
    )
    heat_map.set_title(f"value at index {INDEX}", fontsize=10)
    figure.colorbar(image, ax=heat_map, pad=0.02)

    sizes = f"{tokens.min():,} to {tokens.max():,} tokens"
    title = f"Singular values of the softmax maps of {num_layers} layers x {num_heads} heads"
    figure.suptitle(f"{title} (mean of {len(tokens):,} cells of {sizes})", fontsize=11)
    return png(figure)


def analyze_spectrum(layers: Layers, model: Model, seed: int) -> Analysis:
    """Compute the cumulative singular values of the exact softmax maps, largest first, as shares of their sum.

    They are means over cells, of which those with fewer singular values count as 1.
    """
    means = []  # of each layer, heads x indices
    parts = []  # the values at index 128 of each layer, heads x cells
    tokens = np.zeros(0, dtype=np.int64)
    for number, cells in enumerate(layers, start=1):
        tokens = np.array([len(cell.positions_L) for cell in cells])
        sums = [torch.linalg.svdvals(cell.exact_map()).cumsum(dim=1) for cell in cells]
        curves_HL = [(sums_HL / sums_HL[:, -1:]).numpy() for sums_HL in sums]
        padded = [
            np.pad(c, ((0, 0), (0, tokens.max() - c.shape[1])), constant_values=1.0)
            for c in curves_HL
        ]
        means.append(np.mean(padded, axis=0))
        parts.append(np.stack([c[:, min(INDEX, c.shape[1]) - 1] for c in curves_HL], axis=1))
        log.info(
            "layer %d: %.3f of the singular values' sum by index %d",
            number,
            parts[-1].mean(),
            INDEX,
        )
    curves, at_index = np.stack(means), np.stack(parts)
    layer, head, index = (axis.ravel() + 1 for axis in np.indices(curves.shape))
    curve_table = pd.DataFrame(
        {"layer": layer, "head": head, "index": index, "cumulative": curves.ravel()}
    )
    index_table = curve_table[index == 1].reset_index(drop=True)
    values = at_index.reshape(len(index_table), -1)
    index_table = index_table.assign(
        index=np.minimum(INDEX, tokens.max()),
        cumulative=values.mean(axis=1),
        sd=values.std(axis=1),
        num_cells=len(tokens),
        num_cells_of_at_most_128_tokens=int((tokens <= INDEX).sum()),
    )
    picture = draw_spectrum(curves, at_index, tokens)
    files = {"spectrum.csv": curve_table, "index128.csv": index_table, "spectrum.png": picture}
    return files, {"tokens": tokens.tolist(), "mean_at_index_128": float(at_index.mean())}


def relative_error(out_HLE: torch.Tensor, exact_HLE: torch.Tensor) -> list[float]:
    """Return ||out - exact|| / ||exact|| of each head, in Frobenius norms."""
    difference_H = (out_HLE.double() - exact_HLE).flatten(1).norm(dim=1)
    return (difference_H / exact_HLE.flatten(1).norm(dim=1)).tolist()


def low_rank(
    map_HLL: torch.Tensor, v_HLE: torch.Tensor, seed: int
) -> Iterator[tuple[str, Any, torch.Tensor, Any]]:
    """Yield outputs of softmax maps P of rank k, for each k of SIZES, with bounds of their errors; last, the mean.

    Of all maps of rank k, P_low, of the k largest singular values s, is nearest: ||P_low V - P V|| <= s_k+1 ||V||.
    P Rᵀ R V, with k x L Gaussian numbers R of variance 1 / k, is wrong by at most e ||P|| ||V|| with a probability that
    tends to 1 in L, if k (e^2 - e^3) = 5 ln L (Wang et al. 2020, theorem 1). For small k, no e below 2/3 solves this.
    """
    length = map_HLL.shape[1]
    norm_H = v_HLE.flatten(1).norm(dim=1)
    left_HLK, values_HK, right_HKL = torch.linalg.svd(map_HLL)
    right_HKE = right_HKL @ v_HLE
    for k in SIZES:
        out_HLE = (left_HLK[..., :k] * values_HK[:, None, :k]) @ right_HKE[:, :k]
        yield "low rank (SVD)", k, out_HLE, norm_H * values_HK[:, k : k + 1].sum(1)
    generator = torch.Generator().manual_seed(seed)
    epsilons = np.linspace(0, 2 / 3, 10_001)
    for k in SIZES:
        r_KL = torch.randn(k, length, generator=generator, dtype=map_HLL.dtype) / k**0.5
        enough = epsilons[k * (epsilons**2 - epsilons**3) >= 5 * np.log(length)]
        bound_H = map_HLL.flatten(1).norm(dim=1) * norm_H * (enough[0] if len(enough) else np.nan)
        yield "random projection", k, (map_HLL @ r_KL.T) @ (r_KL @ v_HLE), bound_H
    yield MEAN_OF_VALUES, None, v_HLE.mean(dim=1, keepdim=True).expand_as(v_HLE), norm_H * np.nan


@torch.inference_mode()
def approximation_errors(layers: Layers, length: int, seed: int) -> pd.DataFrame:
    """Return errors relative to exact softmax attention: of mechanisms that are not quadratic and have a size.

    Untrained mechanisms are drawn several times for cells of `length` positions. The table has a row for each mechanism
    and size, then the rows of `low_rank`.
    """
    known = all_mechanisms()
    mechanisms = {
        name: kind.size_option
        for name, kind in known.items()
        if kind.size_option and not kind.quadratic
    }
    # ERROR_KEYS, error and bound
    errors: list[tuple[str, str, int | None, bool, bool, float, float]] = []
    for number, cells in enumerate(layers):
        num_heads, _, head_dim = cells[0].q_HLE.shape
        shape = Sizes(num_heads=num_heads, head_dim=head_dim, length=length)
        exact = {
            shared_qk: [cell.exact_map(shared_qk) @ cell.v_HLE.double() for cell in cells]
            for shared_qk in {False} | {known[name].shared_qk for name in mechanisms}
        }
        for (name, option), size, draw in product(
            mechanisms.items(), SIZES, range(DRAWS_PER_MECHANISM)
        ):
            (state,) = np.random.SeedSequence([seed, number, draw]).generate_state(1, np.uint64)
            generator = torch.Generator().manual_seed(int(state))
            mechanism = make_attention({"name": name, option: size}, shape, generator)
            if mechanism.starts_from_keys:
                k_1HLE = torch.cat([cell.k_HLE for cell in cells], dim=1).unsqueeze(0)
                mechanism.start(k_1HLE, torch.ones(1, k_1HLE.shape[2], dtype=torch.bool), generator)
            mechanism.eval()
            key = (
                name,
                option,
                size,
                next(mechanism.parameters(), None) is not None,
                mechanism.shared_qk,
            )
            for cell, exact_HLE in zip(cells, exact[mechanism.shared_qk], strict=True):
                q_1HLE, k_1HLE, v_1HLE = (
                    x_HLE.unsqueeze(0) for x_HLE in (cell.q_HLE, cell.k_HLE, cell.v_HLE)
                )
                positions_1L = cell.positions_L.unsqueeze(0)
                keep_1L = torch.ones_like(positions_1L, dtype=torch.bool)
                out_HLE = mechanism(q_1HLE, k_1HLE, v_1HLE, keep_1L, positions_1L)[0]
                errors += [(*key, error, np.nan) for error in relative_error(out_HLE, exact_HLE)]
        for cell, exact_HLE in zip(cells, exact[False], strict=True):
            for name, k, out_HLE, bound_H in low_rank(cell.exact_map(), cell.v_HLE.double(), seed):
                bounds = (bound_H / exact_HLE.flatten(1).norm(dim=1)).tolist()
                pairs = zip(relative_error(out_HLE, exact_HLE), bounds, strict=True)
                errors += [(name, "rank" if k else "", k, False, False, *pair) for pair in pairs]
        log.info("layer %d: done", number + 1)
    groups = pd.DataFrame(errors, columns=[*ERROR_KEYS, "error", "bound"]).groupby(
        ERROR_KEYS, sort=False, dropna=False
    )
    error = groups["error"]
    found = {
        "mean": error.mean(),
        "sd": error.std(ddof=0),
        "p10": error.quantile(0.1),
        "p90": error.quantile(0.9),
    }
    found |= {"bound": groups["bound"].mean(), "num_errors": error.size()}
    return pd.DataFrame(found).reset_index().astype({"size": "Int64"})


def analyze_approximation(layers: Layers, model: Model, seed: int) -> Analysis:
    """Compute the errors of mechanisms that approximate softmax attention."""
    table = approximation_errors(layers, len(model.saved.genes) + 1, seed)
    log.info("relative error of the output by size %s:", ", ".join(map(str, SIZES)))
    for name, rows in table.groupby("mechanism", sort=False):
        note = " (untrained)" if rows["has_parameters"].any() else ""
        if rows["bound"].notna().any():
            note = f" (bounds: {' '.join(f'{bound:.3f}' for bound in rows['bound'])})"
        log.info("  %-20s %s%s", name, " ".join(f"{mean:.3f}" for mean in rows["mean"]), note)
    return {"approximation.csv": table}, {}


ANALYSES = {"spectrum": analyze_spectrum, "approximation": analyze_approximation}


def run_analyze(cfg: AnalyzeConfig) -> Path:
    """Write the folder of an analysis and return its path, by default `<input>.<analysis>` in the folder of the input.

    A model without layers of attention between tokens is refused, and cells that express none of its genes.
    """
    start = time.perf_counter()
    path = cfg.inputs[0]
    require_readable(path)
    output = Path(cfg.output) if cfg.output else default_output(path, f".{cfg.analysis}")
    require_absent(output, cfg.overwrite, ANALYSIS)
    model = load_model(cfg.model_path)
    adata = read_cells(path, cfg.orientation)
    encoder = model.network.encoder
    if not isinstance(encoder, Encoder) or not encoder.stack:
        found = f"model {model.saved.name} without layers of attention between tokens"
        expected = "a model trained with model=tiny, base or scbert"
        raise InputError("no-attention-layers", found, expected, "choose another model_path=...")
    query = find_query(OpenedCells(adata, cfg, path), model.saved)
    cells = Cells(query.all_cells(), model.tokens)
    rows = query.cell_rows[np.diff(cells.x.indptr)[query.cell_rows] > 0]
    if len(rows) == 0:
        found = f"no cell of {path} expresses a gene of the model"
        raise InputError("no-expression", found, "at least one", "choose other cells")
    rows = np.sort(np.random.default_rng(cfg.seed).permutation(rows)[: cfg.cells])
    log.info("%s: %d of %d cells, %d layers", path, len(rows), len(cells), len(encoder.stack))
    layers = layers_of(encoder, cells, rows, max_tokens=cfg.max_tokens, seed=cfg.seed)
    with torch_state_kept(cfg.threads):
        files, numbers = ANALYSES[str(cfg.analysis)](layers, model, cfg.seed)
    about = to_uns(model_record(model.saved, model.path))
    del about["path"]  # folders of a user are private
    summary = {
        "analysis": cfg.analysis,
        "cells": adata.obs_names[rows].tolist(),
        **numbers,
        "model": about | {"config": to_json(model.saved.config)},
        "input": to_uns(replace(input_record(query), total=None, log_base=None)),  # type: ignore[arg-type]
        "genes": asdict(query.overlap),
        "options": asdict(cfg) | {"inputs": [Path(name).name for name in cfg.inputs]},
        "versions": software_versions(),
    }
    text = json.dumps(summary, indent=2, default=np.ndarray.tolist, ensure_ascii=False)
    files |= {SUMMARY_FILE: f"{text}\n".encode()}
    with new_folder(output, ANALYSIS, cfg.overwrite) as folder:
        for name, content in files.items():
            if isinstance(content, pd.DataFrame):
                content = content.to_csv(index=False, float_format="%.6g").encode()
            (folder / name).write_bytes(content)
    log.info("written in %.1f s: %s (%s)", time.perf_counter() - start, output, ", ".join(files))
    return output
