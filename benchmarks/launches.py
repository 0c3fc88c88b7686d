"""Launches and memory traffic of attention on a GPU, counted without one: as torch's operations, and as our kernels.

    python benchmarks/launches.py            # one cell of 16,907 tokens, 10 heads of 64, bf16

Our kernels are not run: tensors have no content (torch's meta device), and each launch notes the sizes of its tensors.
A tensor is counted once per launch or operation that reads or writes it, also where tiles read it again from a cache.
Views, and tensors that are only allocated, are no launches.
"""

import argparse

import torch
from attention import LENGTH
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scperformer.attention import linear_attention
from scperformer.attention.base import Sizes
from scperformer.attention.registry import make_attention
from scperformer.lab import fused

FORMS = {
    "favor": {"name": "favor"},
    "favor as published": {
        "name": "favor",
        "num_features": 266,
        "epsilon": 1e-4,
        "stabiliser": "all_heads",
    },
    "rbf": {"name": "rbf"},
}
KERNELS = ("_forward", "_join", "_backward_q", "_backward_kv", "_row_dots")
NO_LAUNCH = ("empty", "new_empty", "detach", "is_", "_local_scalar_dense")
SIZES = Sizes(num_heads=10, head_dim=64, length=LENGTH)


class Counter(TorchDispatchMode):
    """Counts launches, ours among them, and bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.launches = self.ours = self.bytes = 0

    def note(self, tensors: list) -> None:
        storages = {id(x): x for x in tensors if isinstance(x, torch.Tensor)}
        self.bytes += sum(x.numel() * x.element_size() for x in storages.values())
        self.launches += 1

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        returned = function._schema.returns
        is_view = any(
            each.alias_info is not None and not each.alias_info.is_write for each in returned
        )
        if not is_view and not function._schema.name.removeprefix("aten::").startswith(NO_LAUNCH):
            self.note(tree_leaves((args, kwargs, out)))
        return out


class Launched:
    """In place of a kernel."""

    def __init__(self, counter: Counter):
        self.counter = counter

    def __getitem__(self, grid: tuple):
        def launch(*given, **_) -> None:
            self.counter.note(list(given))
            self.counter.ours += 1

        return launch


def count(form: str, with_kernels: bool, backward: bool) -> Counter:
    """Count one call of a mechanism."""
    made = make_attention(FORMS[form], SIZES, torch.Generator().manual_seed(0)).eval()
    device = "meta" if with_kernels else "cpu"
    qkv = torch.randn(
        1, LENGTH, 3, SIZES.num_heads, SIZES.head_dim, generator=torch.Generator().manual_seed(1)
    )
    qkv = qkv.bfloat16().to(device).permute(2, 0, 3, 1, 4).requires_grad_(backward)
    keep = torch.ones(1, LENGTH, dtype=torch.bool, device=device)
    counter = Counter()
    for kernel in KERNELS:
        setattr(fused, kernel, Launched(counter))
    exponents = made.to(device).exponents()
    with counter:
        if not with_kernels:
            out = made.packed(qkv, keep)
        else:
            out = fused.attend(qkv, keep, exponents)
        if backward:
            out.backward(torch.ones_like(out))
    return counter


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    linear_attention.SPAN_TOKENS = LENGTH  # as on a GPU
    print(
        "| | torch: launches | GB | with backward | GB | kernels: launches (ours) | GB | with backward | GB |"
    )
    print(f"|{'---|' * 9}")
    for form in FORMS:
        row = []
        for with_kernels in (False, True):
            for backward in (False, True):
                found = count(form, with_kernels, backward)
                ours = f" ({found.ours})" * with_kernels
                row += [f"{found.launches:,}{ours}", f"{found.bytes / 1e9:.2f}"]
        print(f"| {' | '.join([f'`{form}`', *row])} |", flush=True)


if __name__ == "__main__":
    main()
