"""A layer's two passes over long token axes, in pieces: the sums over keys, then what each token reads from them.

Shape letters: B cells, L tokens, D model width; others as in attention/base.py.

With an additive mechanism a token needs of the others only their sums, so phi exists for one piece of tokens at a
time. Results are written into one tensor made beforehand: pieces kept beside large temporary ones would leave memory
in fragments. With recomputation the backward pass does each piece anew and keeps nothing but what enters the layer.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add

import torch
from torch import nn

from scperformer.attention import KeySums

Sum = Callable[[torch.Tensor, torch.Tensor], KeySums]  # tokens and which of them are real -> what they contribute
Read = Callable[[torch.Tensor, KeySums], torch.Tensor]  # tokens and what all keys contribute -> the layer's output


def spans(h_BLD: torch.Tensor, size: int) -> Iterator[slice]:
    """The pieces of the token axis."""
    for start in range(0, h_BLD.shape[1], size):
        yield slice(start, start + size)


def sum_in_pieces(function: Sum, h_BLD: torch.Tensor, keep_BL: torch.Tensor, size: int) -> KeySums:
    """`function` of pieces of at most `size` tokens, added up."""
    return reduce(add, map(function, h_BLD.split(size, dim=1), keep_BL.split(size, dim=1)))


def read_in_pieces(function: Read, h_BLD: torch.Tensor, sums: KeySums, size: int) -> torch.Tensor:
    """`function` of pieces of at most `size` tokens, one after the other."""
    if torch.is_grad_enabled():
        return torch.cat([function(piece_BLD, sums) for piece_BLD in h_BLD.split(size, dim=1)], dim=1)
    out_BLD = torch.empty_like(h_BLD)
    for span in spans(h_BLD, size):
        out_BLD[:, span] = function(h_BLD[:, span], sums)
    return out_BLD


def sum_recomputed(function: Sum, h_BLD: torch.Tensor, keep_BL: torch.Tensor, size: int, module: nn.Module) -> KeySums:
    """As `sum_in_pieces`; `module` holds the parameters that the function uses."""
    return KeySums(*_Sum.apply(function, size, h_BLD, keep_BL, *module.parameters()))


def read_recomputed(function: Read, h_BLD: torch.Tensor, sums: KeySums, size: int, module: nn.Module) -> torch.Tensor:
    """As `read_in_pieces`; `module` holds the parameters that the function uses."""
    return _Read.apply(function, size, h_BLD, sums.s_BHME, sums.z_BHM, sums.scale_BHM, *module.parameters())


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, size, h_BLD, keep_BL, *parameters):
        ctx.again = _Again(function, size, h_BLD.device)
        sums = sum_in_pieces(function, h_BLD, keep_BL, size)
        ctx.save_for_backward(h_BLD, keep_BL, sums.scale_BHM, *parameters)
        ctx.mark_non_differentiable(sums.scale_BHM)
        return sums.s_BHME, sums.z_BHM, sums.scale_BHM

    @staticmethod
    def backward(ctx, grad_s_BHME, grad_z_BHM, _):
        h_BLD, keep_BL, scale_BHM, *parameters = ctx.saved_tensors
        grads = _Gradients(h_BLD, parameters)
        with ctx.again.as_before():
            for span in spans(h_BLD, ctx.again.size):
                piece_BLD = h_BLD[:, span].detach().requires_grad_()
                sums = ctx.again.function(piece_BLD, keep_BL[:, span])
                factor_BHM = torch.exp(sums.scale_BHM - scale_BHM)
                given = (grad_s_BHME * factor_BHM.unsqueeze(-1), grad_z_BHM * factor_BHM)
                grads.add((sums.s_BHME, sums.z_BHM), given, piece_BLD, span)
        return None, None, grads.h_BLD, None, *grads.others


class _Read(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, size, h_BLD, s_BHME, z_BHM, scale_BHM, *parameters):
        ctx.again = _Again(function, size, h_BLD.device)
        ctx.save_for_backward(h_BLD, s_BHME, z_BHM, scale_BHM, *parameters)
        return read_in_pieces(function, h_BLD, KeySums(s_BHME, z_BHM, scale_BHM), size)

    @staticmethod
    def backward(ctx, grad_BLD):
        h_BLD, s_BHME, z_BHM, scale_BHM, *parameters = ctx.saved_tensors
        sums = KeySums(s_BHME.detach().requires_grad_(), z_BHM.detach().requires_grad_(), scale_BHM)
        grads = _Gradients(h_BLD, [sums.s_BHME, sums.z_BHM, *parameters])
        with ctx.again.as_before():
            for span in spans(h_BLD, ctx.again.size):
                piece_BLD = h_BLD[:, span].detach().requires_grad_()
                grads.add((ctx.again.function(piece_BLD, sums),), (grad_BLD[:, span],), piece_BLD, span)
        grad_s_BHME, grad_z_BHM, *others = grads.others
        return None, None, grads.h_BLD, grad_s_BHME, grad_z_BHM, None, *others


class _Again:
    """A function of pieces and the state it ran in: random numbers (dropout) and automatic mixed precision."""

    def __init__(self, function: Callable, size: int, device: torch.device):
        self.function, self.size = function, size
        self.device = device
        self.rng_state = torch.get_rng_state()
        self.device_rng_state = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state()
        self.dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Gradients on, everything else as it was at the first run; the state now comes back afterwards."""
        devices = [] if self.device_rng_state is None else [self.device]
        with (
            torch.random.fork_rng(devices, device_type=self.device.type),
            torch.enable_grad(),
            torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype is not None),
        ):
            torch.set_rng_state(self.rng_state)
            if self.device_rng_state is not None:
                torch.get_device_module(self.device).set_rng_state(self.device_rng_state)
            yield


class _Gradients:
    """Gradients of the tokens, piece by piece, and of everything that all pieces share."""

    def __init__(self, h_BLD: torch.Tensor, shared: list[torch.Tensor]):
        self.h_BLD = torch.empty_like(h_BLD)
        self.shared = shared
        self.others: list[torch.Tensor | None] = [None] * len(shared)

    def add(self, outputs: tuple, given: tuple, piece_BLD: torch.Tensor, span: slice) -> None:
        """Take in the gradients of one piece, given those of its outputs."""
        wanted = [i for i, tensor in enumerate(self.shared) if tensor.requires_grad]
        inputs = (piece_BLD, *(self.shared[i] for i in wanted))
        grad_BLD, *grads = torch.autograd.grad(outputs, inputs, given, allow_unused=True)
        self.h_BLD[:, span] = grad_BLD
        for i, grad in zip(wanted, grads, strict=True):
            if grad is not None:
                total = self.others[i]
                self.others[i] = grad.clone() if total is None else total.add_(grad)
