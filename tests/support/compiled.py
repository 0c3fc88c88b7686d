"""Compile the kernels of fused.py for a GPU that is not there; a program of its own: the interpreter must be off.

python tests/compiled.py bf16 64
"""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from scperformer.attention import fused

A100 = GPUTarget("cuda", 80, 32)
NUMBERS = ("q_step", "k_step", "N", "L", "E")
OF_INPUTS = ("q", "k", "v", "out", "grad")


def main(dtype: str, width: int) -> None:
    name = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    for kernel in (fused._forward, fused._backward_q, fused._backward_kv):
        constants = fused.launch_options(width, name) | ({"WITH_K": True} if kernel is fused._backward_kv else {})
        types = dict.fromkeys(kernel.arg_names, "*fp32") | dict.fromkeys(NUMBERS, "i32")
        types |= dict.fromkeys(OF_INPUTS, f"*{dtype}") | dict.fromkeys(constants, "constexpr")
        signature = {arg: types[arg] for arg in kernel.arg_names}
        places = {(kernel.arg_names.index(arg),): value for arg, value in constants.items()}
        made = triton.compile(ASTSource(fn=kernel, signature=signature, constexprs=places), target=A100)
        print(kernel.__name__, made.metadata.shared, len(made.asm["cubin"]))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
