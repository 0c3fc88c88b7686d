"""The GPU kernels of exponential features against naive twins, on a GPU or in Triton's interpreter, in float32."""

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from support.mechanisms import inputs, kept, make
from support.twins import TWINS, favor

pytest.importorskip("triton")
from scperformer.lab import fused
from scperformer.lab.rbf import Rbf

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def run(mechanism, q, k, v, keep):
    """The output of the kernels in float32, and the gradients of q, k and v for a fixed weighted sum of it."""
    given = [x.detach().float().to(DEVICE).requires_grad_() for x in (q, k, v)]
    out = fused.attend(
        torch.stack(given), keep.to(DEVICE), deepcopy(mechanism).to(DEVICE).exponents()
    )
    weighted_sum(out, keep).backward()
    return [x.cpu() for x in (out.detach(), *(x.grad for x in given))]


def exact(mechanism, q, k, v, keep):
    """The same for the naive twin, in float64."""
    given = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out = TWINS["rbf" if isinstance(mechanism, Rbf) else "favor"](mechanism, *given, keep)
    weighted_sum(out, keep).backward()
    return [out.detach(), *(x.grad for x in given)]


def weighted_sum(out, keep):
    """A sum with different weights for all numbers of kept tokens."""
    weights = (
        torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape).sin().to(out.device)
    )
    return (out * weights * keep[:, None, :, None].to(out)).sum()


def one_head(length, scale=1.0):
    """Inputs with a single head, as the interpreter is slow."""
    q, k, v, keep = inputs(length, scale=scale)
    return q[:, :1], k[:, :1], v[:, :1], keep


FORMS = {
    "favor": {"name": "favor", "num_features": 16},
    "fastfood": {"name": "favor", "num_features": 16, "projection": "fastfood"},
    "published": {"name": "favor", "num_features": 9, "epsilon": 1e-3},
    "published, all heads": {
        "name": "favor",
        "num_features": 9,
        "epsilon": 1e-3,
        "stabiliser": "all_heads",
    },
    "rbf": {"name": "rbf", "num_anchors": 9, "sigma": 1.5},
}
each_form = pytest.mark.parametrize("form", FORMS)
options = fused.read_options


@each_form
@pytest.mark.parametrize(
    ("length", "heads"), [(1, 3), (65, 2), pytest.param(130, 3, marks=pytest.mark.slow)]
)
def test_values_and_gradients_equal_the_naive_twin(form, length, heads):
    q, k, v, keep = inputs(length)
    mechanism = make(**FORMS[form])
    if form.startswith("rbf"):
        mechanism.anchors_HME = mechanism.anchors_HME[:heads]
    given = [x[:, :heads] for x in (q, k, v)]
    actual = run(mechanism, *given, keep)
    expected = exact(mechanism, *given, keep)
    for ours, theirs in zip(actual, expected, strict=True):
        # float32 logits of size ~10 are known to 1e-6, and sums are over up to 130 of them
        torch.testing.assert_close(
            kept(ours, keep).double(), kept(theirs, keep), rtol=1e-4, atol=2e-5
        )


@pytest.mark.parametrize("form", ["favor", "published", "favor, tail", "published, tail"])
def test_features_that_stay_in_shared_memory(form, monkeypatch):
    """As for numbers of 16 bits, which the interpreter cannot multiply."""
    monkeypatch.setattr(fused, "MAX_RESIDENT", 16)
    monkeypatch.setattr(
        fused,
        "read_options",
        lambda width, _, size, memory: options(width, torch.bfloat16, size, memory),
    )
    more = {"num_features": 21} if form.endswith("tail") else {}
    mechanism = make(**FORMS[form.removesuffix(", tail")] | more)
    q, k, v, keep = one_head(80)
    actual = run(mechanism, q, k, v, keep)
    for ours, theirs in zip(actual, exact(mechanism, q, k, v, keep), strict=True):
        torch.testing.assert_close(
            kept(ours, keep).double(), kept(theirs, keep), rtol=1e-4, atol=2e-5
        )


@pytest.mark.slow
@pytest.mark.parametrize("form", ["favor", "published"])
def test_dropped_tokens_have_no_influence_and_no_gradient(form):
    q, k, v, keep = one_head(40)
    mechanism = make(**FORMS[form])
    before = run(mechanism, q, k, v, keep)
    dropped = ~keep[:, None, :, None]
    garbage = [
        torch.where(dropped, torch.tensor(number, dtype=x.dtype), x)
        for number, x in ((1e4, k), (-1e4, v))
    ]
    after = run(mechanism, q, *garbage, keep)
    for ours, theirs in zip(after, before, strict=True):
        assert torch.equal(kept(ours, keep), kept(theirs, keep))
    for grad in after[2:]:
        assert not grad.masked_select(dropped.expand_as(grad)).any()


