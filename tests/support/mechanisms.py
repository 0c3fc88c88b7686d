"""Shared by the tests of attention: sizes, random inputs, and mechanisms by name or by case."""

import hashlib

import pytest
import torch
from support.twins import CASES, TWINS

from scperformer.attention.base import Attention, Sizes
from scperformer.attention.linear_attention import LOG2_E
from scperformer.attention.registry import MECHANISMS, make_attention
from scperformer.model.inference import torch_state_kept

B, H, E = 2, 3, 16
SIZES = Sizes(num_heads=H, head_dim=E, length=65)
NAMES = list(MECHANISMS)
each_mechanism = pytest.mark.parametrize("name", NAMES)
each_case = pytest.mark.parametrize("case", CASES)
# Their weights are not negative and sum to 1 over the tokens of the cell; the others' outputs are not such averages.
AVERAGES = [
    case
    for case, options in CASES.items()
    if options["name"] not in ("conv", "linformer")
    and options.get("normalize", "softmax") == "softmax"
    and options.get("divide", True)
]
each_average = pytest.mark.parametrize("case", AVERAGES)


def make(name: str, seed: int = 0, **options) -> Attention:
    return make_attention(
        {"name": name, **options}, SIZES, torch.Generator().manual_seed(seed)
    ).eval()


def make_case(case: str, seed: int = 0) -> Attention:
    return make(seed=seed, **CASES[case])


def twin_of(case: str):
    return TWINS[CASES[case]["name"]]


def inputs(length: int, seed: int = 0, scale: float = 1.0) -> list[torch.Tensor]:
    """q, k, v in float64 and keep, in which about a third of the tokens is dropped, but never all."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, B, H, length, E, generator=generator, dtype=torch.float64)
    keep = torch.rand(B, length, generator=generator) < 0.7
    keep[:, -1] = True
    return [q * scale, k * scale, v, keep]


def kept(out, keep):
    """The outputs that mean something: those of real tokens."""
    return out.transpose(1, 2)[keep]


def digest(case: str) -> str:
    """A fingerprint of what a mechanism of a given seed computes, to the last bit, in one thread as predictions do."""
    q, k, v, keep = (
        tensor.float() if tensor.is_floating_point() else tensor for tensor in inputs(65)
    )
    with torch_state_kept(threads=1):
        out = make_case(case, seed=5)(q, k, v, keep)
    return hashlib.sha256(out.detach().numpy().tobytes()).hexdigest()


def log_weights(mechanism, q, k):
    """Logarithm of every query's weight of every key, up to a constant per query, from the mechanism's own log2 phi."""
    log_phi_q, log_phi_k = mechanism.features(q, queries=True), mechanism.features(k, queries=False)
    return torch.logsumexp((log_phi_q.unsqueeze(3) + log_phi_k.unsqueeze(2)) / LOG2_E, dim=-1)
