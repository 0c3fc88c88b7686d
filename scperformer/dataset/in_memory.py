"""Decide which cells are loaded for a training, and which stay on disk."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from scperformer.config import AUTO, NetworkConfig, PretrainConfig, TrainConfig
from scperformer.errors import InputError
from scperformer.files import Rows, open_stored, reading, require_readable

log = logging.getLogger(__name__)

STREAMED = ("h5ad", "zarr")  # kinds of files that can stay on disk
STREAM_ABOVE = 2 * 2**30  # bytes of expression; a training in memory takes about four times as many
VALUE_BYTES = 8  # a value and its column
Config = TypeVar("Config", TrainConfig, PretrainConfig)


def stored_bytes(path: Path) -> int | None:
    """Return the bytes that the matrices of a file take in memory; None if it cannot be read by rows from disk."""
    if require_readable(path) not in STREAMED:
        return None
    try:
        with reading(path):
            cells = open_stored(path)
            raw = [] if cells.raw is None else [cells.raw.X]
            matrices = [Rows(x) for x in (cells.X, *cells.layers.values(), *raw) if x is not None]
    except InputError:  # a file of an older format is read as a whole
        return None
    return None if any(x.by_columns for x in matrices) else sum(VALUE_BYTES * x.num_values for x in matrices)


def settle_in_memory(cfg: Config, paths: Sequence[Path]) -> Config:
    """Return the options with `data.in_memory=false` instead of `auto` if the cells are to stay on disk.

    The answer depends on the files alone, so that it is the same on every machine.

    Raises
    ------
    InputError
        A file is of an unknown kind, a file is named twice, or several labelled files are to be loaded.
    """
    sizes = [stored_bytes(path) for path in paths]
    if len({path.resolve() for path in paths}) < len(paths):
        raise InputError("the same file twice", "every file once", "name each file once")
    several = isinstance(cfg, TrainConfig) and len(paths) > 1
    if cfg.data.in_memory is True and several:
        found = f"{len(paths)} files to train on and data.in_memory=true"
        raise InputError(found, "one file, or cells that stay on disk", "leave data.in_memory out")
    total = sum(size or 0 for size in sizes)
    if cfg.data.in_memory != AUTO or not (several or (total > STREAM_ABOVE and None not in sizes)):
        return cfg
    log.info("%.1f GiB of expression stay on disk during training (data.in_memory=false)", total / 2**30)
    return replace(cfg, data=replace(cfg.data, in_memory=False))


def require_loadable(cfg: NetworkConfig) -> None:
    """Refuse `data.in_memory=false` for cells that are in memory already."""
    if cfg.data.in_memory is False:
        raise InputError("data.in_memory=false and cells in memory", "files", "leave it out, or name files")
