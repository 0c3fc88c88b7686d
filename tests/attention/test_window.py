"""Window and evo: the band, the convolution of scores, and softmax attention as their special case."""

import math

import pytest
import torch
from support.measured import TensorBytes
from support.twins import TWINS

from scperformer.attention.base import Attention, Sizes
from scperformer.attention.registry import make_attention
from scperformer.base.errors import InputError

SIZES = Sizes(num_heads=3, head_dim=16, length=300)


def make(name: str, sizes: Sizes = SIZES, **options) -> Attention:
    return make_attention({"name": name, **options}, sizes, torch.Generator().manual_seed(0)).double().eval()


def with_taps(mechanism: Attention, *taps: list[float]) -> Attention:
    mechanism.taps_NHW.data[:] = torch.tensor(taps, dtype=torch.float64)[:, None]
    return mechanism


def inputs(length: int, sizes: Sizes = SIZES):
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 2, sizes.num_heads, length, sizes.head_dim, generator=generator, dtype=torch.float64)
    keep = torch.rand(2, length, generator=generator) < 0.7
    keep[:, 0] = True
    return q, k, v, keep


def kept(out, keep):
    return out.transpose(1, 2)[keep]


# --- worked by hand: three tokens of width 1, r = 1, w = [1/2, 1, 0] --------------------------------------------
#
#     S = 1 1 .      C[i,j] = S[i,j-1] / 2 + S[i,j] = 1 3/2 .
#         2 2 4                                       2 3   5
#         . 3 6                                       . 3   15/2

HAND = Sizes(num_heads=1, head_dim=1, length=3)


def attend_by_hand(mechanism, keep=(True, True, True)):
    q, k, v = (torch.tensor(x, dtype=torch.float64).view(1, 1, 3, 1) for x in ([1, 2, 3], [1, 1, 2], [1, 10, 100]))
    return mechanism(q, k, v, torch.tensor([keep])).flatten().tolist()


def test_worked_example():
    window = with_taps(make("window", HAND, half_width=1, normalize="none"), [0.5, 1, 0])
    assert attend_by_hand(window) == pytest.approx([1 + 15, 2 + 30 + 500, 30 + 750])
    window.options.normalize = "l1"
    assert attend_by_hand(window) == pytest.approx([16 / 2.5, 532 / 10, 780 / 10.5])
    window.options.normalize = "softmax"
    expected = (math.exp(1) * 1 + math.exp(1.5) * 10) / (math.exp(1) + math.exp(1.5))
    assert attend_by_hand(window)[0] == pytest.approx(expected)


def test_worked_example_with_a_dropped_token():
    # Without token 1, S is 1 . . / . . . / . . 6, and no score is added to that of a neighbour.
    window = with_taps(make("window", HAND, half_width=1, normalize="none"), [0.5, 1, 0])
    out = attend_by_hand(window, keep=(True, False, True))
    assert (out[0], out[2]) == (1, 600)


def test_worked_example_of_two_convolutions():
    # C'[i,j] = C[i,j] + C[i,j+1]; outside the band C is 0 again: 5/2 3/2 . / 5 8 5 / . 21/2 15/2
    evo = with_taps(make("evo", HAND, half_width=1, normalize="none"), [0.5, 1, 0], [0, 1, 1])
    assert attend_by_hand(evo) == pytest.approx([2.5 + 15, 5 + 80 + 500, 105 + 750])


# --- degenerate cases ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 33])
@pytest.mark.parametrize("name", ["window", "evo"])
def test_a_band_of_all_tokens_without_convolution_is_softmax_attention(name, length):
    q, k, v, keep = inputs(length)
    mechanism = make(name, half_width=32)
    with_taps(mechanism, *[[0.0] * 32 + [1.0] + [0.0] * 32] * len(mechanism.taps_NHW))
    expected = kept(make("softmax")(q, k, v, keep), keep)
    torch.testing.assert_close(kept(mechanism(q, k, v, keep), keep), expected)


@pytest.mark.parametrize("normalize", ["softmax", "l1", "none"])
def test_one_convolution_of_evo_is_window(normalize):
    tensors = inputs(100)
    window, evo = make("window", normalize=normalize), make("evo", normalize=normalize, num_convolutions=1)
    assert torch.equal(evo(*tensors), window(*tensors))
    assert not torch.equal(make("evo", normalize=normalize)(*tensors), window(*tensors))


@pytest.mark.parametrize("name", ["window", "evo"])
def test_half_width_0_gives_each_token_its_own_value(name):
    q, k, v, keep = inputs(70)
    torch.testing.assert_close(kept(make(name, half_width=0)(q, k, v, keep), keep), kept(v, keep))


# --- the band ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("half_width", [3, 50, 299, 400])
@pytest.mark.parametrize("name", ["window", "evo"])
def test_several_blocks_equal_the_twin(name, half_width):
    q, k, v, keep = inputs(300)
    mechanism = make(name, half_width=half_width)
    expected = kept(TWINS[name](mechanism, q, k, v, keep), keep)
    torch.testing.assert_close(kept(mechanism(q, k, v, keep), keep), expected)


@pytest.mark.parametrize("name", ["window", "evo"])
def test_tokens_beyond_the_band_have_no_influence(name):
    q, k, v, keep = inputs(200)
    mechanism = make(name, half_width=5)
    before = mechanism(q, k, v, keep)
    for x in (q, k, v):
        x[:, :, 100] = 1e4
    after = mechanism(q, k, v, keep)
    changed = (after - before).abs().amax(dim=(0, 1, 3)) > 0
    assert torch.equal(changed.nonzero().flatten(), torch.arange(95, 106)[changed[95:106]])
    assert changed[96:105:4].all()  # while tokens within it have an influence


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
def test_padding_changes_nothing(name):
    q, k, v, keep = inputs(70)
    mechanism = make(name)
    padded = [torch.nn.functional.pad(x, (0, 0, 0, 61), value=1e4) for x in (q, k, v)]
    out = mechanism(*padded, torch.nn.functional.pad(keep, (0, 61)))[:, :, :70]
    torch.testing.assert_close(kept(out, keep), kept(mechanism(q, k, v, keep), keep))


# --- parameters and options ----------------------------------------------------------------------------------


def test_initial_kernels_are_near_the_identity_and_differ_between_heads():
    taps = make("evo").taps_NHW.detach()
    identity = torch.zeros(65, dtype=torch.float64)
    identity[32] = 1
    assert ((taps - identity).norm(dim=-1) < 0.15).all()
    assert len(taps.flatten(0, 1).unique(dim=0)) == 2 * SIZES.num_heads


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [("window", "half_width", -1), ("evo", "normalize", "max"), ("evo", "num_convolutions", 0)],
)
def test_options_out_of_range_are_refused(name, option, value):
    with pytest.raises(InputError, match=rf"attention\.{option}={value}"):
        make(name, **{option: value})


@pytest.mark.parametrize("name", ["window", "evo"])
def test_a_band_wider_than_the_cell_takes_no_more_memory_than_the_cell(name):
    mechanism = make(name, half_width=2000)
    q, k, v = torch.randn(3, 1, SIZES.num_heads, 20, SIZES.head_dim, generator=torch.Generator().manual_seed(0))
    with TensorBytes() as tensors, torch.no_grad():
        mechanism(q, k, v, torch.ones(1, 20, dtype=torch.bool))
    assert tensors.largest <= mechanism.taps_NHW.numel() * 8  # float64
