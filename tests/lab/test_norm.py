"""The kernels of layer norm against the formula in float64, on a GPU or in Triton's interpreter (conftest.py)."""

import pytest
import torch

pytest.importorskip("triton")
from scperformer.attention.tokens import Batch
from scperformer.config.training import ModelConfig, TokensConfig
from scperformer.lab.encoder import Encoder, Layer
from scperformer.lab.norm import add_norm, layer_norm

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
    monkeypatch.setattr("scperformer.lab.norm.MAX_PROGRAMS", 2)  # each program has several tiles
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
    torch.testing.assert_close(
        normed, layer_norm(h + added, weight, bias, 1e-5, h.dtype), rtol=1e-6, atol=1e-6
    )


def encoder_and_tokens(length):
    """An encoder of one layer of scBERT's sizes, embedded tokens of two cells, and the batch."""
    model = ModelConfig(dim=200, depth=1, num_heads=10, head_dim=64, dropout=0.0)
    generator = torch.Generator().manual_seed(0)
    encoder = Encoder(length - 1, TokensConfig(), model, {"name": "favor"}, generator).eval()
    x = torch.zeros(2, length)
    batch = Batch(torch.arange(length).expand(2, -1), x, x, torch.ones(2, length, dtype=torch.bool))
    return encoder, torch.randn(2, length, 200, generator=generator), batch


def test_prediction_in_fewer_kernels_equals_the_layers(monkeypatch):
    encoder, h, batch = encoder_and_tokens(33)
    with torch.no_grad():
        expected = encoder.encode(h, batch)
        monkeypatch.setattr("scperformer.lab.encoder.has_kernels", lambda _: True)
        monkeypatch.delattr(Layer, "finished")  # the layers themselves
        found = encoder.to(DEVICE).encode(h.to(DEVICE), batch.to(DEVICE)).cpu()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(not ON_GPU, reason="needs a GPU")
def test_on_a_gpu_predicting_and_training_layers_differ_only_by_rounding():
    encoder, h, batch = encoder_and_tokens(300)
    with torch.no_grad():
        expected = encoder.double().encode(h.double(), batch)
    encoder.float().cuda()
    with torch.autocast("cuda", torch.bfloat16):
        with torch.no_grad():
            predicting = encoder.encode(h.cuda(), batch.to("cuda"))
        learning = encoder.encode(h.cuda(), batch.to("cuda"))
    for out in (predicting, learning):
        # normed tokens are rounded to 8 bits, as is the sum that attention and the network add
        assert (out.detach().cpu().double() - expected).norm() < 5e-3 * expected.norm()