@pytest.mark.parametrize("form", ["favor", "published"])
def test_cells_without_tokens_get_zeros(form):
    q, k, v, keep = one_head(20)
    keep[0] = False
    outputs = run(make(**FORMS[form]), q, k, v, keep)
    assert all(x.isfinite().all() for x in outputs)
    assert not outputs[0][0].any()
    assert all(not x[0].any() for x in outputs[1:])


def test_a_wrong_norm_of_the_keys_is_noticed(monkeypatch):
    """The control: with a wrong norm of the keys, the outputs differ from the twin's."""
    q, k, v, keep = one_head(30)
    mechanism = make("favor")
    row_dots = fused.row_dots
    monkeypatch.setattr(fused, "row_dots", lambda *given: row_dots(*given).clamp(min=-0.01))
    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            run(mechanism, q, k, v, keep)[0].double(), exact(mechanism, q, k, v, keep)[0]
        )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_kernels_compile_for_other_gpus(dtype):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    words = [
        sys.executable,
        str(Path(__file__).parents[1] / "support" / "compiled.py"),
        dtype,
        "64",
    ]
    ran = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in ran.stdout.splitlines()]
    kernels = ["sum", "read 266", "read 600", "backward_q", "backward_features", "backward_tokens"]
    assert [name for name, _, _ in rows] == [
        *kernels,
        *(f"{name}, sink" for name in kernels),
        "join",
    ]
    # bytes of shared memory of the smallest recent GPUs
    assert all(int(shared) < 99 * 1024 for _, shared, _ in rows)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-4), (torch.bfloat16, 3e-2)])
def test_layers_on_a_gpu_use_the_kernels(dtype, atol):
    q, k, v, keep = (x.cuda() for x in inputs(130))
    mechanism = make("favor").cuda()
    given = [x.to(dtype) for x in (q, k, v)]
    assert mechanism.is_fused(given[2])
    expected = favor(make("favor"), *(x.cpu().double() for x in given), keep.cpu())
    # in the layout of a layer's projection
    packed = torch.stack(given, dim=2).transpose(1, 3).contiguous().permute(2, 0, 3, 1, 4)
    for out in (mechanism(*given, keep), mechanism.packed(packed, keep)):
        assert out.dtype == dtype
        # bfloat16 has 8 bits: values of size 1 are known to 4e-3, and the directions are rounded too
        torch.testing.assert_close(
            kept(out, keep).cpu().double(), kept(expected, keep.cpu()), rtol=0, atol=atol
        )


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_gradients_in_bfloat16_differ_from_the_naive_twin_only_by_rounding():
    q, k, v, keep = inputs(1300)
    mechanism = make("favor")
    qkv = torch.stack([q, k, v]).bfloat16().cuda().requires_grad_()
    out = fused.attend(qkv, keep.cuda(), deepcopy(mechanism).cuda().exponents())
    weighted_sum(out.float(), keep).backward()
    expected = exact(mechanism, *qkv.detach().cpu(), keep)
    for ours, theirs in zip((out.detach(), *qkv.grad), expected, strict=True):
        off = kept(ours.cpu().double(), keep) - kept(theirs, keep)
        # Weights, their slopes and the features' means are rounded to 8 bits, 4e-3 each.
        assert off.norm() < 2e-2 * kept(theirs, keep).norm()


class OnGpu:
    """The attributes of a tensor on a GPU."""

    is_cuda, dtype, shape = True, torch.float32, (3, 1, 2, 3, 64)


@pytest.mark.parametrize(
    "options", [{"kernel": "relu"}, {"kernel": "exp", "projection": "identity"}, {"causal": True}]
)
def test_other_forms_do_not_use_the_kernels(options):
    assert make("favor").is_fused(OnGpu())
    assert not make("favor", **options).is_fused(OnGpu())
    assert not make("favor").is_fused(torch.zeros(1, 2, 3, 64))


def test_learned_anchors_use_the_kernels_only_in_prediction():
    mechanism = make("rbf", init="learned")
    assert not mechanism.is_fused(OnGpu())
    with torch.no_grad():
        assert mechanism.is_fused(OnGpu())


def test_a_gpu_with_little_shared_memory_reads_features_in_tiles():
    enough, little = (
        fused.read_options(64, torch.float16, 256, memory) for memory in (100_000, 64_000)
    )
    assert (enough["RESIDENT"], enough["TILE_L"]) == (True, 256)
    assert (little["RESIDENT"], little["TILE_L"]) == (False, 64)
    assert fused.shared_memory(torch.device("cpu")) >= fused.RESIDENT_MEMORY
