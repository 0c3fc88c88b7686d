"""LSH: hashing, chunks of real tokens, rounds, and exact attention without hashing."""

import pytest
import torch
from support.mechanisms import inputs, kept
from support.twins import TWINS

from scperformer.attention.base import Attention, Sizes
from scperformer.attention.registry import make_attention

SIZES = Sizes(num_heads=3, head_dim=16, length=512)


def make(**options) -> Attention:
    return (
        make_attention({"name": "lsh", **options}, SIZES, torch.Generator().manual_seed(0))
        .double()
        .eval()
    )


@pytest.mark.parametrize("num_rounds", [1, 2, 4])
def test_rounds_in_which_a_token_finds_no_other_do_not_count(num_rounds):
    # With chunks of one token, the first token of every round attends only to itself.
    q, _, v, keep = inputs(6)
    mechanism = make(chunk_size=1, num_rounds=num_rounds)
    expected = TWINS["lsh"](mechanism, q, q, v, keep)
    torch.testing.assert_close(kept(mechanism(q, q, v, keep), keep), kept(expected, keep))


def test_equal_queries_find_each_other_at_any_distance():
    q = torch.randn(1, 1, 256, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    q = q.repeat(1, SIZES.num_heads, 2, 1)
    # a score of 100 with its equal, and lower scores with other queries
    q = 20 * q / q.norm(dim=-1, keepdim=True)
    v = torch.randn(
        1, SIZES.num_heads, 512, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    keep = torch.ones(1, 512, dtype=torch.bool)

    def share_found(**options) -> float:
        out = make(chunk_size=16, **options)(q, q, v, keep)
        return float(((out - v.roll(256, dims=2)).abs().amax(-1) < 1e-3).double().mean())

    # They are 256 tokens apart: without hashing their chunks never meet.
    assert share_found(num_buckets=1) == 0
    one, eight = (
        share_found(num_buckets=32, num_rounds=1),
        share_found(num_buckets=32, num_rounds=8),
    )
    assert one > 0.5
    assert eight > 0.95


def test_rotations_change_only_when_redrawn():
    q, _, v, keep = inputs(200)
    mechanism = make(chunk_size=8)
    assert mechanism.redraw_interval == 1
    before = mechanism(q, q, v, keep)
    assert torch.equal(mechanism(q, q, v, keep), before)
    mechanism.redraw(torch.Generator().manual_seed(7))
    assert not torch.allclose(mechanism(q, q, v, keep), before)
