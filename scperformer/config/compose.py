"""Turn YAML files and overrides into checked dataclasses, with Hydra, which no other file uses.

Hydra is imported where it is used: it takes a third of a second, which `--help` does not need.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scperformer.config.options import meant
from scperformer.config.steps import SCHEMAS
from scperformer.errors import InputError
from scperformer.text import did_you_mean

if TYPE_CHECKING:
    from omegaconf import DictConfig


@cache
def conf_dir() -> Path:
    """Return the folder of YAML files: inside an installed package, beside it in a source checkout."""
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


NOT_TEXT = ("true", "false", "null", "nan", "inf")  # words that Hydra takes for other values


def quoted(value: str) -> str:
    """Return a text as a Hydra value, whatever characters it holds."""
    # '${' would interpolate: it is escaped, and so are backslashes before it.
    value = re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    # In Hydra's quoted strings backslashes are literal, except for those right before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{escaped}'"


def _plain(value: Any) -> str:
    """Return a number, true, false or null as a Hydra value."""
    return json.dumps(value, default=lambda scalar: scalar.item())  # of NumPy


def option_word(name: str, value: Any) -> str:
    """Write `name=value` as one word of a command, whatever characters the value or values hold."""
    if isinstance(value, list | tuple | set | frozenset):
        items = (quoted(os.fspath(item)) if isinstance(item, str | os.PathLike) else _plain(item) for item in value)
        return f"{name}=[{','.join(items)}]"
    if not isinstance(value, str | os.PathLike):  # a number, true, false or null
        return f"{name}={_plain(value)}"
    text = os.fspath(value)
    plain = re.fullmatch(r"[A-Za-z_][a-zA-Z0-9_./-]*", text) and text.lower() not in NOT_TEXT
    return f"{name}={text if plain else quoted(text)}"


def option_words(options: Mapping[str, Any] | list[str]) -> list[str]:
    """Return options as words of a command, from a mapping of their full names to values or a list of such words."""
    if isinstance(options, list):
        return options
    for name, value in options.items():
        if isinstance(value, Mapping):
            remedy = f"write {{'{name}.{next(iter(value), 'NAME')}': ...}}"
            raise InputError(f"options inside of the option {name}", "the full name of each option", remedy)
    return [option_word(name, value) for name, value in options.items()]


def _did_you_mean(unknown: re.Match, step: str) -> str:
    near = meant(".".join(unknown.groups()), step)
    return f"did you mean {near}? " if near else ""


def _override_error(error: Exception, step: str, overrides: Sequence[str]) -> InputError:
    """Return Hydra's explanation of a bad override as one line with a remedy."""
    remedy = f"'scperformer {step} --help' lists the options"
    groups = {path.name for path in conf_dir().iterdir() if path.is_dir()}
    unknown = re.search(r"Could not override '(\w+)\.(\w+)'", str(error))
    if unknown and unknown[1] in groups:  # Hydra does not list the options of the group
        first = (word.partition(",")[0] for word in overrides)  # of a sweep, the first run
        choices = [word for word in first if word.partition("=")[0] in groups]
        known = ", ".join(f"{unknown[1]}.{name}" for name in composed(step, choices)[unknown[1]])
        return InputError(f"option {unknown[1]}.{unknown[2]}", f"one of {known}", _did_you_mean(unknown, step) + remedy)
    unknown = re.search(r"Could not override '([^'.]+)'", str(error))
    if unknown and "Config'" in str(error.__cause__ or error):
        return InputError(f"option {unknown[1]}", f"an option of '{step}'", _did_you_mean(unknown, step) + remedy)
    preset = re.search(r"Could not find '(\w+)/([^']+)'", str(error))
    if preset and preset[1] in groups:
        presets = re.findall(r"^\t(\w+)$", str(error), re.MULTILINE)
        near = did_you_mean(preset[2], presets)
        return InputError(
            f"{preset[1]}={preset[2]}", f"a preset of '{preset[1]}' ({', '.join(presets)})", near + remedy
        )
    several = re.search(r"Ambiguous value for argument '(([^=]+)=([^']*))'", str(error))
    if several:
        how = f"add -m to run the step once for each (a sweep), or write a list as {several[2]}=[{several[3]}]"
        return InputError(several[1], "one value", how)
    text = f"{error}\n{error.__cause__ or ''}".partition("Config search path")[0]
    text = re.sub(r":\n\t", ": ", text).replace("\n\t", ", ")  # the list of available options
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if hasattr(error, "override"):  # it cannot be parsed
        lines.insert(0, error.override)
    # Hydra advises '+option' to add what does not exist: here that would only be refused one step later.
    noise = ("To append to your ", "See https", "object_type", "reference_type", "full_key", "^")
    found = "; ".join(dict.fromkeys(line.rstrip(".;:") for line in lines if not line.startswith(noise)))
    options = {field.name for field in fields(SCHEMAS[step])}
    presets = [word for word in overrides if word.lstrip("+").startswith("model=")]
    if presets and "model_path" in options and "model" not in options:
        found = f"a preset of 'model' ({presets[0]})"  # Hydra may name another group, which the preset chooses
        remedy = f"name a trained model with model_path=FOLDER; {remedy}"
    return InputError(found, f"an option of '{step}' and a value it can take", remedy)


