"""From presets and options to the checked dataclass of a step: the same for the command line, Python and the workflow.

Nothing here is global, so threads may do it at the same time.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from math import isfinite
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from scperformer.base.errors import InputError
from scperformer.cli.option_texts import closest_option
from scperformer.cli.overrides import SWITCH, Word, interpolated, read_words, require_flat
from scperformer.cli.presets import chosen_presets, merge, preset_groups, require_mechanism, step_values
from scperformer.cli.steps import SCHEMAS

UNSET = "???"  # stands for a required option without a value, as in Hydra


def _default(entry: Any) -> Any:
    """Return the default of a field of a dataclass; the options of a group as a dictionary."""
    value = entry.default if entry.default_factory is MISSING else entry.default_factory()
    value = UNSET if value is MISSING else value
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _unknown(name: str, step: str, tree: Mapping[str, Any], text: str) -> InputError:
    """Return the error about an option that a step does not have."""
    remedy = f"'scperformer {step} --help' lists the options"
    if name == "model" and "model_path" in tree:  # model=FOLDER was meant to name a trained model
        remedy = f"name a trained model with model_path=FOLDER; {remedy}"
        return InputError(f"a preset of 'model' ({text})", f"an option of '{step}'", remedy)
    if name == "attention.name":
        return InputError(f"option {name}", f"an option of '{step}'", "choose the mechanism with attention=NAME")
    near = closest_option(name, step)
    near = f"did you mean {near}? " if near else ""
    group, _, inside = name.partition(".")
    known = tree.get(group)
    expected = f"an option of '{step}'"
    if inside and isinstance(known, dict):
        expected = f"one of {', '.join(f'{group}.{option}' for option in known)}"
    return InputError(f"option {name}", expected, near + remedy)


def option_tree(step: str, options: Mapping[str, Any], own: Path | None = None) -> dict[str, Any]:
    """Return all options of a step, nested by group: defaults, then presets, then `options` by their full names.

    Parameters
    ----------
    options
        A preset of a group (`model`), an option (`seed`) or an option of a group (`model.dim`) -> its value.
    own
        A folder with more presets.

    Raises
    ------
    InputError
        An option or a preset does not exist.
    """
    require_flat(options)
    groups = preset_groups(step)
    schema = SCHEMAS[step]
    tree = {entry.name: _default(entry) for entry in fields(schema)}
    presets = chosen_presets(step, {name: value for name, value in options.items() if name in groups}, own)
    for content in (*(preset.values for preset in presets.values()), step_values(step)):
        # No dataclass of this room lists the options of a mechanism of attention: its preset does.
        mechanism = {name: value for name, value in content.items() if name == "attention" and isinstance(value, dict)}
        merge(tree, mechanism)
        others = {name: value for name, value in content.items() if name not in mechanism}
        for name, value in _flat(others).items():
            if not _exists(name, tree):
                raise _unknown(name, step, tree, name)
            _set(tree, name, value)
    if "attention" in tree:
        require_mechanism(tree["attention"].get("name"))
    for name, value in options.items():
        if name in groups:
            continue
        if not _exists(name, tree):
            raise _unknown(name, step, tree, f"{name}={value}")
        _set(tree, name, value)
    return tree


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return options that are nested by group as a mapping of their full names to their values."""
    options: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            options |= {f"{name}.{option}": inner for option, inner in value.items()}
        else:
            options[name] = value
    return options


def _set(tree: dict[str, Any], name: str, value: Any) -> None:
    """Set an option by its full name in options that are nested by group."""
    group, _, option = name.partition(".")
    if option:
        tree[group][option] = value
    else:
        tree[name] = value


def _exists(name: str, tree: Mapping[str, Any]) -> bool:
    """Return whether a full name is that of an option; a group itself is none, nor is the name of a mechanism."""
    group, _, option = name.partition(".")
    inside = tree.get(group)
    if option:
        return isinstance(inside, dict) and option in inside and name != "attention.name"
    return group in tree and not isinstance(inside, dict)


