"""Options and presets of earlier versions: those that have another name now, and those that are constants by now."""

import logging
from collections.abc import Mapping
from typing import Any

from scperformer.base.errors import InputError

log = logging.getLogger(__name__)

RENAMED = {"model.wide": "model.linear", "model.deep": "model.encoder", "model.wide_powers": "model.linear_powers"}
RENAMED_PRESETS = {("model", "pooled"): "coexpression"}
CONSTANTS: dict[str, tuple[Any, ...]] = {  # the values that mean what the program does now
    "conditions.smallest_panel": (200,),
    "conditions.thinned_share": (0.7,),
    "conformal": ("overall",),
    "estimate": (False,),
    "masking.class_weights": ("none",),
    "masking.random_share": (0,),
    "masking.tied": (False,),
    "model.activation": ("gelu",),
    "model.feedforward_factor": (4,),
    "num_draws": (3,),
    "optim.deep_loss_weight": (1,),
    "optim.deep_min_gain": (2,),
    "optim.wide_c": (0.1,),
    "optim.wide_class_weights": ("auto",),
    "optim.wide_gene_weights": ("auto",),
    "optim.wide_lr_factor": (0,),
    "optim.wide_start": ("logistic",),
    "trainer.strategy": ("auto", "ddp"),
}
CARD_TABLES = ("conditions_table", "novelty_table")  # both are in the model card with card=full


def current_name(name: str) -> str:
    """Return the name of today of an option, and log it if it is another one."""
    if name in RENAMED:
        log.warning("the option %s is called %s now", name, RENAMED[name])
    return RENAMED.get(name, name)


def current_preset(group: str, name: Any) -> Any:
    """Return the name of today of a preset, and log it if it is another one."""
    current = RENAMED_PRESETS.get((group, name), name) if isinstance(name, str) else name
    if current != name:
        log.warning("the preset %s=%s is called %s=%s now", group, name, group, current)
    return current


def current_options(options: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by their full names with the names of today; constants are left out.

    `known` holds all options of the step, nested by group: options of other steps stay as they are.

    Raises
    ------
    InputError
        An option that is a constant by now has another value.
    """
    current: dict[str, Any] = {}
    for name, value in options.items():
        if name in CARD_TABLES and "card" in known:
            log.warning("the option %s is part of card=full now", name)
            if value not in (False, "false"):
                current["card"] = "full"
        elif name in CONSTANTS and not _exists(name, known):
            if value not in CONSTANTS[name]:
                expected = f"{name}={_word(CONSTANTS[name][0])}, which cannot be changed any more"
                raise InputError(f"{name}={_word(value)}", expected, "leave it out")
            log.warning("%s=%s can be left out: it cannot be changed any more", name, _word(value))
        else:
            current[current_name(name)] = value
    return current


def _exists(name: str, known: Mapping[str, Any]) -> bool:
    group, _, option = name.partition(".")
    return option in known.get(group, {}) if option else name in known


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