@cache  # storing takes longer than composing
def _store_schema(step: str) -> None:
    """Tell Hydra the dataclass of a step, so that it refuses unknown keys and wrong types."""
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name=f"{step}_schema", node=SCHEMAS[step])


def _require_presets(overrides: Sequence[str]) -> None:
    """Refuse `model=5`, `model=null` and the like: Hydra would not name the group, and a sweep would run before it."""
    groups = {path.name for path in conf_dir().iterdir() if path.is_dir()}
    for word in overrides:
        group = word.lstrip("+").partition("=")[0]
        if group in groups and re.search(r"[=,](null|[\d.]*)(,|$)", word):
            presets = ", ".join(sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")))
            raise InputError(word, f"a preset of '{group}' ({presets})", f"choose one, or leave {group}=... out")


def _with_plugin(overrides: Sequence[str]) -> list[str]:
    """Spell attention=MODULE:CLASS out for Hydra, which knows neither such presets nor the options of plug-ins."""
    from hydra.core.config_store import ConfigStore

    words = []
    for word in overrides:
        option, _, values = word.partition("=")
        if option == "attention" and "," in values:  # of a sweep: the plug-ins among them become presets
            for name in re.findall(r"[\w.]+:\w+", values):
                ConfigStore.instance().store(group="attention", name=name, node={"name": name})
        named = re.fullmatch(r"attention='?([\w.]+:\w+)'?", word)
        words += ["attention=plugin", f"attention.name='{named[1]}'"] if named else [word]
    if "attention=plugin" not in words:
        return words
    return [re.sub("^attention[.](?!name=)", "+attention.", word) for word in words]


@contextmanager
def _explained(step: str, overrides: Sequence[str]) -> Iterator[None]:
    """Check overrides before a block in which Hydra uses them, and turn its errors about them into one line."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    _store_schema(step)
    _require_presets(overrides)
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise _override_error(error, step, overrides) from error


def composed(step: str, overrides: Sequence[str] = ()) -> "DictConfig":
    """Return the composed configuration of a step as Hydra sees it."""
    import hydra

    with _explained(step, overrides), hydra.initialize_config_dir(str(conf_dir()), job_name=step, version_base="1.3"):
        return hydra.compose(step, _with_plugin(overrides))


def to_config(cfg: "DictConfig", step: str) -> Any:
    """Make the checked dataclass of a step (`SCHEMAS[step]`) from a composed configuration."""
    from omegaconf import OmegaConf

    with _explained(step, []):
        if step == "train" and cfg.label_keys and OmegaConf.is_missing(cfg, "label_key"):
            cfg.label_key = cfg.label_keys[-1]
        if missing := sorted(OmegaConf.missing_keys(cfg)):
            remedy = f"add {missing[0]}=... to 'scperformer {step}'"
            raise InputError(f"no {missing[0]}", f"a value for {missing[0]}", remedy)
        config: Any = OmegaConf.to_object(cfg)
    # Hydra puts the option of '+option=value' into a dataclass whether it has such a field or not.
    parts = {"": config} | {f"{name}.": part for name, part in vars(config).items() if is_dataclass(part)}
    for prefix, part in parts.items():
        for name in vars(part).keys() - {field.name for field in fields(part)}:
            remedy = f"'scperformer {step} --help' lists the options"
            raise InputError(f"option {prefix}{name}", f"an option of '{step}'", remedy)
    return config


def make_config(step: str, overrides: Sequence[str] = ()) -> Any:
    """Make `SCHEMAS[step]` from Hydra overrides such as `["label_key=cell_type", "model=tiny"]`, or refuse them."""
    return to_config(composed(step, overrides), step)


def resolved_text(step: str, overrides: Sequence[str] = ()) -> str:
    """Return the composed configuration as YAML text: it changes if, and only if, the options of the step change."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(composed(step, overrides), sort_keys=True)


def yaml_text(options: dict[str, Any]) -> str:
    """Return options as YAML text, in their order."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create({"options": options}).options)


@contextmanager
def command_line(program: str, *words: str) -> Iterator[None]:
    """Set `sys.argv` for a block, the only place that does so.

    Hydra reads its arguments from there, and Lightning starts the other processes of a ddp run from there.
    """
    before = sys.argv
    sys.argv = [program, *words]
    try:
        yield
    finally:
        sys.argv = before


def hand_to_hydra(step: str, words: list[str], task: Callable[["DictConfig"], None]) -> None:
    """Call a task with the composed configuration of a step; with -m once per job, where Hydra's launcher runs it.

    The words are overrides and flags of Hydra; with `--cfg` it prints the configuration and does not call the task.
    """
    import hydra

    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises errors instead of printing them
    words = _with_plugin(words)
    with _explained(step, words), command_line(sys.argv[0], *words):
        hydra.main(config_path=str(conf_dir()), config_name=step, version_base="1.3")(task)()


def sweep_job() -> tuple[Path, list[str]]:
    """Return the folder and the overrides of the job of a sweep (`-m`) in which this is called."""
    from hydra.core.hydra_config import HydraConfig

    job = HydraConfig.get()
    words = [word.replace("\\:", ":") if word.startswith("attention=") else word for word in job.overrides.task]
    return Path(job.runtime.output_dir), words  # Hydra escapes the colon of a plug-in
