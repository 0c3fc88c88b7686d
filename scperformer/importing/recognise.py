"""The format of a model, by its content; a file for each format says how it is recognised and read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scperformer.config.steps import ModelsConfig
from scperformer.importing import celltypist, scbert, scvi_tools


@dataclass(frozen=True)
class Format:
    """A format of another tool."""

    name: str  # for messages, such as "a model of CellTypist (.pkl)"
    is_it: Callable[[Path], bool]  # looks at the first bytes or the names in a file or folder; never raises
    # The arguments of `foreign_model`, given the options and the names in files beside the model; it runs in a child
    # process. The text of a ValueError says how the file is damaged.
    read: Callable[[Path, ModelsConfig, Mapping[str, list[str]]], dict[str, Any]]


# In the order in which they are asked: a file that torch has saved is scBERT's if it is not of scvi-tools, and old ones
# begin as pickles do.
FORMATS = (
    Format(scvi_tools.NAME, scvi_tools.is_scvi_tools, scvi_tools.read_scvi_tools),
    Format(scbert.NAME, scbert.is_scbert, scbert.read_scbert),
    Format(celltypist.NAME, celltypist.is_celltypist, celltypist.read_celltypist),
)


def recognise(path: Path) -> Format | None:
    """Return the format of a file or folder of another tool; None: perhaps one of our own folders or archives."""
    return next((known for known in FORMATS if known.is_it(path)), None)
