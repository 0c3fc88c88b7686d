"""The feed-forward network's kernel beside torch's layers: on a GPU, else by Triton's interpreter (conftest.py)."""

import pytest
import torch
from torch import nn

pytest.importorskip("triton")
from scperformer.attention import Sizes, make_attention
from scperformer.encoder import Layer
from scperformer.fused_feedforward import feedforward
from scperformer.groups import ModelConfig

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("activation", [nn.GELU, nn.ReLU])
@pytest.mark.parametrize(("rows", "width", "hidden"), [(1, 16, 64), (130, 40, 100)])
def test_it_gives_what_the_layers_give(rows, width, hidden, activation):
    torch.manual_seed(0)
    x, h = torch.randn(2, rows, width, device=DEVICE)
    first, second = nn.Linear(width, hidden).to(DEVICE), nn.Linear(hidden, width).to(DEVICE)
    expected = h.double() + second.double()(activation()(first.double()(x.double())))
    first, second = first.float(), second.float()
    with torch.no_grad():
        found = feedforward(x, h, first, second, activation is nn.GELU)
    # float32; on a GPU its products round their factors to 10 bits (tf32)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=5e-3 if DEVICE == "cuda" else 1e-5)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_a_layer_that_predicts_on_a_gpu_is_the_one_that_learns_but_for_rounding():
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
            assert layer.is_fused(given[0])
            predicting = layer(*given)
        assert not layer.is_fused(given[0])
        learning = layer(*given)
    for found in (predicting, learning):
        assert found.dtype == torch.float32
        # what attention and the network add, of size 1 and below, is known to 8 bits
        assert (found.detach().cpu().double() - expected).norm() < 5e-3 * (expected - h).norm()
