"""Conv: without convolutions it is softmax attention; positions; the penalty of its kernels."""

import pytest
import torch
from support.mechanisms import inputs

from scperformer.attention.base import Attention, Sizes
from scperformer.attention.registry import make_attention

LENGTH = 33
SIZES = Sizes(num_heads=3, head_dim=16, length=LENGTH)


def make(**options) -> Attention:
    return (
        make_attention({"name": "conv", **options}, SIZES, torch.Generator().manual_seed(0))
        .double()
        .eval()
    )


def test_columns_belong_to_positions():
    # Without convolutions, a cell with some of the genes equals the whole cell with the other genes dropped.
    q, k, v, _ = inputs(LENGTH)
    keep = torch.ones(2, LENGTH, dtype=torch.bool)
    keep[:, ::3] = False
    mechanism = make(kernel_sizes=[1])
    some = torch.randperm(LENGTH, generator=torch.Generator().manual_seed(3))
    some = some[keep[0, some]].expand(2, -1)
    short = [x[:, :, some[0]] for x in (q, k, v)]
    out = mechanism(*short, torch.ones_like(some, dtype=torch.bool), some)
    torch.testing.assert_close(out, mechanism(q, k, v, keep)[:, :, some[0]])


def test_penalty_by_hand():
    mechanism = make(kernel_sizes=[1, 3], penalty_threshold=2.0)
    for kernel_3CT in mechanism.kernels_3CT:
        kernel_3CT.data.zero_()
    mechanism.kernels_3CT[0].data[0, :2, 0] = torch.tensor([3.0, 4.0])  # q, size 1: norm 5
    mechanism.kernels_3CT[1].data[1, 7] = torch.tensor([1.0, 2.0, 2.0])  # k, size 3: norm 3
    mechanism.kernels_3CT[1].data[2, 7, 0] = 1.9  # v, size 3: below the threshold
    assert mechanism.penalty().item() == pytest.approx((5 - 2) + (3 - 2))
    mechanism.penalty().backward()
    torch.testing.assert_close(
        mechanism.kernels_3CT[0].grad[0, :2, 0], torch.tensor([0.6, 0.8], dtype=torch.float64)
    )
    assert (mechanism.kernels_3CT[1].grad[2] == 0).all()
