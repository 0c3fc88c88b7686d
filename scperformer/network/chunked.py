"""A layer's two passes over long token axes, in chunks: the sums over keys, then each token reads from them.

Shape letters: B cells, L tokens, D model width; others as in attention/base.py.

With an additive mechanism a token needs only the sums over the others, so phi exists for one chunk of tokens at a
time. Results are written into one tensor made beforehand: chunks kept beside large temporary tensors would fragment
the memory. With recomputation the backward pass computes each chunk again and keeps only the input of the layer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add

import torch
from torch import nn

from scperformer.attention import KeySums

Sum = Callable[[torch.Tensor, torch.Tensor], KeySums]  # tokens and which of them are real -> their sums as keys
Read = Callable[[torch.Tensor, KeySums], torch.Tensor]  # tokens and the sums over all keys -> the layer's output


def spans(h_BLD: torch.Tensor, size: int) -> Iterator[slice]:
    """The chunks of the token axis."""
    for start in range(0, h_BLD.shape[1], size):
        yield slice(start, start + size)


def sum_in_chunks(
    function: Sum, h_BLD: torch.Tensor, keep_BL: torch.Tensor, size: int | None, recomputed: nn.Module | None = None
) -> KeySums:
    """Add up `function` of chunks of at most `size` tokens; None: of all tokens at once.

    The backward pass recomputes the chunks if `recomputed` is given, the module with the function's parameters.
    """
    size = size or h_BLD.shape[1]
    if recomputed is not None and torch.is_grad_enabled():
        return KeySums(*_Sum.apply(function, size, h_BLD, keep_BL, *recomputed.parameters()))
    return reduce(add, map(function, h_BLD.split(size, dim=1), keep_BL.split(size, dim=1)))


def read_in_chunks(
    function: Read, h_BLD: torch.Tensor, sums: KeySums, size: int | None, recomputed: nn.Module | None = None
) -> torch.Tensor:
    """`function` of chunks of at most `size` tokens, one after the other; as `sum_in_chunks`."""
    size = size or h_BLD.shape[1]
    if torch.is_grad_enabled():
        if recomputed is not None:
            given = (h_BLD, sums.s_BHME, sums.z_BHM, sums.scale_BHM)
            return _Read.apply(function, size, *given, *recomputed.parameters())
        return torch.cat([function(chunk_BLD, sums) for chunk_BLD in h_BLD.split(size, dim=1)], dim=1)
    out_BLD = torch.empty_like(h_BLD)
    for span in spans(h_BLD, size):
        out_BLD[:, span] = function(h_BLD[:, span], sums)
    return out_BLD


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, size, h_BLD, keep_BL, *parameters):
        ctx.function, ctx.size, ctx.as_before = function, size, _state_of(h_BLD.device)
        sums = sum_in_chunks(function, h_BLD, keep_BL, size)
        ctx.save_for_backward(h_BLD, keep_BL, sums.scale_BHM, *parameters)
        ctx.mark_non_differentiable(sums.scale_BHM)
        return sums.s_BHME, sums.z_BHM, sums.scale_BHM

    @staticmethod
    def backward(ctx, grad_s_BHME, grad_z_BHM, _):
        h_BLD, keep_BL, scale_BHM, *parameters = ctx.saved_tensors
        grads = _Gradients(h_BLD, parameters)
        with ctx.as_before():
            for span in spans(h_BLD, ctx.size):
                chunk_BLD = h_BLD[:, span].detach().requires_grad_()
                sums = ctx.function(chunk_BLD, keep_BL[:, span])
                factor_BHM = torch.exp(sums.scale_BHM - scale_BHM)
                given = (grad_s_BHME * factor_BHM.unsqueeze(-1), grad_z_BHM * factor_BHM)
                grads.add((sums.s_BHME, sums.z_BHM), given, chunk_BLD, span)
        return None, None, grads.h_BLD, None, *grads.shared


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, size, h_BLD, s_BHME, z_BHM, scale_BHM, *parameters):
        ctx.function, ctx.size, ctx.as_before = function, size, _state_of(h_BLD.device)
        ctx.save_for_backward(h_BLD, s_BHME, z_BHM, scale_BHM, *parameters)
        return read_in_chunks(function, h_BLD, KeySums(s_BHME, z_BHM, scale_BHM), size)

    @staticmethod
    def backward(ctx, grad_BLD):
        h_BLD, s_BHME, z_BHM, scale_BHM, *parameters = ctx.saved_tensors
        sums = KeySums(s_BHME.detach().requires_grad_(), z_BHM.detach().requires_grad_(), scale_BHM)
        grads = _Gradients(h_BLD, [sums.s_BHME, sums.z_BHM, *parameters])
        with ctx.as_before():
            for span in spans(h_BLD, ctx.size):
                chunk_BLD = h_BLD[:, span].detach().requires_grad_()
                grads.add((ctx.function(chunk_BLD, sums),), (grad_BLD[:, span],), chunk_BLD, span)
        grad_s_BHME, grad_z_BHM, *others = grads.shared
        return None, None, grads.h_BLD, grad_s_BHME, grad_z_BHM, None, *others


def _state_of(device: torch.device) -> Callable:
    """A context of blocks with gradients and with today's random numbers (dropout) and automatic mixed precision."""
    rng_state = torch.get_rng_state()
    module = None if device.type == "cpu" else torch.get_device_module(device)
    device_rng_state = None if module is None else module.get_rng_state()
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None

    @contextmanager
    def as_before() -> Iterator[None]:
        devices = [] if module is None else [device]
        forked = torch.random.fork_rng(devices, device_type=device.type)
        with forked, torch.enable_grad(), torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            torch.set_rng_state(rng_state)
            if module is not None:
                module.set_rng_state(device_rng_state)
            yield

    return as_before


class _Gradients:
    """Gradients of the tokens, chunk by chunk, and of the tensors that all chunks share."""

    def __init__(self, h_BLD: torch.Tensor, tensors: list[torch.Tensor]):
        self.h_BLD, self.tensors = torch.empty_like(h_BLD), tensors
        self.shared: list[torch.Tensor | None] = [None] * len(tensors)

    def add(self, outputs: tuple, given: tuple, chunk_BLD: torch.Tensor, span: slice) -> None:
        """Add the gradients of one chunk, given those of its outputs."""
        wanted = [i for i, tensor in enumerate(self.tensors) if tensor.requires_grad]
        inputs = (chunk_BLD, *(self.tensors[i] for i in wanted))
        self.h_BLD[:, span], *grads = torch.autograd.grad(outputs, inputs, given, allow_unused=True)
        for i, grad in zip(wanted, grads, strict=True):
            if grad is not None:
                total = self.shared[i]
                self.shared[i] = grad.clone() if total is None else total.add_(grad)
