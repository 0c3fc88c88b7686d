"""Make the options of a step from values by their full names, for Python and for the command line.

Presets apply first, in the order of their groups, then the values. A value is converted to the type of its option, as
"5" to 5, or refused (`option_value`). No value is code, and none refers to another: `${...}` is text.
"""

import os
from collections.abc import Mapping
from dataclasses import MISSING
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from scperformer.base.errors import InputError
from scperformer.config.descriptions import default_of, fields_of, is_group, where_to_set
from scperformer.config.options import Options, is_option, option_value
from scperformer.config.presets import preset_groups, preset_values

Schema = TypeVar("Schema", bound=Options)


def make_options(
    schema: type[Schema], values: Mapping[str, Any], presets: Path | None = None
) -> Schema:
    """Make the options of a step from values by their full names; `presets` is the user's folder of presets.

    Values are texts, paths, numbers, booleans, None, and lists or arrays of these; a group, such as `model`, takes the
    name of a preset.
    """
    full = option_values(schema, values, presets)
    if missing := sorted(name for name, value in full.items() if value is MISSING):
        remedy = f"add {missing[0]}=... to 'scperformer {schema.word()}'"
        raise InputError("missing-option", f"no {missing[0]}", f"a value for {missing[0]}", remedy)
    kinds = get_type_hints(schema)
    parts = grouped(full).items()
    return schema(
        **{name: kinds[name](**value) if is_group(kinds[name]) else value for name, value in parts}
    )


def option_values(
    schema: type[Options], values: Mapping[str, Any], presets: Path | None = None
) -> dict[str, Any]:
    """Return the values of all options of a step by their full names; MISSING for required ones that are not given."""
    groups = preset_groups(schema.word())
    known = fields_of(schema)
    plain = {name: _plain(name, value) for name, value in values.items()}
    full = {name: default_of(entry) for name, (entry, _) in known.items()}
    chosen = {name: plain.pop(name) for name in groups if name in plain}
    for name, value in preset_values(schema, chosen, presets).items():
        full[name] = option_value(name, known[name][1] if name in known else Any, value)
    for name, value in plain.items():
        entry, kind = known.get(name, (None, Any))
        # Presets alone set the fixed fields of groups, and have the options of mechanisms of attention.
        is_of_mechanism = (
            name.startswith("attention.") and name != "attention.name" and name in full
        )
        if not (is_of_mechanism if entry is None else is_option(entry) or "." not in name):
            raise _unknown(name, schema)
        full[name] = option_value(name, kind, value)
    return full


def grouped(full: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by their names, with a mapping for each group."""
    tree: dict[str, Any] = {}
    for name, value in full.items():
        group, _, option = name.rpartition(".")
        if group:
            tree.setdefault(group, {})[option] = value
        else:
            tree[name] = value
    return tree


def _unknown(name: str, schema: type[Options]) -> InputError:
    if name == "attention.causal":
        found = "attention.causal with a mechanism that has no causal form"
        remedy = "choose one of them: linformer's rows, for example, are sums over all tokens, also later ones"
        return InputError("not-causal", found, "attention=favor, rbf or softmax", remedy)
    return InputError(
        "unknown-option",
        f"option {name}",
        f"an option of '{schema.word()}'",
        where_to_set(name, schema),
    )


def _plain(name: object, value: Any) -> Any:
    """Return a value as a scalar or a list of scalars."""
    if not isinstance(name, str):
        raise InputError(
            "option-name", f"option {name!r}", "the name of an option", "write it as a text"
        )
    if isinstance(value, Mapping):
        remedy = f"write {{'{name}.{next(iter(value), 'NAME')}': ...}}"
        expected = "the full name of each option"
        raise InputError("option-name", f"options inside of the option {name}", expected, remedy)
    value = value.tolist() if hasattr(value, "tolist") else value  # of NumPy or pandas
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(name, part) for part in value]
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(value, str) and "\0" in value:
        raise InputError("null-character", f"a null character in '{value}'", "text", "remove it")
    if not isinstance(value, str | bool | int | float | None):
        expected = "a text, a number, true, false or None, or a list of these"
        raise InputError(
            "option-type", f"an option of the type {type(value).__name__}", expected, "convert it"
        )
    return value
