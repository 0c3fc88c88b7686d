"""Conv: without convolutions it is softmax attention; positions; the penalty of its kernels."""

import pytest
import torch
from torch.nn.functional import pad

from scperformer.attention.base import Attention, Sizes
from scperformer.attention.registry import make_attention
from scperformer.base.errors import InputError

LENGTH = 33
SIZES = Sizes(num_heads=3, head_dim=16, length=LENGTH)


def make(**options) -> Attention:
    return make_attention({"name": "conv", **options}, SIZES, torch.Generator().manual_seed(0)).double().eval()


def inputs(length: int = LENGTH):
    generator = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(3, 2, SIZES.num_heads, length, SIZES.head_dim, generator=generator, dtype=torch.float64)
    return q, k, v, torch.ones(2, length, dtype=torch.bool)


def kept(out, keep):
    return out.transpose(1, 2)[keep]


def test_without_convolution_and_projection_it_adds_softmax_attention():
    tensors = inputs()
    mechanism = make(kernel_sizes=[1], projected_length=LENGTH)
    mechanism.kernels_3CT[0].data.fill_(1.0)
    for matrix in (mechanism.rows_PK, mechanism.columns_PK):
        matrix.data.copy_(torch.eye(LENGTH))
    added = mechanism(*tensors) - mechanism.skip(*tensors)
    softmax = make_attention({"name": "softmax"}, SIZES, torch.Generator())
    torch.testing.assert_close(added, softmax(*tensors))


# --- positions -----------------------------------------------------------------------------------------------


def test_columns_belong_to_positions():
    # Without convolutions, a cell with some of the genes equals the whole cell with the other genes dropped.
    q, k, v, keep = inputs()
    keep[:, ::3] = False
    mechanism = make(kernel_sizes=[1])
    some = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(3))
    some = some[keep[0, some]].expand(2, -1)
    short = [x[:, :, some[0]] for x in (q, k, v)]
    out = mechanism(*short, torch.ones_like(some, dtype=torch.bool), some)
    torch.testing.assert_close(out, mechanism(q, k, v, keep)[:, :, some[0]])


def test_more_tokens_than_positions_are_refused_unless_positions_are_given():
    mechanism = make()
    with pytest.raises(InputError, match=r"34 tokens in a cell; expected at most the 33 positions"):
        mechanism(*inputs(34))
    padded = padding(inputs(), 1)
    positions = torch.arange(34).clamp_max(32).expand(2, -1)
    torch.testing.assert_close(mechanism(*padded, positions)[:, :, :33], mechanism(*inputs()))


def padding(tensors, num_tokens):
    """The same cells with dropped tokens of arbitrary values at the end."""
    q, k, v, keep = tensors
    return [*(pad(x, (0, 0, 0, num_tokens), value=1e4) for x in (q, k, v)), pad(keep, (0, num_tokens))]


def test_padding_changes_nothing():
    mechanism = make()
    tensors = inputs(20)
    torch.testing.assert_close(mechanism(*padding(tensors, 9))[:, :, :20], mechanism(*tensors))


# --- penalty -------------------------------------------------------------------------------------------------


def test_penalty_by_hand():
    mechanism = make(kernel_sizes=[1, 3], penalty_threshold=2.0)
    for kernel_3CT in mechanism.kernels_3CT:
        kernel_3CT.data.zero_()
    mechanism.kernels_3CT[0].data[0, :2, 0] = torch.tensor([3.0, 4.0])  # q, size 1: norm 5
    mechanism.kernels_3CT[1].data[1, 7] = torch.tensor([1.0, 2.0, 2.0])  # k, size 3: norm 3
    mechanism.kernels_3CT[1].data[2, 7, 0] = 1.9  # v, size 3: below the threshold
    assert mechanism.penalty().item() == pytest.approx((5 - 2) + (3 - 2))
    mechanism.penalty().backward()
    torch.testing.assert_close(mechanism.kernels_3CT[0].grad[0, :2, 0], torch.tensor([0.6, 0.8], dtype=torch.float64))
    assert (mechanism.kernels_3CT[1].grad[2] == 0).all()


def test_training_with_the_penalty_lowers_the_norms():
    def norm_after_training(weight: float) -> float:
        mechanism = make(penalty_weight=weight)
        optimizer = torch.optim.SGD(mechanism.parameters(), lr=0.1)
        tensors = inputs()
        for _ in range(20):
            loss = (mechanism(*tensors) - tensors[2]).square().mean() + mechanism.penalty_weight * mechanism.penalty()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return torch.cat([kernel.flatten() for kernel in mechanism.kernels_3CT]).norm().item()

    assert norm_after_training(0.5) < norm_after_training(0.0) - 1


# --- parameters and options ----------------------------------------------------------------------------------


def test_redraw_includes_the_linear_attention():
    mechanism = make(redraw_interval=7, num_features=5)
    assert mechanism.redraw_interval == 7
    before = mechanism.skip.directions_ME.clone()
    assert before.shape == (5, 16)
    mechanism.redraw(torch.Generator().manual_seed(9))
    assert not torch.equal(mechanism.skip.directions_ME, before)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kernel_sizes", []),
        ("kernel_sizes", [3, 4]),
        ("kernel_sizes", [3, "a"]),
        ("projected_length", 0),
        ("penalty_weight", float("inf")),
        ("kernel_sizes", [3, True]),
        ("penalty_weight", -1.0),
        ("penalty_threshold", -0.5),
        ("num_features", 0),
        ("redraw_interval", -1),
    ],
)
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(InputError, match=rf"attention\.{option}="):
        make(**{option: value})
