"""How near each linear mechanism comes to exact softmax attention on what a trained encoder gives it.

Shape letters: B cells, H heads, L tokens, E head width.
"""

import logging
from collections.abc import Iterable, Sequence
from itertools import product

import numpy as np
import pandas as pd
import torch

from scperformer.attention import MECHANISMS, Attention, Sizes, make_attention
from scperformer.reports.attention_maps.inputs import HeadInputs

log = logging.getLogger(__name__)

MEAN = "mean of the values"  # what a mechanism has to beat: every token attends to all alike


def linear_mechanisms() -> dict[str, str]:
    """Mechanisms that are not quadratic and have a size -> the option that is their size."""
    return {
        name: mechanism.size_option
        for name, mechanism in MECHANISMS.items()
        if mechanism.size_option is not None and not mechanism.quadratic
    }


def relative_error(out_HLE: torch.Tensor, exact_HLE: torch.Tensor) -> list[float]:
    """||out - exact|| / ||exact|| of each head, Frobenius norms."""
    difference_H = (out_HLE.double() - exact_HLE).flatten(1).norm(dim=1)
    return (difference_H / exact_HLE.flatten(1).norm(dim=1)).tolist()


def mixed(mechanism: Attention, cell: HeadInputs) -> torch.Tensor:
    """A mechanism's output for one cell, H x L x E."""
    keep_1L = torch.ones(1, len(cell.positions_L), dtype=torch.bool)
    q_1HLE, k_1HLE, v_1HLE = (x_HLE.unsqueeze(0) for x_HLE in (cell.q_HLE, cell.k_HLE, cell.v_HLE))
    return mechanism(q_1HLE, k_1HLE, v_1HLE, keep_1L, cell.positions_L.unsqueeze(0))[0]


def new_mechanism(
    attention: dict[str, object], length: int, cells: list[HeadInputs], generator: torch.Generator
) -> Attention:
    """A mechanism as it is when training starts, with other options at their defaults."""
    num_heads, _, head_dim = cells[0].q_HLE.shape
    mechanism = make_attention(attention, Sizes(num_heads=num_heads, head_dim=head_dim, length=length), generator)
    if mechanism.starts_from_keys:
        k_1HLE = torch.cat([cell.k_HLE for cell in cells], dim=1).unsqueeze(0)
        mechanism.start(k_1HLE, torch.ones(k_1HLE.shape[0], k_1HLE.shape[2], dtype=torch.bool), generator)
    return mechanism.eval()


@torch.inference_mode()
def approximation(
    layers: Iterable[list[HeadInputs]], length: int, *, sizes: Sequence[int], num_draws: int, seed: int
) -> pd.DataFrame:
    """Errors of the linear mechanisms of every size, untrained, against exact softmax attention.

    Parameters
    ----------
    layers
        What `inputs.layers_of` gives.
    length
        Number of positions that a cell can have.
    sizes
        Values of the option that is a mechanism's size.
    num_draws
        How often each mechanism is made, from generators that differ.

    Returns
    -------
    A row per mechanism and size: `mechanism`, `size_option`, `size`, `has_parameters` (it would learn some in
    training; here they are as they start), `shared_qk` (queries are its keys too: compared with the exact attention
    that has this too), and over cells, layers, heads and draws the `mean`, `sd`, tenth and ninetieth percentile
    (`p10`, `p90`) of the relative error and their number `num_errors`. The last row is the mean of the values, which
    has no size.
    """
    errors: dict[tuple[str, str, int, bool, bool], list[float]] = {}
    of_mean: list[float] = []
    for number, cells in enumerate(layers):
        exact = {
            shared_qk: [cell.exact_map(shared_qk) @ cell.v_HLE.double() for cell in cells]
            for shared_qk in {False} | {MECHANISMS[name].shared_qk for name in linear_mechanisms()}
        }
        for cell, exact_HLE in zip(cells, exact[False], strict=True):
            of_mean += relative_error(cell.v_HLE.mean(dim=1, keepdim=True).expand_as(exact_HLE), exact_HLE)
        for (name, option), size, draw in product(linear_mechanisms().items(), sizes, range(num_draws)):
            (state,) = np.random.SeedSequence([seed, number, draw]).generate_state(1, np.uint64)
            generator = torch.Generator().manual_seed(int(state))
            mechanism = new_mechanism({"name": name, option: size}, length, cells, generator)
            has_parameters = any(True for _ in mechanism.parameters())
            found = errors.setdefault((name, option, size, has_parameters, mechanism.shared_qk), [])
            for cell, exact_HLE in zip(cells, exact[mechanism.shared_qk], strict=True):
                found += relative_error(mixed(mechanism, cell), exact_HLE)
        log.info("layer %d: done", number + 1)
    rows = [_row(*key, found) for key, found in errors.items()]
    return pd.DataFrame([*rows, _row(MEAN, "", None, False, False, of_mean)]).astype({"size": "Int64"})


def _row(
    name: str, option: str, size: int | None, has_parameters: bool, shared_qk: bool, errors: list[float]
) -> dict[str, object]:
    p10, p90 = np.quantile(errors, [0.1, 0.9])
    return {
        "mechanism": name,
        "size_option": option,
        "size": size,
        "has_parameters": has_parameters,
        "shared_qk": shared_qk,
        "mean": np.mean(errors),
        "sd": np.std(errors),
        "p10": p10,
        "p90": p90,
        "num_errors": len(errors),
    }
