"""Options and presets of earlier versions: those that have another name now, and those that are constants now."""

import logging
from collections.abc import Mapping
from typing import Any

from scperformer.base.errors import InputError
from scperformer.config.words import SWITCH

log = logging.getLogger(__name__)

RENAMED = {"model.wide": "model.linear", "model.deep": "model.encoder", "model.wide_powers": "model.linear_powers"}
RENAMED_PRESETS = {("model", "coexpression"): "pooled"}
CONSTANTS: dict[str, tuple[Any, ...]] = {  # the values that stand for what the program always does now
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
CARD_TABLES = ("conditions_table", "novelty_table")  # true or false; both tables are in the model card with card=full


def current_preset(group: str, name: Any) -> Any:
    """Return the current name of a preset; a name that has changed is logged."""
    current = RENAMED_PRESETS.get((group, name), name) if isinstance(name, str) else name
    if current != name:
        log.warning("the preset %s=%s is called %s=%s now", group, name, group, current)
    return current


def current_options(options: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return options, by their full names, under their current names; each change is logged.

    Options that are constants now are left out, in every step: also in a step that never had them.

    Parameters
    ----------
    options
        Full names -> values. Names that are no options of the step stay as they are.
    known
        The options of the step, nested by group.

    Raises
    ------
    InputError
        An option that is a constant now has another value, or a table of the model card is neither true nor false.
    """
    current: dict[str, Any] = {}
    for name, value in options.items():
        if name in CARD_TABLES and "card" in known:
            is_on = SWITCH.get(str(value).lower())
            if is_on is None:
                raise InputError(f"{name}={_word(value)}", "true or false", "write card=full or card=short instead")
            log.warning("the option %s is part of card=full now", name)
            if is_on:
                current["card"] = "full"
        elif name in CONSTANTS:
            if value not in CONSTANTS[name]:
                expected = f"{name}={_word(CONSTANTS[name][0])}, which cannot be changed any more"
                raise InputError(f"{name}={_word(value)}", expected, "leave it out")
            log.warning("%s=%s can be left out: it cannot be changed any more", name, _word(value))
        elif name in RENAMED:
            log.warning("the option %s is called %s now", name, RENAMED[name])
            current[RENAMED[name]] = value
        else:
            current[name] = value
    return current


def _word(value: Any) -> str:
    """Return a value as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
