"""Compile the kernels of fused.py for a GPU that is not there, with the interpreter off.

python tests/compiled.py bf16 64
"""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from scperformer.lab import fused

A100 = GPUTarget("cuda", 80, 32)
OF_FLOAT32 = ("sums", "tops", "totals", "bias", "lse", "total", "sink", "sink_bias", "sink_value")
OF_FLOAT32 += ("sink_grad", "delta", "grad_bias")
KERNELS = tuple(
    (kernel, f"{name}{', sink' * has_sink}", constants | {"SINK": has_sink})
    for has_sink in (False, True)
    for kernel, name, constants in (
        (fused._forward, "sum", {"SPLIT": True, **fused.NOT_RESIDENT}),
        (fused._forward, "read 266", {"SPLIT": False}),
        (fused._forward, "read 600", {"SPLIT": False}),
        (fused._backward_q, "backward_q", {}),
        (fused._backward_kv, "backward_features", {"TOKENS": False}),
        (fused._backward_kv, "backward_tokens", {"TOKENS": True}),
    )
)
KERNELS += ((fused._join, "join", {}),)


def main(dtype: str, width: int) -> None:
    name = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    for kernel, label, more in KERNELS:
        constants = fused.launch_options(label.split(",")[0], width, name) | more
        if kernel is fused._join:
            constants = {
                key: constants[key] for key in ("E", "TILE_E", "num_warps", "num_stages")
            } | {"TILE_N": 32}
        if label.startswith("read "):
            constants = (
                fused.read_options(width, name, int(label.split(",")[0].removeprefix("read ")))
                | more
            )
        compiler = {key: constants.pop(key) for key in ("num_warps", "num_stages")}
        first_number = kernel.arg_names.index("G" if kernel is fused._join else "q_B")
        types = {
            arg: f"*{dtype}" if i < first_number else "i32"
            for i, arg in enumerate(kernel.arg_names)
        }
        types |= dict.fromkeys((arg for arg in OF_FLOAT32 if arg in types), "*fp32")
        types |= dict.fromkeys(constants, "constexpr")
        types |= dict.fromkeys((arg for arg in ("square", "half_square") if arg in types), "fp32")
        if more.get("SPLIT") or more.get("TOKENS") is False:  # parts of sums
            types |= dict.fromkeys(
                (arg for arg in ("out", "grad_k", "grad_v") if arg in types), "*fp32"
            )
        signature = {arg: types[arg] for arg in kernel.arg_names}
        places = {(kernel.arg_names.index(arg),): value for arg, value in constants.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=places)
        made = triton.compile(source, target=A100, options=compiler)
        print(label, made.metadata.shared, len(made.asm["cubin"]), sep="\t")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
