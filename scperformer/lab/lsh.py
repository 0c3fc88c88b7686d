"""Reformer attention: tokens are sorted by a hash of their query, which is also their key, and attend to neighbours.

More shape letters than in base.py: R rounds, P chunks of C tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from scperformer.attention.base import Attention, AttentionOptions, Sizes, zeroed
from scperformer.config.options import ONE_OR_MORE, ZERO_OR_MORE, Rule, option

CHUNKS_AT_A_TIME = 256  # chunks of one head
CHUNKS_ON_GPU = 2**14
# Added to scores: of a token and itself, far below any other key, and of dropped keys, so that a token that finds no
# other key attends to itself. (Reformer's -1e5 is enough for scores of ordinary size.)
SELF_SCORE = -1e30
DROPPED_SCORE = -1e35
EVEN_OR_ONE: Rule = (
    lambda value: value == 1 or (value >= 2 and value % 2 == 0),
    "an even number, or 1",
)


class Lsh(Attention):
    """sum_r exp(z_r - log sum_r' exp z_r') softmax_r(Q Q^T / sqrt(E)) V, z_r the log of a row's normaliser in round r.

    In each round, the real tokens of a cell are sorted by (bucket, position) and cut into chunks. A token attends to
    the tokens of its own chunk and the previous one, and to itself only if it finds no other. A key counts once for
    each round in which it is found. The hash has no gradient.

    Source: Kitaev et al. 2020, arXiv 2001.04451, section 2; buckets as in Andoni et al. 2015, arXiv 1509.02897.
    """

    @dataclass(kw_only=True)
    class Options(AttentionOptions):
        # independent hash functions
        num_rounds: int = option(2, rule=(lambda num: 1 <= num <= 1000, "1 to 1000"))
        # values of the hash: an even number, or 1 for no hashing
        num_buckets: int = option(16, rule=EVEN_OR_ONE)
        # tokens that attend to each other and to the previous chunk
        chunk_size: int = option(64, rule=ONE_OR_MORE)
        # training steps between new rotations; 0: never
        redraw_interval: int = option(1, rule=ZERO_OR_MORE)

    order_sensitive = True  # the order determines where a chunk ends within a bucket
    shared_qk = True
    size_option = "chunk_size"
    rotations_REM: Tensor

    def __init__(self, sizes: Sizes, options: Options, generator: torch.Generator):
        super().__init__(sizes, options, generator)
        # With a single hash function, training would adapt to which tokens happen to find each other.
        self.redraw_interval = options.redraw_interval
        shape = (options.num_rounds, sizes.head_dim, options.num_buckets // 2)
        self.register_buffer("rotations_REM", torch.empty(shape))
        self.redraw(generator)

    @torch.no_grad()
    def redraw(self, generator: torch.Generator) -> None:
        self.rotations_REM.copy_(torch.randn(self.rotations_REM.shape, generator=generator))

    def forward(self, q_BHLE, k_BHLE, v_BHLE, keep_BL, positions_BL=None):
        # scores need more than the 8 bits of bfloat16
        with torch.autocast(q_BHLE.device.type, enabled=False):
            q, v = (zeroed(x_BHLE, keep_BL) for x_BHLE in (q_BHLE, v_BHLE))
            rounds = [
                self.one_round(q, v, keep_BL, rotation_EM) for rotation_EM in self.rotations_REM
            ]
            sums_RBHLE, scale_RBHL1 = (torch.stack(parts) for parts in zip(*rounds, strict=True))
            sums_BHLE = (sums_RBHLE * torch.exp(scale_RBHL1 - scale_RBHL1.amax(0))).sum(0)
            return (sums_BHLE[..., :-1] / sums_BHLE[..., -1:]).to(v_BHLE.dtype)

    def one_round(self, q_BHLE, v_BHLE, keep_BL, rotation_EM):
        """Return sums over the keys found in one round, divided by exp(scale), and the scale.

        The sums, B x H x L x (E + 1), are of exp(score) v and, as last entry, of exp(score). The scale, B x H x L x 1,
        has no gradient, as it cancels.
        """
        batch, heads, length, _ = q_BHLE.shape
        # by (bucket, position); dropped tokens come last, so that chunks do not depend on their number
        buckets_BHL = buckets(q_BHLE, rotation_EM).masked_fill(
            ~keep_BL[:, None], torch.iinfo(torch.int64).max
        )
        order_BHL = buckets_BHL.argsort(dim=2, stable=True)
        real_BHL = keep_BL[:, None].expand(batch, heads, length).gather(2, order_BHL)
        size = min(self.options.chunk_size, length)
        missing = -length % size  # padding of the last chunk
        # an empty chunk precedes the first chunk
        q, v = (pad(take(x, order_BHL), (0, 0, size, missing)) for x in (q_BHLE, v_BHLE))
        real = pad(real_BHL, (size, missing))
        q_BHPCE, v_BHPCE = (x.unflatten(2, (-1, size)) for x in (q, v))
        # a chunk attends to the previous chunk and to itself
        keys_values = [part for x in (q_BHPCE, v_BHPCE) for part in (x[:, :, :-1], x[:, :, 1:])]
        unreal_BHPK = ~real.unfold(2, 2 * size, size)
        q_BHPCE = q_BHPCE[:, :, 1:] * self.sizes.head_dim**-0.5
        # A few chunks at a time: their temporary tensors fit into the cache, and the next chunks reuse their memory.
        span = max(1, (CHUNKS_ON_GPU if q_BHLE.is_cuda else CHUNKS_AT_A_TIME) // (batch * heads))
        pieces = zip(
            *(x.split(span, dim=2) for x in (q_BHPCE, *keys_values, unreal_BHPK)), strict=True
        )
        itself = pad(torch.eye(size, dtype=q.dtype, device=q.device) * SELF_SCORE, (size, 0))
        outputs = []
        for q_BHPCE, k_before, k_own, v_before, v_own, unreal_BHPK in pieces:
            k_BHPKE = torch.cat([k_before, k_own], dim=3)
            v_BHPKE = torch.cat([v_before, v_own], dim=3)
            # In place, as this tensor is the largest by far, and the backward pass needs only its last value.
            weights = q_BHPCE @ k_BHPKE.mT
            weights += itself
            weights += (unreal_BHPK.to(weights.dtype) * DROPPED_SCORE).unsqueeze(3)
            scale = weights.detach().amax(-1, keepdim=True)
            weights.sub_(scale).exp_()
            outputs.append(
                (torch.cat([weights @ v_BHPKE, weights.sum(-1, keepdim=True)], dim=-1), scale)
            )
        back_BHL = order_BHL.argsort(2)
        parts = (
            torch.cat(x, dim=2).flatten(2, 3)[:, :, :length] for x in zip(*outputs, strict=True)
        )
        return [take(x, back_BHL) for x in parts]


def buckets(q_BHLE: Tensor, rotation_EM: Tensor) -> Tensor:
    """Return the argmax of [qR, -qR], B x H x L; always in float32, so that all precisions agree on the buckets."""
    if rotation_EM.shape[1] == 0:
        return torch.zeros(q_BHLE.shape[:3], dtype=torch.int64, device=q_BHLE.device)
    rotated_BHLM = q_BHLE.detach().float() @ rotation_EM.float()
    return torch.cat([rotated_BHLM, -rotated_BHLM], dim=-1).argmax(-1)


def take(x_BHLE: Tensor, order_BHL: Tensor) -> Tensor:
    """Reorder the tokens of each head."""
    batch, heads, length, width = x_BHLE.shape
    start_BH1 = torch.arange(batch * heads, device=x_BHLE.device).view(batch, heads, 1) * length
    # Indexing rows is several times as fast as `gather`, which looks up each entry.
    return x_BHLE.reshape(-1, width)[start_BH1 + order_BHL]
