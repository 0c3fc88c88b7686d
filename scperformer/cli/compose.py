"""The options of a step from words of the command line, in the grammar of Hydra's overrides."""

import re
from collections.abc import Sequence
from dataclasses import MISSING
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from scperformer.base.errors import InputError
from scperformer.config.compose import grouped, make_options, option_values
from scperformer.config.presets import preset_groups
from scperformer.config.steps import SCHEMAS

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

OF_HYDRA = re.compile(r"[+~]*hydra[./]")  # words about Hydra itself, such as its launcher


def make_config(step: str, words: Sequence[str] = (), own: Path | None = None) -> Any:
    """Make the options of a step from words such as `["label_key=cell_type", "model=tiny"]`; `own`: user's presets."""
    return make_options(SCHEMAS[step], parse(words, step), own)


def print_config(step: str, words: Sequence[str], own: Path | None = None) -> None:
    """Print all options of a step with their values, as YAML; required ones may be missing (???)."""
    full = option_values(SCHEMAS[step], parse(words, step), own)
    shown = {name: "???" if value is MISSING else value for name, value in full.items()}
    print(yaml.safe_dump(grouped(shown), sort_keys=False, allow_unicode=True), end="")


def parse(words: Sequence[str], step: str) -> dict[str, Any]:
    """Return the values that words give to options, by the full names of these; the last of repeated words counts."""
    values: dict[str, Any] = {}
    for override in _overrides(words, step):
        # no name has a comma
        if override.is_choice_sweep() and (step, override.key_or_group) == ("report", "genes"):
            values["genes"] = list(override.sweep_iterator())
            continue
        if override.is_sweep_override():
            name, _, value = str(override.input_line).partition("=")
            remedy = f"write a list as {name}=[{value}]"
            remedy += ", or train once for each value by 'scperformer bench'" * (step == "train")
            raise InputError("bad-argument", f"{name}={value}", "one value", remedy)
        values[override.key_or_group] = override.value()
    return values


def combinations(words: Sequence[str], step: str, own: Path | None = None) -> list[list[str]]:
    """Return the words of each combination of values, as `seed=0,1` has two; names and types are checked."""
    parts = {}  # by the option: the last of repeated words counts
    for override in _overrides(words, step):
        is_sweep = override.is_sweep_override()
        values = (
            override.sweep_string_iterator() if is_sweep else [override.get_value_element_as_str()]
        )
        parts[override.key_or_group] = [f"{override.key_or_group}={value}" for value in values]
    runs = list(map(list, product(*parts.values())))
    for run in runs:
        option_values(SCHEMAS[step], parse(run, step), own)
    return runs


def _overrides(words: Sequence[str], step: str) -> "list[Override]":
    """Read words by Hydra's grammar.

    Words that are no `option=value`, and those that add or remove options (+, ~) or set options of Hydra, are refused.
    """
    from hydra import version  # Hydra takes a quarter of a second to import
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import OverrideType
    from hydra.errors import HydraException

    version.setbase("1.3")  # Hydra warns without it
    parser = OverridesParser.create()
    overrides = []
    for word in words:
        is_preset = word.lstrip("+").partition("=")[0] in preset_groups(step)
        text = word.lstrip("+") if is_preset else word  # +experiment=mine
        try:
            override = parser.parse_override(text)
            if override.is_sweep_override():
                list(override.sweep_iterator())
        except (HydraException, ValueError) as error:
            reason = " ".join(str(error).partition("\nSee https")[0].split())
            found = f"{text} ({reason})"
            raise InputError(
                "bad-argument", found, "option=value", "put quotes around a text"
            ) from error
        if (
            override.type != OverrideType.CHANGE
            or override.package is not None
            or OF_HYDRA.match(text)
        ):
            remedy = f"'scperformer {step} --help' lists the options"
            raise InputError("unknown-option", f"option {text}", f"an option of '{step}'", remedy)
        overrides.append(override)
    return overrides
