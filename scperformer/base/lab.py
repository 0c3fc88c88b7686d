"""The door of the lab: what it holds, by name. Nothing else names its files; they are imported when they are asked for.

The lab has all that serves those who develop methods: `predict`, and `train` without attention between tokens, need
nothing of it.
"""

from pkgutil import resolve_name
from typing import Any

MECHANISMS = {
    "conv": "conv:Conv",
    "evo": "window:Evo",
    "linformer": "linformer:Linformer",
    "lsh": "lsh:Lsh",
    "rbf": "rbf:Rbf",
    "window": "window:Window",
}
PLACES = MECHANISMS | {
    "fastfood": "fastfood:Fastfood",  # projections of favor
    "kernels": "fused:attend",  # for GPUs
    "encoder": "encoder:Encoder",  # attention between tokens
    "training": "supervised:TokenEncoder",  # of such an encoder
    "pretrain": "pretrain:pretrain_cells",
    "analyze": "analyze:run_analyze",
    "contract": "contract:check_contract",
    "bench": "bench",
}


def from_lab(name: str) -> Any:
    """Return a class, function or file of the lab."""
    return resolve_name(f"scperformer.lab.{PLACES[name]}")
