"""Compile the kernels of fused.py and fused_causal.py for a GPU that is not there, with the interpreter off.

python tests/compiled.py bf16 64
"""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from scperformer.attention import fused, fused_causal

A100 = GPUTarget("cuda", 80, 32)
OF_FLOAT32 = ("sums", "tops", "totals", "rest", "read_bias", "bias", "lse", "total", "sink", "sink_bias", "sink_value")
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
CAUSAL = (
    (fused._forward, "sum", {"SPLIT": True, "SINK": False, **fused.NOT_RESIDENT}),
    (fused._join, "join", {"BLOCKS": 1}),
    (fused._forward, "read", {"SPLIT": False, "SINK": False, "BLOCKS": True, **fused.NOT_RESIDENT}),
    (fused_causal._within, "within", {"BACKWARD": False}),
    (fused._backward_q, "backward_q", {"SINK": False, "BLOCKS": True}),
    (fused._backward_kv, "backward_features", {"SINK": False, "TOKENS": False, "BLOCKS": True}),
    (fused._join, "join_backward", {"BLOCKS": -1}),
    (fused._backward_kv, "backward_tokens", {"SINK": False, "TOKENS": True, "BLOCKS": True}),
    (fused_causal._within, "within_backward", {"BACKWARD": True}),
)
KERNELS += tuple((kernel, f"{name}, causal", constants) for kernel, name, constants in CAUSAL)


def main(dtype: str, width: int) -> None:
    name = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    for kernel, label, more in KERNELS:
        constants = fused.launch_options("causal" if "causal" in label else label.split(",")[0], width, name) | more
        if label.startswith("join"):
            constants = {key: constants[key] for key in ("E", "TILE_E", "BLOCKS", "num_warps", "num_stages")}
            constants["TILE_N"] = 32
        if label.startswith("within_backward"):
            constants |= {"TILE_L": constants["TILE_L"] // 2, "num_warps": 8}
        constants = {"BLOCKS": False} | constants if "BLOCKS" in kernel.arg_names else constants
        if label.startswith("read "):
            constants = fused.read_options(width, name, int(label.split(",")[0].removeprefix("read "))) | more
        compiler = {key: constants.pop(key) for key in ("num_warps", "num_stages")}
        first_number = kernel.arg_names.index("G" if kernel is fused._join else "q_B")
        types = {arg: f"*{dtype}" if i < first_number else "i32" for i, arg in enumerate(kernel.arg_names)}
        types |= dict.fromkeys((arg for arg in OF_FLOAT32 if arg in types), "*fp32")
        types |= dict.fromkeys(constants, "constexpr")
        types |= dict.fromkeys((arg for arg in ("square", "half_square") if arg in types), "fp32")
        if more.get("SPLIT") or more.get("TOKENS") is False:  # parts of sums
            types |= dict.fromkeys((arg for arg in ("out", "grad_k", "grad_v") if arg in types), "*fp32")
        signature = {arg: types[arg] for arg in kernel.arg_names}
        places = {(kernel.arg_names.index(arg),): value for arg, value in constants.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=places)
        made = triton.compile(source, target=A100, options=compiler)
        print(label, made.metadata.shared, len(made.asm["cubin"]), sep="\t")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