def _converted(value: Any, kind: Any, name: str) -> Any:
    """Return a value as the type of its field, as Hydra converts it; refuse one that is of another kind.

    Parameters
    ----------
    value
        From words, YAML or Python, such as a path, a tuple or a number of NumPy.
    kind
        The type of the field, such as `int | None` or `list[str]`.
    name
        The full name of the option, for errors.
    """
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if value is None and (NoneType in kinds or kind is Any):
        return None
    kind = next(part for part in kinds if part is not NoneType)
    if hasattr(value, "tolist"):  # a number of NumPy in a list
        value = value.tolist()
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if kind is Any:
        return list(value) if isinstance(value, tuple | set | frozenset) else value
    if get_origin(kind) is list:
        if isinstance(value, dict) or value is None:
            raise InputError(f"{name}={'null' if value is None else value}", "a list", f"write it as {name}=[...]")
        items = value if isinstance(value, list | tuple | set | frozenset) else [value]  # one value needs no brackets
        return [_converted(item, get_args(kind)[0], name) for item in items]
    wrong = isinstance(value, list | tuple | set | frozenset | dict) or value is None
    switch = SWITCH.get(str(value).lower()) if isinstance(value, bool | int | str) else None
    try:
        if not wrong and kind is str:
            return str(value)
        if not wrong and kind is bool and switch is not None:
            return switch
        if not isinstance(value, bool) and kind is int and isinstance(value, int | str):
            return int(value)
        if not isinstance(value, bool) and kind is float and isinstance(value, int | float | str):
            number = float(value)
            if isfinite(number):
                return number
    except (ValueError, OverflowError):  # a text that is no number; an integer that is too large
        pass
    expected = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}[kind]
    raise InputError(f"{name}={'null' if value is None else value}", expected, f"set {name} accordingly")


def _built(schema: type, values: Mapping[str, Any], prefix: str = "") -> Any:
    """Make a dataclass, and the groups inside it, from options that are nested by group."""
    hints = get_type_hints(schema)
    named = {}
    for name, value in values.items():
        if isinstance(value, dict) and is_dataclass(hints[name]):
            named[name] = _built(hints[name], value, f"{name}.")
        elif isinstance(value, dict):
            named[name] = dict(value)
        else:
            named[name] = _converted(value, hints[name], prefix + name)
    return schema(**named)


def config_from(step: str, options: Mapping[str, Any], own: Path | None = None) -> Any:
    """Make `SCHEMAS[step]` from options by their full names, such as {"label_key": "cell_type", "model": "tiny"}.

    Presets and errors are those of `option_tree`; a value of another type, or out of its range, is refused, too. Values
    may be scalars, arrays and series of NumPy and pandas.
    """
    plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in options.items()}
    tree = option_tree(step, plain, own)
    if step == "train" and tree["label_key"] == UNSET and tree["label_keys"]:
        tree["label_key"] = tree["label_keys"][-1]
    missing = sorted(name for name, value in tree.items() if value == UNSET)
    if missing:
        remedy = f"add {missing[0]}=... to 'scperformer {step}'"
        raise InputError(f"no {missing[0]}", f"a value for {missing[0]}", remedy)
    return _built(SCHEMAS[step], tree)


def options_of_words(words: Sequence[str], step: str) -> dict[str, Any]:
    """Return the options in the words of one run by their full names; of repeated ones, the last counts.

    Raises
    ------
    InputError
        A word is no `option=value`, has several values, or adds or removes options (+, ~).
    """
    return {word.name: _value_of(word, step) for word in read_words(words)}


def _value_of(word: Word, step: str) -> Any:
    """Return the value of a word of one run; errors as `options_of_words`."""
    if not word.changes:
        if word.name == "model" and "model_path" in {entry.name for entry in fields(SCHEMAS[step])}:
            raise _unknown("model", step, {"model_path": None}, word.text)
        known = f"'scperformer {step} --help' lists the options"
        near = closest_option(word.name, step)
        remedy = f"did you mean {near}? {known}" if near and near != word.name else f"leave + and ~ out; {known}"
        raise InputError(f"option {word.text}", f"an option of '{step}' as option=value", remedy)
    if word.several:
        value = word.text.partition("=")[2]
        remedy = f"add -m to run the step once for each (a sweep), or write a list as {word.name}=[{value}]"
        raise InputError(word.text, "one value", remedy)
    return interpolated(word.value, word.text)


def make_config(step: str, words: Sequence[str] = (), own: Path | None = None) -> Any:
    """Make `SCHEMAS[step]` from words such as `["label_key=cell_type", "model=tiny"]`; errors as `config_from`."""
    return config_from(step, options_of_words(words, step), own)


def tree_of_words(step: str, words: Sequence[str] = (), own: Path | None = None) -> dict[str, Any]:
    """Return all options of a step, nested by group, in the order of the dataclass; required ones may be "???"."""
    return option_tree(step, options_of_words(words, step), own)
