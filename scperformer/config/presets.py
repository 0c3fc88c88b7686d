"""Presets: YAML files with options, by group; in conf/ of the package, or a user's own in `--config-dir`.

A preset sets options by their full names (`model.depth: 2`), and may choose presets of other groups (`head: mean`). It
may come from anywhere, so it is read as plain values, which set options of scperformer and nothing else.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean
from scperformer.base.yaml_files import read_yaml_file
from scperformer.config.descriptions import fields_of
from scperformer.config.mechanisms import registered_mechanism, registered_names
from scperformer.config.options import Options

PRESET_NAME = re.compile(r"[\w-]+")  # of a preset: it cannot leave the folder of its group
PRESET_FILE = "a preset with options of scperformer alone, as in docs/configuration.md"


@cache
def conf_dir() -> Path:
    """Return the folder conf/ with the presets: inside an installed package, beside it in a source checkout."""
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


@cache
def preset_groups(step: str) -> dict[str, str | None]:
    """Return the groups of presets that a step has, in the order in which they apply, with their default presets."""
    path = conf_dir() / f"{step}.yaml"
    return read_yaml_file(path) if path.is_file() else {}


def preset_names(group: str, own: Path | None = None) -> list[str]:
    """Return the names of the presets of a group, sorted; `own` is the user's folder of presets."""
    folders = [conf_dir() / group, *([own / group] if own is not None else [])]
    names = {path.stem for folder in folders for path in folder.glob("*.yaml")}
    return sorted(names | set(registered_names() if group == "attention" else ()))


def preset_values(
    schema: type[Options], chosen: Mapping[str, object], own: Path | None
) -> dict[str, object]:
    """Return the options that presets set, by their full names: `chosen` ones by group, the defaults of other groups.

    A group whose preset the user chose keeps it. Else a preset may choose those of groups that apply before its own.
    """
    defaults = preset_groups(schema.word())
    names: dict[str, object] = dict(chosen)
    contents: list[dict[str, object]] = []
    for place, group in reversed(list(enumerate(defaults))):
        name = names.get(group, defaults[group])
        if name is None and group not in chosen:
            continue
        content = _read(schema, group, name, own)
        for other in content.keys() & defaults.keys():
            if other not in list(defaults)[:place]:
                found = f"the preset {group}={name}, which chooses {other}={content[other]}"
                expected = f"presets of groups that apply before {group}"
                raise InputError("preset-conflict", found, expected, "leave that line out")
            names.setdefault(other, content.pop(other))
        contents.insert(0, content)
    return {name: value for content in contents for name, value in content.items()}


def _read(schema: type[Options], group: str, name: object, own: Path | None) -> dict[str, object]:
    """Return a preset by its name: of the package, of the user, or a registered mechanism of attention.

    It has the options that it sets by their full names, and the presets that it chooses by their groups.
    """
    if isinstance(name, str) and PRESET_NAME.fullmatch(name):
        for folder in (conf_dir(), own):
            if folder is not None and (path := folder / group / f"{name}.yaml").is_file():
                return _read_file(path, schema, group)
        if group == "attention" and (mechanism := registered_mechanism(name)) is not None:
            options = {"name": name, **asdict(mechanism.Options())}
            return {f"attention.{option}": value for option, value in options.items()}
    known = preset_names(group, own)
    remedy = f"{did_you_mean(name, known)}choose one, or leave {group}=... out"
    found = f"{group}={'null' if name is None else name}"
    raise InputError("unknown-preset", found, f"a preset of '{group}' ({', '.join(known)})", remedy)


def _read_file(path: Path, schema: type[Options], group: str) -> dict[str, object]:
    known = {*preset_groups(schema.word()), *fields_of(schema)}
    try:
        content = read_yaml_file(path) or {}
        if not isinstance(content, dict):
            raise ValueError("no mapping of names to values")
        for name, value in content.items():
            # only its own presets set these
            of_mechanism = group == "attention" and str(name).startswith("attention.")
            if not of_mechanism and name not in known:
                raise ValueError(f"'{name}', which is no option of '{schema.word()}'")
            if isinstance(value, dict):
                raise ValueError(f"a mapping as '{name}'")
    except (OSError, ValueError) as error:
        found = f"{path} cannot be used ({error})"
        raise InputError("bad-preset", found, PRESET_FILE, "correct it, or leave it out") from error
    # to list installed mechanisms takes longer than all else here
    is_ours = path.parents[1] == conf_dir()
    if (
        group == "attention"
        and not is_ours
        and content.get("attention.name") not in preset_names(group)
    ):
        expected = f"one of {', '.join(preset_names(group))}"
        found = f"a preset with the mechanism {content.get('attention.name')}"
        raise InputError("unknown-mechanism", found, expected, "correct its name")
    return content
