"""Window and evo: the band, the convolution of scores, and softmax attention as their special case."""

import pytest
import torch
from support.measured import TensorBytes
from support.mechanisms import inputs, kept
from support.twins import TWINS

from scperformer.attention.base import Attention, Sizes
from scperformer.attention.registry import make_attention

SIZES = Sizes(num_heads=3, head_dim=16, length=300)


def make(name: str, **options) -> Attention:
    return (
        make_attention({"name": name, **options}, SIZES, torch.Generator().manual_seed(0))
        .double()
        .eval()
    )


@pytest.mark.parametrize("normalize", ["softmax", "l1", "none"])
def test_one_convolution_of_evo_is_window(normalize):
    tensors = inputs(100)
    window, evo = (
        make("window", normalize=normalize),
        make("evo", normalize=normalize, num_convolutions=1),
    )
    assert torch.equal(evo(*tensors), window(*tensors))
    assert not torch.equal(make("evo", normalize=normalize)(*tensors), window(*tensors))


@pytest.mark.parametrize("half_width", [3, 50, 299, 400])
@pytest.mark.parametrize("name", ["window", "evo"])
def test_several_blocks_equal_the_twin(name, half_width):
    q, k, v, keep = inputs(300)
    mechanism = make(name, half_width=half_width)
    expected = kept(TWINS[name](mechanism, q, k, v, keep), keep)
    torch.testing.assert_close(kept(mechanism(q, k, v, keep), keep), expected)


@pytest.mark.parametrize("name", ["window", "evo"])
def test_tokens_without_a_real_key_get_zeros_and_finite_gradients(name):
    q, k, v, keep = inputs(200)
    keep[:, 40:160] = False
    for x in (q, k, v):
        x.requires_grad_()
    out = make(name, half_width=5)(q, k, v, keep)
    out.sum().backward()
    assert (out[:, :, 45:155] == 0).all()
    for x in (q, k, v):
        assert x.grad.isfinite().all()
        assert (x.grad[:, :, 40:160] == 0).all()


@pytest.mark.parametrize("name", ["window", "evo"])
def test_a_band_wider_than_the_cell_takes_no_more_memory_than_the_cell(name):
    mechanism = make(name, half_width=2000)
    q, k, v = torch.randn(
        3, 1, SIZES.num_heads, 20, SIZES.head_dim, generator=torch.Generator().manual_seed(0)
    )
    with TensorBytes() as tensors, torch.no_grad():
        mechanism(q, k, v, torch.ones(1, 20, dtype=torch.bool))
    assert tensors.largest <= mechanism.taps_NHW.numel() * 8  # float64
