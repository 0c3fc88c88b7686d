"""Every attention mechanism against its naive twin: L x L weights in float64, computed from the formula.

tests/lab/test_contract.py has the properties that mechanisms of others have, too.
"""

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from support.measured import TensorBytes
from support.mechanisms import (
    AVERAGES,
    NAMES,
    B,
    E,
    H,
    digest,
    each_average,
    each_case,
    each_mechanism,
    inputs,
    kept,
    make,
    make_case,
    twin_of,
)
from support.refusal import refusal
from support.twins import CASES, TWINS

from scperformer.attention.base import Sizes
from scperformer.attention.linear_attention import LinearAttention
from scperformer.attention.registry import (
    MECHANISMS,
    all_mechanisms,
    attention_options,
    make_attention,
)
from scperformer.cli.compose import make_config


def run_with_gradients(attend, tensors):
    q, k, v = (tensor.clone().requires_grad_() for tensor in tensors[:3])
    keep = tensors[3]
    out = kept(attend(q, k, v, keep), keep)
    generator = torch.Generator().manual_seed(1)
    (
        out * torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out)
    ).sum().backward()
    # With shared queries and keys, the keys are ignored.
    return out.detach(), q.grad, torch.zeros_like(k) if k.grad is None else k.grad, v.grad


def permuted_and_not(mechanism) -> tuple[torch.Tensor, torch.Tensor]:
    """The output for permuted tokens (with their positions), and the permuted output for tokens in order."""
    q, k, v, keep = inputs(33)
    order = torch.randperm(33, generator=torch.Generator().manual_seed(3))
    positions = torch.arange(33).expand(B, 33)
    mechanism = mechanism.double()
    expected = mechanism(q, k, v, keep, positions)[:, :, order]
    actual = mechanism(
        q[:, :, order], k[:, :, order], v[:, :, order], keep[:, order], positions[:, order]
    )
    return kept(actual, keep[:, order]), kept(expected, keep[:, order])


def test_every_mechanism_has_a_twin_and_a_case():
    assert set(TWINS) == set(MECHANISMS)
    assert {options["name"] for options in CASES.values()} == set(MECHANISMS)


@each_case
@pytest.mark.parametrize("length", [1, 63, 64, 65])
def test_values_and_gradients_equal_the_naive_twin(case, length):
    mechanism, tensors = make_case(case), inputs(length)
    expected = run_with_gradients(lambda *args: twin_of(case)(mechanism, *args), tensors)
    # float64: they differ only by rounding.
    torch.testing.assert_close(
        run_with_gradients(mechanism.double(), tensors), expected, rtol=1e-9, atol=1e-10
    )


@each_case
def test_padding_changes_nothing(case):
    q, k, v, keep = (
        tensor.float() if tensor.is_floating_point() else tensor for tensor in inputs(33)
    )
    longer = [torch.cat([x, torch.full((B, H, 32, E), 7.0)], dim=2) for x in (q, k, v)]
    keep_longer = torch.cat([keep, torch.zeros(B, 32, dtype=torch.bool)], dim=1)
    expected = kept(make_case(case)(q, k, v, keep), keep)
    actual = kept(make_case(case)(*longer, keep_longer), keep_longer)
    # Longer rows may be summed in another order: rounding of float32.
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@each_average
def test_one_token_gets_its_own_value(case):
    q, k, v, _ = inputs(1)
    torch.testing.assert_close(
        make_case(case).double()(q, k, v, torch.ones(B, 1, dtype=torch.bool)), v
    )


# the divisor bounds the others
@pytest.mark.parametrize("case", [case for case in CASES if "undivided" not in case])
@pytest.mark.parametrize("scale", [10.0, 100.0])
def test_large_inputs_stay_finite(case, scale):
    q, k, v, keep = inputs(65, scale=scale)
    out = kept(make_case(case)(q.float(), k.float(), v.float(), keep), keep)
    assert out.isfinite().all()
    if case in AVERAGES:
        assert out.abs().max() <= v.abs().max() * (1 + 1e-5)


