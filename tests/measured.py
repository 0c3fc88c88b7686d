"""What operations of torch take, seen while they run."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Notes the size of the largest tensor that any operation makes, in bytes: storages, as views take no memory."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [x.untyped_storage().nbytes() for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.largest = max([self.largest, *sizes])
        return out
