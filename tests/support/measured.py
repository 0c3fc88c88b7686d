"""The memory of torch's operations, measured while they run."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorBytes(TorchDispatchMode):
    """Notes what operations make, in bytes: the largest storage (views take no memory), and all tensors in sum."""

    def __init__(self):
        super().__init__()
        self.largest = 0
        self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.largest = max(
            [self.largest, *(x.untyped_storage().nbytes() for x in tensors if not x.is_meta)]
        )
        self.total += sum(x.numel() * x.element_size() for x in tensors)
        return out
