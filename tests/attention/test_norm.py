"""The kernels of layer norm against the formula in float64, on a GPU or in Triton's interpreter (conftest.py)."""

import pytest
import torch

pytest.importorskip("triton")
from scperformer.attention.base import Sizes
from scperformer.attention.encoder import Layer
from scperformer.attention.norm import add_norm, layer_norm
from scperformer.attention.registry import make_attention
from scperformer.config.training import ModelConfig

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def inputs(rows: int, width: int) -> list[torch.Tensor]:
    """Tokens of two cells far from 0, weights and biases, and the gradient of the output; float64."""
    generator = torch.Generator().manual_seed(0)
    x, grad = torch.randn(2, 2, rows, width, generator=generator, dtype=torch.float64)
    weight, bias = torch.randn(2, width, generator=generator, dtype=torch.float64)
    return [5 + 3 * x, weight, bias, grad]


def by_formula(x, weight, bias):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


def with_gradients(function, x, weight, bias, grad):
    """The outputs, and the gradients of the inputs."""
    given = [tensor.clone().requires_grad_() for tensor in (x, weight, bias)]
    out = function(*given)
    out.backward(grad.to(out))
    return [tensor.cpu().double() for tensor in (out.detach(), *(tensor.grad for tensor in given))]


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (9, 16), (40, 200)])
def test_values_and_gradients_equal_the_formula(rows, width, monkeypatch):
    monkeypatch.setattr("scperformer.attention.norm.MAX_PROGRAMS", 2)  # each program has several tiles
    given = inputs(rows, width)
    expected = with_gradients(by_formula, *given)
    given = [tensor.float().to(DEVICE) for tensor in given]
    fused = with_gradients(lambda *tensors: layer_norm(*tensors, 1e-5, torch.float32), *given)
    for ours, theirs in zip(fused, expected, strict=True):
        # float32 numbers of size ~10; the gradients of the weights are sums over up to 80 of them
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_mixed_precision_rounds_once():
    given = [tensor.float().cuda() for tensor in inputs(130, 200)]
    exact = with_gradients(by_formula, *(tensor.double() for tensor in given))
    assert layer_norm(*given[:3], 1e-5, torch.bfloat16).dtype == torch.bfloat16
    fused = with_gradients(lambda *tensors: layer_norm(*tensors, 1e-5, torch.bfloat16), *given)
    for ours, theirs in zip(fused, exact, strict=True):
        # bfloat16 has 8 bits: errors of 4e-3 in the output and in the incoming gradient
        assert (ours - theirs).norm() < 4e-3 * theirs.norm()


def test_a_sum_and_its_norm():
    h, weight, bias, added = (tensor.float().to(DEVICE) for tensor in inputs(9, 40))
    total, normed = add_norm(h, added, weight, bias, 1e-5)
    assert torch.equal(total, h + added)
    torch.testing.assert_close(normed, layer_norm(h + added, weight, bias, 1e-5, h.dtype), rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_on_a_gpu_predicting_and_training_layers_differ_only_by_rounding():
    model = ModelConfig(dim=200, depth=1, num_heads=10, head_dim=64)
    generator = torch.Generator().manual_seed(0)
    attention = make_attention({"name": "favor"}, Sizes(num_heads=10, head_dim=64, length=301), generator)
    layer = Layer(model, attention).eval()
    h, keep = torch.randn(2, 300, 200, generator=generator), torch.ones(2, 300, dtype=torch.bool)
    with torch.no_grad():
        expected = layer.double()(h.double(), keep, torch.arange(300)[None])
    layer.float().cuda()
    given = (h.cuda(), keep.cuda(), torch.arange(300).cuda()[None])
    with torch.autocast("cuda", torch.bfloat16):
        with torch.no_grad():
            predicting = layer(*given)
        learning = layer(*given)
    for out in (predicting, learning):
        assert out.dtype == torch.float32
        # the sum that attention and the network add, of size 1 and below, has 8 bits
        assert (out.detach().cpu().double() - expected).norm() < 5e-3 * (expected - h).norm()
