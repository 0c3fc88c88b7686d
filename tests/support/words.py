"""Options as words of the command line, for calls in Python."""

from collections.abc import Sequence
from typing import Any

import yaml

from scperformer.cli.compose import make_config


def as_options(words: Sequence[str]) -> dict[str, Any]:
    """Turn words such as `trainer.max_epochs=5` into the options of a function."""
    pairs = (word.partition("=") for word in words)
    return {name: yaml.safe_load(value) for name, _, value in pairs}


def config_of(step: str, *words: str, paths: Sequence[object] = ("a.h5ad",)) -> Any:
    """The options of a quick `train` or `pretrain` on these files."""
    needed = ["label_key=cell_type"] if step == "train" else []
    inputs = ",".join(f"'{path}'" for path in paths)
    fast = ["trainer.max_epochs=2", "logger=none", "data.min_genes=0"]
    return make_config(step, [f"inputs=[{inputs}]", *needed, *fast, *words])
