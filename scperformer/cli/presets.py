"""Presets: YAML files with options, by group; in conf/ of the package, or a user's own in `--config-dir`.

A preset of a group sets options of this group or, below a first line `# @package _global_`, of any group; its
`defaults` may choose presets of other groups (`- override /head: mean`). Hydra reads the presets
of the package itself. A preset of a user may come from anywhere, so it is read here as plain values, which set options
of scperformer and nothing else, and is given to Hydra.
"""

import re
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean
from scperformer.base.yaml_files import read_yaml_file
from scperformer.cli.steps import SCHEMAS
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
def preset_groups(step: str) -> tuple[str, ...]:
    """Return the groups of presets that a step has, in the order in which Hydra applies them."""
    entries = read_yaml_file(conf_dir() / f"{step}.yaml")["defaults"]
    return tuple(group for entry in entries if isinstance(entry, dict) for group in entry)


def preset_names(group: str, own: Path | None = None) -> list[str]:
    """Return the names of the presets of a group, sorted; `own` is the user's folder of presets."""
    folders = [conf_dir() / group, *([own / group] if own is not None else [])]
    names = {path.stem for folder in folders for path in folder.glob("*.yaml")}
    return sorted(names | set(registered_names() if group == "attention" else ()))


def give_to_hydra(step: str, group: str, name: object, own: Path | None, within: tuple[str, ...] = ()) -> None:
    """Register a user's preset, and presets that it chooses, with Hydra; `within` are the groups that led to it."""
    from hydra.core.config_store import ConfigStore

    file = f"{group}/{name}.yaml"
    is_name = isinstance(name, str) and NAME.fullmatch(name) is not None
    if is_name and (conf_dir() / file).is_file():
        return
    if is_name and own is not None and (own / file).is_file():
        content, chosen, package = _read(own / file, step, group)
        ConfigStore.instance().store(group=group, name=str(name), node=content, package=package)
        for other, theirs in chosen.items():
            if other in (*within, group):
                found = f"the preset {group}={name}, which chooses {other}={theirs}"
                raise InputError(
                    "preset-conflict", found, "presets of groups that have not been chosen yet", "leave that line out"
                )
            give_to_hydra(step, other, theirs, own, (*within, group))
    elif is_name and group == "attention" and (mechanism := registered_mechanism(str(name))) is not None:
        options = {"name": name, **asdict(mechanism.Options())}
        ConfigStore.instance().store(group=group, name=str(name), node=options, package=group)
    else:
        known = preset_names(group, own)
        remedy = f"{did_you_mean(name, known)}choose one, or leave {group}=... out"
        found = f"{group}={'null' if name is None else name}"
        raise InputError("unknown-preset", found, f"a preset of '{group}' ({', '.join(known)})", remedy)


def _read(path: Path, step: str, group: str) -> tuple[dict[str, Any], dict[str, str], str]:
    """Return the content of a user's preset, the presets that it chooses by group, and the package of its options."""
    try:
        content = read_yaml_file(path) or {}
        text = path.read_text(encoding="utf-8-sig")
        if "${" in text:
            raise ValueError("'${', which OmegaConf would replace")
        package = "_global_" if GLOBAL.match(text.partition("\n")[0].rstrip()) else group
        if not isinstance(content, dict):
            raise ValueError("no mapping of names to values")
        known = {entry.name for entry in fields(SCHEMAS[step])} - {"attention"}  # which only its own presets set
        if package == "_global_" and (unknown := [name for name in content if name not in {*known, "defaults"}]):
            raise ValueError(f"'{unknown[0]}', which is no option")
        chosen = {}
        defaults = content.get("defaults", [])
        for entry in defaults if isinstance(defaults, list) else [defaults]:
            word, name = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (entry, None)
            other = re.fullmatch(r"override /(\w+)", str(word))
            is_name = isinstance(name, str) and NAME.fullmatch(name) is not None
            if other is not None and other[1] in preset_groups(step) and is_name:
                chosen[other[1]] = str(name)
            elif entry != "_self_":
                raise ValueError(f"'{entry}' among its defaults, not '_self_' or such as 'override /head: mean'")
    except (OSError, ValueError) as error:
        raise InputError("bad-preset", f"{path} cannot be used ({error})", EXPECTED, "correct it") from error
    if package == "attention" and content.get("name") not in preset_names(group):
        expected = f"one of {', '.join(preset_names(group))}"
        raise InputError(
            "unknown-mechanism", f"a preset with the mechanism {content.get('name')}", expected, "correct its name"
        )
    return content, chosen, package
