"""Read files that torch has saved (.pt, .pth) without executing anything: by `torch.load` with `weights_only`.

Objects of other packages in such a file, such as a table of pandas, are `Made`, inert stand-ins (pickles.py).
"""

from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scperformer.io.pickles import stand_in

PICKLE = "/data.pkl"  # in the folder that is named for the file
HEAD_BYTES = 256  # the name of the pickle, which comes first, is within these
OLD_START = bytes.fromhex("8002 8a0a 6cfc 9c46 f920 6aa8 5019")  # of torch before 1.6


def is_torch_file(path: Path) -> bool:
    """Whether a file begins as one that torch has saved; it may end too early."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    return head.startswith(OLD_START) or (head.startswith(b"PK") and PICKLE.encode() in head)


def read_torch(path: Path, others: tuple[str, ...] = ()) -> Any:
    """Return the content of a file that torch has saved: mappings, lists, plain values, and tensors as arrays.

    It may name `others` than torch's own functions and classes, as in `stand_in`; their objects are `Made`. Damaged
    content can raise any error: it is read by `read_in_child`.
    """
    with path.open("rb") as file:
        if file.read(len(OLD_START)) == OLD_START:
            raise ValueError("the form of torch before 1.6 (save it again with a newer torch)")
    # `torch.load` sets items of few kinds of mappings: a defaultdict becomes one of these.
    harmless: list[Any] = [(lambda *_: OrderedDict(), "collections.defaultdict")]
    with torch.serialization.safe_globals(harmless):
        for name in torch.serialization.get_unsafe_globals_in_checkpoint(path):
            harmless.append((stand_in(name, others), name))
    with torch.serialization.safe_globals(harmless):
        return _with_arrays(torch.load(path, map_location="cpu", weights_only=True))


def _with_arrays(content: Any, depth: int = 2) -> Any:
    """Return a mapping with arrays in place of the tensors in it, and in mappings within it."""
    if isinstance(content, torch.Tensor):
        content = content.detach()
        return (content.float() if content.dtype == torch.bfloat16 else content).numpy()
    if isinstance(content, dict) and depth:
        return {name: _with_arrays(value, depth - 1) for name, value in content.items()}
    return content


def weights_of(content: Any, name: str) -> Mapping[str, np.ndarray]:
    """Return the weights in an entry of a checkpoint, without those that are no arrays."""
    weights = content.get(name) if isinstance(content, dict) else None
    if not isinstance(weights, dict):
        raise ValueError(f"no {name}")
    return {str(key): value for key, value in weights.items() if isinstance(value, np.ndarray)}
