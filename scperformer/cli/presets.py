"""Presets: YAML files with options, by group; those of the package are in conf/, a user's own in `--config-dir`.

A preset of a group sets options of this group or, below a first line `# @package _global_`, of any group; its
`defaults` may choose presets of other groups (`- override /head: mean`). Hydra composes the same files in a sweep, and
they are read by its rules: a preset that the user chooses replaces one that a preset chooses, and a later group
overrides an earlier one. The file of a step, such as conf/train.yaml, has the order of the groups.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean
from scperformer.base.yaml_files import read_yaml_file
from scperformer.config.mechanisms import registered_mechanism, registered_names

NAME = re.compile(r"[\w-]+")  # of a preset: it cannot leave the folder of its group
GLOBAL = re.compile(r"#\s*@package\s+_global_\s*$")  # the first line of a preset that sets options of any group
EXPECTED = "a preset with options of scperformer alone, as in docs/configuration.md"


@cache
def conf_dir() -> Path:
    """Return the folder conf/ with the presets: inside an installed package, beside it in a source checkout."""
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


@cache
def preset_groups(step: str) -> dict[str, str | None]:
    """Return the groups of presets that a step has, in the order in which they apply -> the default preset or None."""
    entries = read_yaml_file(conf_dir() / f"{step}.yaml")["defaults"]
    return {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}


@cache
def step_values(step: str) -> dict[str, Any]:
    """Return the options in the file of a step in conf/ itself, which override those of presets."""
    content = read_yaml_file(conf_dir() / f"{step}.yaml")
    return {name: value for name, value in content.items() if name != "defaults"}


@dataclass(frozen=True)
class Preset:
    """The content of a preset."""

    values: Mapping[str, Any]  # options, nested by group
    chooses: Mapping[str, str]  # another group -> its preset
    content: Mapping[str, Any]  # as it is in the file, for Hydra
    is_global: bool  # sets options of any group
    is_own: bool  # of the user, not of the package


def preset_names(group: str, own: Path | None = None) -> list[str]:
    """Return the names of the presets of a group, sorted; `own` is the user's folder of presets."""
    folders = [conf_dir() / group, *([own / group] if own is not None else [])]
    names = {path.stem for folder in folders for path in folder.glob("*.yaml")}
    return sorted(names | set(registered_names() if group == "attention" else ()))


def read_preset(group: str, name: object, own: Path | None = None, *, word: str | None = None) -> Preset:
    """Read a preset of a group by its name, from the package or else from the user's folder; refuse unknown names.

    `own` is the user's folder of presets; `word` is the word that named the preset, for errors.
    """
    file = f"{group}/{name}.yaml"
    is_name = isinstance(name, str) and NAME.fullmatch(name) is not None
    if is_name and (conf_dir() / file).is_file():
        return _read_packaged(file)
    if is_name and own is not None and (own / file).is_file():
        return _read(own / file, group, is_own=True)
    if is_name and group == "attention" and (mechanism := registered_mechanism(str(name))) is not None:
        options = {"name": name, **asdict(mechanism.Options())}
        return Preset({group: options}, {}, options, is_global=False, is_own=True)
    known = preset_names(group, own)
    remedy = f"{did_you_mean(name, known)}choose one, or leave {group}=... out"
    found = word or f"{group}={'null' if name is None else name}"
    raise InputError(found, f"a preset of '{group}' ({', '.join(known)})", remedy)


@cache
def _read_packaged(file: str) -> Preset:
    return _read(conf_dir() / file, file.partition("/")[0], is_own=False)


def _read(path: Path, group: str, *, is_own: bool) -> Preset:
    """Read the file of a preset; refuse one that is not made of plain values."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            is_global = GLOBAL.match(file.readline().rstrip()) is not None
        content = read_yaml_file(path)
        content = {} if content is None else content
        if not isinstance(content, dict) or any(not isinstance(key, str) for key in content):
            raise ValueError("no mapping of names to values")
        chooses = _choices(content.get("defaults", []))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be used ({error})", EXPECTED, "correct it") from error
    options = {key: value for key, value in content.items() if key != "defaults"}
    values = options if is_global else {group: options}
    return Preset(values, chooses, content, is_global, is_own)


def _choices(defaults: Any) -> dict[str, str]:
    """Return the presets of other groups that the `defaults` of a preset choose: group -> name."""
    chooses = {}
    for entry in defaults if isinstance(defaults, list) else [defaults]:
        if entry == "_self_":
            continue
        word, name = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (entry, None)
        group = re.fullmatch(r"override /(\w+)", str(word))
        if group is None or not isinstance(name, str) or NAME.fullmatch(name) is None:
            raise ValueError(f"'{entry}' among its defaults, not '_self_' or such as 'override /head: mean'")
        chooses[group[1]] = name
    return chooses


def require_mechanism(name: object) -> None:
    """Refuse a name of no mechanism of attention, which a preset of the user may have."""
    packaged = {path.stem for path in (conf_dir() / "attention").glob("*.yaml")}
    if not isinstance(name, str) or (name not in packaged and registered_mechanism(name) is None):
        expected = f"one of {', '.join(sorted(packaged | set(registered_names())))}"
        raise InputError(f"a preset with the mechanism {name}", expected, "correct its name")


def chosen_presets(step: str, choices: Mapping[str, Any], own: Path | None = None) -> dict[str, Preset]:
    """Return the preset of each group of a step, in the order in which they apply; a group may have none.

    `choices` are those of the user (group -> name), `own` is the user's folder of presets.
    """
    chosen = dict(choices)
    presets = {}
    groups = preset_groups(step)
    for group, default in reversed(groups.items()):  # later groups first, as they may choose presets of earlier ones
        name = chosen.setdefault(group, default)
        if name is None and default is None:
            continue
        presets[group] = read_preset(group, name, own)
        for other, theirs in presets[group].chooses.items():
            if other in presets or other not in groups:
                found = f"the preset {group}={name}, which chooses {other}={theirs}"
                raise InputError(found, f"presets of groups that come before '{group}'", "leave it out")
            chosen.setdefault(other, theirs)
    return {group: presets[group] for group in groups if group in presets}


def merge(tree: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Put nested values into a tree, in place; lists and plain values replace those of the tree."""
    for name, value in values.items():
        if isinstance(value, dict) and isinstance(tree.get(name), dict):
            merge(tree[name], value)
        else:
            tree[name] = dict(value) if isinstance(value, dict) else value
