"""Options of benchmarks, given as on the command line, for calls in Python."""

from collections.abc import Sequence
from typing import Any

import yaml


def as_options(words: Sequence[str]) -> dict[str, Any]:
    """Turn words such as `trainer.max_epochs=5` into options of a function."""
    pairs = (word.partition("=") for word in words)
    return {name: yaml.safe_load(value) for name, _, value in pairs}