@pytest.mark.slow
def test_same_seed_gives_the_same_bits_in_another_process():
    code = "from support import mechanisms as m; print(*map(m.digest, m.CASES))"
    folder = Path(__file__).parents[1]
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True
    )
    assert other.stdout.split() == [digest(case) for case in CASES]


@pytest.mark.parametrize("name", [name for name in NAMES if all_mechanisms()[name].order_sensitive])
def test_order_sensitive_is_true(name):
    small = {"lsh": {"chunk_size": 5}}.get(
        name, {"half_width": 3} if name in ("window", "evo") else {}
    )
    actual, expected = permuted_and_not(make(name, **small))
    assert (actual - expected).abs().max() > 1e-3


@each_mechanism
def test_mechanisms_of_fixed_length_refuse_more_tokens(name):
    q, k, v, _ = inputs(66)
    call = (q, k, v, torch.ones(B, 66, dtype=torch.bool))
    if all_mechanisms()[name].fixed_length:
        with refusal("too-many-tokens"):
            make(name).double()(*call)
    else:
        assert make(name).double()(*call).shape == v.shape


@each_mechanism
def test_causal_and_sums_over_keys_are_true(name):
    assert ("causal" in all_mechanisms()[name].Options.__dataclass_fields__) == all_mechanisms()[
        name
    ].causal
    assert isinstance(make(name), LinearAttention) == all_mechanisms()[name].sums_over_keys


def long_inputs(length):
    """One cell with one head and only real tokens."""
    q, k, v = torch.randn(3, 1, 1, length, 4, generator=torch.Generator().manual_seed(0))
    return q, k, v, torch.ones(1, length, dtype=torch.bool)


def make_long(name, length):
    options = {
        "softmax": {"max_length": length},
        "window": {"half_width": 4},
        "evo": {"half_width": 4},
    }.get(name, {})
    sizes = Sizes(num_heads=1, head_dim=4, length=length)
    return make_attention({"name": name, **options}, sizes, torch.Generator().manual_seed(0)).eval()


@pytest.mark.parametrize("name", [name for name in NAMES if not all_mechanisms()[name].quadratic])
def test_memory_and_memory_traffic_grow_linearly(name):
    def run(length):
        q, k, v, keep = long_inputs(length)
        for x in (q, k, v):
            x.requires_grad_()
        mechanism = make_long(name, length)
        with TensorBytes() as made:
            mechanism(q, k, v, keep).sum().backward()
        return made

    made = [run(length) for length in (4096, 8192, 16384)]
    assert made[0].largest > 4096 * 4
    # the total of all tensors determines the memory traffic, and so the time
    for what in ("largest", "total"):
        sizes = [getattr(tensors, what) for tensors in made]
        assert sizes[2] / sizes[0] < 4.4, what  # with four times as many tokens
        assert sizes[1] / sizes[0] < 2.2, what


@each_mechanism
def test_yaml_and_documentation_have_every_option_with_its_default(name):
    yaml = make_config("train", ["inputs=[a.h5ad]", "label_key=x", f"attention={name}"]).attention
    mechanism, options = attention_options(yaml)
    assert options == mechanism.Options()
    assert set(yaml) == {"name", *asdict(options)}
    page = (Path(__file__).parents[2] / "docs" / "attention.md").read_text(encoding="utf-8")
    section = re.search(rf"^## {name}\b.*?(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
    assert section, f"a section '## {name}' in docs/attention.md"
    for option, value in asdict(options).items():
        is_word = value is None or isinstance(value, bool)
        written = (
            json.dumps(value)
            if is_word
            else f"{value:g}"
            if isinstance(value, float)
            else str(value)
        )
        assert f"| `attention.{option}` | `{written}` |" in section[0]


def test_softmax_refuses_cells_above_its_length():
    q, k, v, _ = inputs(9)
    mechanism = make("softmax", max_length=8).double()
    with refusal("too-many-tokens"):
        mechanism(q, k, v, torch.ones(B, 9, dtype=torch.bool))
    mechanism(q[:, :, :8], k[:, :, :8], v[:, :, :8], torch.ones(B, 8, dtype=torch.bool))
