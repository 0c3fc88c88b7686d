"""Make the options of a step from values by their full names, for Python and for the command line.

Presets apply first, in the order of their groups, then the values. OmegaConf converts a value to the type of its
option, as "5" to 5, or refuses it. No value is code, and none refers to another: `${...}` is text.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_origin

from scperformer.base.errors import InputError
from scperformer.config.descriptions import fields_of, where_to_set
from scperformer.config.options import Options, is_option
from scperformer.config.presets import preset_groups, preset_values

if TYPE_CHECKING:
    from omegaconf import DictConfig

Schema = TypeVar("Schema", bound=Options)
# What a type takes, for errors, by a part of its name.
EXPECTED = {
    "list": "a list",
    "bool | str": "true, false or a text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
}


def make_options(schema: type[Schema], values: Mapping[str, Any], presets: Path | None = None) -> Schema:
    """Make the options of a step from values by their full names; `presets` is the user's folder of presets.

    Values are texts, paths, numbers, booleans, None, and lists or arrays of these; a group, such as `model`, takes the
    name of a preset.
    """
    from omegaconf import OmegaConf  # takes a while to import

    tree = option_tree(schema, values, presets)
    if missing := sorted(OmegaConf.missing_keys(tree)):
        remedy = f"add {missing[0]}=... to 'scperformer {schema.word()}'"
        raise InputError("missing-option", f"no {missing[0]}", f"a value for {missing[0]}", remedy)
    return cast(Schema, OmegaConf.to_object(tree))


def option_tree(schema: type[Options], values: Mapping[str, Any], presets: Path | None = None) -> "DictConfig":
    """Return the options of a step as a tree, in which required ones may be missing."""
    from omegaconf import OmegaConf

    groups = preset_groups(schema.word())
    known = fields_of(schema)
    plain = {name: _plain(name, value) for name, value in values.items()}
    tree = OmegaConf.structured(schema)
    for name, value in preset_values(schema, {name: plain[name] for name in groups if name in plain}, presets).items():
        if name not in known and not name.startswith("attention."):
            raise _unknown(name, schema)
        _set(tree, name, value, known[name][1] if name in known else Any)
    for name, value in plain.items():
        if name not in groups:
            entry, kind = known.get(name, (None, Any))
            # Presets alone set the fixed fields of groups, and have the options of mechanisms of attention.
            is_of_mechanism = name != "attention.name" and name.removeprefix("attention.") in tree.get("attention", ())
            if not (is_of_mechanism if entry is None else is_option(entry) or "." not in name):
                raise _unknown(name, schema)
            _set(tree, name, value, kind)
    return tree


def _set(tree: "DictConfig", name: str, value: Any, kind: Any) -> None:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if any(get_origin(part) is list for part in (kind, *get_args(kind))) and not isinstance(value, list | None):
        value = [value]  # one value needs no brackets
    try:
        OmegaConf.update(tree, name, value)
    except (OmegaConfBaseException, OverflowError) as error:
        expected = next((text for part, text in EXPECTED.items() if part in str(kind)), "a value of its kind")
        raise InputError("bad-option", f"{name}={in_word(value)}", expected, f"set {name} accordingly") from error


def _unknown(name: str, schema: type[Options]) -> InputError:
    if name == "attention.causal":
        found = "attention.causal with a mechanism that has no causal form"
        remedy = "choose one of them: linformer's rows, for example, are sums over all tokens, also later ones"
        return InputError("not-causal", found, "attention=favor, rbf or softmax", remedy)
    return InputError("unknown-option", f"option {name}", f"an option of '{schema.word()}'", where_to_set(name, schema))


def _plain(name: object, value: Any) -> Any:
    """Return a value as OmegaConf takes it: a scalar or a list of scalars, in which it replaces nothing."""
    if not isinstance(name, str):
        raise InputError("option-name", f"option {name!r}", "the name of an option", "write it as a text")
    if isinstance(value, Mapping):
        remedy = f"write {{'{name}.{next(iter(value), 'NAME')}': ...}}"
        expected = "the full name of each option"
        raise InputError("option-name", f"options inside of the option {name}", expected, remedy)
    value = value.tolist() if hasattr(value, "tolist") else value  # of NumPy or pandas
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(name, part) for part in value]
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(value, str):
        if "\0" in value:
            raise InputError("null-character", f"a null character in '{value}'", "text", "remove it")
        return re.sub(r"(\\*)\$\{", r"\1\1\\${", value)  # `${` is escaped, and so are backslashes before it
    if not isinstance(value, bool | int | float | None):
        expected = "a text, a number, true, false or None, or a list of these"
        raise InputError("option-type", f"an option of the type {type(value).__name__}", expected, "convert it")
    return value


def in_word(value: object) -> str:
    """Return a value as on the command line, for a message."""
    if isinstance(value, list):
        return f"[{','.join(map(in_word, value))}]"
    return {True: "true", False: "false", None: "null"}[value] if isinstance(value, bool | None) else str(value)
