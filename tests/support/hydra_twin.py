"""The options of a step as Hydra composes them from the same files: the naive twin of scperformer.cli.compose."""

from collections.abc import Sequence
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from scperformer.cli.presets import conf_dir
from scperformer.cli.steps import SCHEMAS


def composed_by_hydra(step: str, words: Sequence[str]) -> Any:
    """Return `SCHEMAS[step]`, made by Hydra and OmegaConf."""
    ConfigStore.instance().store(name=f"{step}_schema", node=SCHEMAS[step])
    with hydra.initialize_config_dir(str(conf_dir()), version_base="1.3"):
        return OmegaConf.to_object(hydra.compose(step, list(words)))
