"""Hydra composes the options of a step from words, conf/ and presets; ours are the checks, and errors on one line.

Hydra is handed words of the command line, or options whose names were checked: no file can set an option of Hydra
itself, which can call any function.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from pathlib import Path
from threading import RLock
from typing import Any, get_args, get_origin

from scperformer.base.errors import InputError
from scperformer.cli.arguments import option_words
from scperformer.cli.help import closest_option, options_of
from scperformer.cli.presets import conf_dir, give_to_hydra, preset_groups
from scperformer.cli.steps import SCHEMAS
from scperformer.cli.workflow import WORKFLOW_STEPS

OF_HYDRA = re.compile(r"[+~]*hydra[./]")  # words about Hydra itself, such as its launcher
LOCK = RLock()  # Hydra has one global state


@cache  # storing takes longer than composing
def _store_schema(step: str) -> None:
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name=f"{step}_schema", node=SCHEMAS[step])


def checked_words(words: Sequence[str], step: str, own: Path | None, *, several: bool = False) -> list[str]:
    """Check words by Hydra's grammar, and register the presets that they name with Hydra; return the words for it.

    Words that are no `option=value`, have several values outside a bench, add or remove options (+, ~), or name a
    preset that does not exist, are refused.
    """
    from hydra import version  # Hydra takes a quarter of a second to import
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import OverrideType
    from hydra.errors import HydraException

    version.setbase("1.3")  # Hydra warns without it
    _store_schema(step)
    groups = preset_groups(step)
    known = options_of(step)
    parser = OverridesParser.create()
    checked = {}
    for word in words:
        text = word.lstrip("+") if word.lstrip("+").partition("=")[0] in groups else word  # +experiment=mine
        try:
            override = parser.parse_override(text)
            is_several = override.is_sweep_override()
            swept = map(override._convert_value, override.sweep_iterator()) if override.is_discrete_sweep() else None
            values = [override.value()] if swept is None else list(swept)
        except (HydraException, ValueError) as error:
            reason = " ".join(str(error).partition("\nSee https")[0].split())
            raise InputError(
                "bad-argument", f"{text} ({reason})", "option=value", "put quotes around a text"
            ) from error
        name = override.key_or_group
        is_usual = override.type == OverrideType.CHANGE and override.package is None
        group = name.partition(".")[0]
        # Values inside of groups that presets alone set; presets have the options of mechanisms of attention.
        is_fixed = name == "attention.name" or (
            name not in known and "." in name and group in groups and group != "attention"
        )
        if not is_usual or OF_HYDRA.match(text) or is_fixed:
            raise _unknown(name, step, text)
        if is_several and not several:
            value = text.partition("=")[2]
            remedy = f"write a list as {name}=[{value}]"
            remedy += ", or train once for each value by 'scperformer bench'" * (step == "train")
            raise InputError("bad-argument", text, "one value", remedy)
        if name in groups:
            for preset in values:
                give_to_hydra(step, name, preset, own)
        elif not is_several and values[0] is not None and not isinstance(values[0], list) and name in known:
            kind = known[name][1]
            if any(get_origin(part) is list for part in (kind, *get_args(kind))):
                text = f"{name}=[{text.partition('=')[2]}]"  # one value needs no brackets
        checked[name] = text  # the last of repeated words counts
    return list(checked.values())


def _unknown(name: str, step: str, text: str) -> InputError:
    """Return the error about an option that a step does not have."""
    remedy = f"'scperformer {step} --help' lists the options"
    names = {entry.name for entry in fields(SCHEMAS[step])}
    if name == "model" and "model_path" in names:  # model=FOLDER was meant to name a trained model
        remedy = f"name a trained model with model_path=FOLDER; {remedy}"
    elif step == "workflow" and (steps := [other for other in WORKFLOW_STEPS if name in options_of(other)]):
        remedy = f'write overrides: {{{steps[0]}: "{name}=..."}} into a file for --config; {remedy}'
    elif name == "attention.causal":
        found = f"{text} with a mechanism that has no causal form"
        remedy = "choose one of them: linformer's rows, for example, are sums over all tokens, also later ones"
        return InputError("not-causal", found, "attention=favor, rbf or softmax", remedy)
    elif name.startswith("attention."):
        remedy = f"choose the mechanism with attention=NAME; 'scperformer {step} --cfg job' shows its options"
    elif (near := closest_option(name, step)) in options_of(step) and near != name:
        remedy = f"did you mean {near}? {remedy}"
    return InputError("unknown-option", f"option {text}", f"an option of '{step}'", remedy)


def _explained(error: Exception, step: str) -> InputError:
    """Return the error of Hydra or OmegaConf about a word or a preset, on one line."""
    text = " ".join(str(error).partition("Config search path")[0].split())
    if found := re.match(r"Could not override '([^']+)'", text):
        return _unknown(found[1], step, found[1])
    if found := re.match(r"Error merging override ([^= ]+)=(.*)", text):
        kind = str(options_of(step).get(found[1], (None, ""))[1])
        expected = next((text for part, text in EXPECTED.items() if part in kind), "a value of its kind")
        return InputError("bad-option", f"{found[1]}={found[2]}", expected, f"set {found[1]} accordingly")
    return InputError("bad-option", text, "options of scperformer", f"'scperformer {step} --help' lists them")


# The first part of the name of a type that fits.
EXPECTED = {"list": "a list", "bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}


def make_config(step: str, words: Sequence[str] = (), own: Path | None = None) -> Any:
    """Make `SCHEMAS[step]` from words such as `["label_key=cell_type", "model=tiny"]`; `own`: the user's presets."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    with LOCK:
        checked = checked_words(words, step, own)
        program = GlobalHydra.instance().hydra  # of a program that uses Hydra itself
        GlobalHydra.instance().clear()
        try:
            with initialize_config_dir(str(conf_dir()), version_base="1.3"):
                tree = compose(step, checked)
            if missing := sorted(OmegaConf.missing_keys(tree)):
                remedy = f"add {missing[0]}=... to 'scperformer {step}'"
                raise InputError("missing-option", f"no {missing[0]}", f"a value for {missing[0]}", remedy)
            return OmegaConf.to_object(tree)
        except (HydraException, OmegaConfBaseException, OverflowError) as error:
            raise _explained(error, step) from error
        finally:
            GlobalHydra.instance().hydra = program


def config_from(step: str, options: Mapping[str, Any]) -> Any:
    """Make `SCHEMAS[step]` from options by their full names; values may be paths, scalars and arrays of NumPy."""
    return make_config(step, option_words(options))


@contextmanager
def command_line(program: str, *words: str) -> Iterator[None]:
    """Set `sys.argv` for a block: Hydra reads it, and Lightning starts the other processes of a ddp run by it."""
    before = sys.argv
    sys.argv = [program, *words]
    try:
        yield
    finally:
        sys.argv = before


def hand_to_hydra(
    step: str, words: Sequence[str], flags: Sequence[str], task: Callable[[Any], None], own: Path | None = None
) -> None:
    """Call a task with the tree of each run of a bench, by Hydra's launcher; with the flag `--cfg`, only print."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    of_hydra = [word for word in words if OF_HYDRA.match(word)]
    options = checked_words([word for word in words if not OF_HYDRA.match(word)], step, own, several=True)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
    try:
        with command_line(sys.argv[0], *options, *of_hydra, *flags):
            hydra.main(config_path=str(conf_dir()), config_name=step, version_base="1.3")(task)()
    except (HydraException, OmegaConfBaseException) as error:
        raise _explained(error, step) from error
