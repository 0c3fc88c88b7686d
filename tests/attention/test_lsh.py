"""LSH: hashing, chunks of real tokens, rounds, and exact attention without hashing."""

import math

import pytest
import torch
from support.twins import TWINS
from torch.nn.functional import pad

from scperformer.attention.base import Attention, Sizes
from scperformer.attention.registry import make_attention
from scperformer.base.errors import InputError

SIZES = Sizes(num_heads=3, head_dim=16, length=512)


def make(**options) -> Attention:
    return make_attention({"name": "lsh", **options}, SIZES, torch.Generator().manual_seed(0)).double().eval()


def inputs(length: int):
    generator = torch.Generator().manual_seed(1)
    q, v = torch.randn(2, 2, SIZES.num_heads, length, SIZES.head_dim, generator=generator, dtype=torch.float64)
    keep = torch.rand(2, length, generator=generator) < 0.7
    keep[:, 0] = True
    return q, v, keep


def kept(out, keep):
    return out.transpose(1, 2)[keep]


@pytest.mark.parametrize("num_rounds", [1, 3])
def test_with_one_bucket_and_chunk_it_is_softmax_attention_to_other_tokens(num_rounds):
    q, v, keep = inputs(50)
    scores = q @ q.transpose(2, 3) / math.sqrt(SIZES.head_dim)
    hidden = ~keep[:, None, None, :] | torch.eye(50, dtype=torch.bool)
    expected = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
    out = make(num_buckets=1, num_rounds=num_rounds)(q, q, v, keep)
    torch.testing.assert_close(kept(out, keep), kept(expected, keep))


def test_a_single_token_gets_its_own_value():
    q, v, keep = inputs(9)
    keep[:] = torch.arange(9) == 4
    torch.testing.assert_close(make()(q, q, v, keep)[:, :, 4], v[:, :, 4])


@pytest.mark.parametrize("num_rounds", [1, 2, 4])
def test_rounds_in_which_a_token_finds_no_other_do_not_count(num_rounds):
    # With chunks of one token, the first token of every round attends only to itself.
    q, v, keep = inputs(6)
    mechanism = make(chunk_size=1, num_rounds=num_rounds)
    expected = TWINS["lsh"](mechanism, q, q, v, keep)
    torch.testing.assert_close(kept(mechanism(q, q, v, keep), keep), kept(expected, keep))


def test_equal_queries_find_each_other_at_any_distance():
    q = torch.randn(1, 1, 256, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    q = q.repeat(1, SIZES.num_heads, 2, 1)
    q = 20 * q / q.norm(dim=-1, keepdim=True)  # a score of 100 with its equal, and lower scores with other queries
    v = torch.randn(1, SIZES.num_heads, 512, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    keep = torch.ones(1, 512, dtype=torch.bool)

    def share_found(**options) -> float:
        out = make(chunk_size=16, **options)(q, q, v, keep)
        return float(((out - v.roll(256, dims=2)).abs().amax(-1) < 1e-3).double().mean())

    # They are 256 tokens apart: without hashing their chunks never meet.
    assert share_found(num_buckets=1) == 0
    one, eight = share_found(num_buckets=32, num_rounds=1), share_found(num_buckets=32, num_rounds=8)
    assert one > 0.5
    assert eight > 0.95


def test_dropped_tokens_are_in_no_chunk():
    q, v, keep = inputs(60)
    mechanism = make(chunk_size=4, num_buckets=4)
    expected = kept(mechanism(q, q, v, keep), keep)
    padded = [pad(x, (0, 0, 0, 17), value=1e4) for x in (q, v)]
    out = mechanism(padded[0], padded[0], padded[1], pad(keep, (0, 17)))[:, :, :60]
    torch.testing.assert_close(kept(out, keep), expected)
    for cell in range(2):
        real = keep[cell]
        alone = mechanism(q[cell, None, :, real], q[cell, None, :, real], v[cell, None, :, real], real[None, real])
        torch.testing.assert_close(
            alone[0].transpose(0, 1), expected[: real.sum()] if cell == 0 else expected[-real.sum() :]
        )


def test_keys_are_ignored_and_have_no_gradient():
    q, v, keep = inputs(30)
    q.requires_grad_()
    k = torch.full_like(q, torch.nan).requires_grad_()
    make()(q, k, v, keep).sum().backward()
    assert k.grad is None
    assert q.grad.isfinite().all()


def test_rotations_change_only_when_redrawn():
    q, v, keep = inputs(200)
    mechanism = make(chunk_size=8)
    assert mechanism.redraw_interval == 1
    before = mechanism(q, q, v, keep)
    assert torch.equal(mechanism(q, q, v, keep), before)
    mechanism.redraw(torch.Generator().manual_seed(7))
    assert not torch.allclose(mechanism(q, q, v, keep), before)


def test_the_order_of_tokens_determines_where_chunks_end():
    q, v, _ = inputs(64)
    keep = torch.ones(2, 64, dtype=torch.bool)
    mechanism = make(chunk_size=8, num_buckets=2)
    out = mechanism(q.flip(2), q.flip(2), v.flip(2), keep).flip(2)
    assert not torch.allclose(out, mechanism(q, q, v, keep))


@pytest.mark.parametrize(
    ("option", "value"),
    [("num_rounds", 0), ("num_buckets", 3), ("num_buckets", 0), ("chunk_size", 0), ("redraw_interval", -1)],
)
def test_options_out_of_range_are_refused(option, value):
    with pytest.raises(InputError, match=rf"attention\.{option}={value}"):
        make(**{option: value})
