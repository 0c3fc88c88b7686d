"""The only place that knows Hydra: YAML files and overrides in, plain checked dataclasses out."""

import re
import time
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, QuotedString
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from scperformer.config.steps import STEPS
from scperformer.errors import InputError

OVERRIDE_ERRORS = (HydraException, OmegaConfBaseException)


def conf_dir() -> Path:
    """The folder of YAML files: inside an installed package, beside it in a source checkout."""
    package = Path(__file__).parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


def group_names() -> list[str]:
    """The config groups, such as `model`: the folders of YAML files."""
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())


def require_choices(overrides: Sequence[str]) -> None:
    """Refuse `model=null`, `model=5` and the like: the choice of a group is the name of a preset.

    Hydra answers them with a plain ValueError, which cannot be told from a failure of the step itself.

    Raises
    ------
    InputError
        Names the group and its presets.
    """
    groups = group_names()
    words = [word for word in overrides if word.lstrip("+").partition("=")[0] in groups and "=" in word]
    for override in OverridesParser.create().parse_overrides(words):
        group, value = override.key_or_group, override.value()
        choices = value.list if isinstance(value, ChoiceSweep) else [value]
        if any(not isinstance(choice, (str, QuotedString, list)) or choice == "" for choice in choices):
            presets = ", ".join(sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")))
            expected = f"a preset of the group '{group}' ({presets})"
            raise InputError(str(override.input_line), expected, f"choose one, or leave {group}=... out")


@cache
def register_schemas() -> None:
    """Tell Hydra the dataclass of each step, so that unknown keys and wrong types are refused."""
    for step, schema in STEPS.items():
        ConfigStore.instance().store(name=f"{step}_schema", node=schema)


def composed(step: str, overrides: Sequence[str] = ()) -> DictConfig:
    """The composed configuration of a step as Hydra sees it.

    Raises
    ------
    InputError
        An override names an unknown key or group choice, or a value of the wrong type.
    """
    register_schemas()
    try:
        require_choices(overrides)
        with initialize_config_dir(str(conf_dir()), job_name=step, version_base="1.3"):
            return compose(step, list(overrides))
    except OVERRIDE_ERRORS as error:
        raise override_error(error, step, overrides) from error


def to_config(cfg: DictConfig, step: str) -> Any:
    """The checked dataclass of a step (`STEPS[step]`) from a composed configuration.

    Raises
    ------
    InputError
        A required option is missing, of the wrong type or out of range.
    """
    try:
        missing = sorted(OmegaConf.missing_keys(cfg))
        if missing:
            raise InputError(
                f"no {missing[0]}", f"a value for {missing[0]}", f"add {missing[0]}=... to 'scperformer {step}'"
            )
        config = OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        raise override_error(error, step, []) from error
    _require_known(config, step)
    return config


def _require_known(config: Any, step: str, prefix: str = "") -> None:
    """Refuse what '+option=value' added: Hydra puts it into the dataclass whether it has such a field or not."""
    known = {field.name for field in fields(config)}
    for name, value in vars(config).items():
        if name not in known:
            remedy = f"'scperformer {step} --cfg job' lists the options"
            raise InputError(f"option {prefix}{name}", f"an option of '{step}'", remedy)
        if is_dataclass(value):
            _require_known(value, step, f"{prefix}{name}.")


def make_config(step: str, overrides: Sequence[str] = ()) -> Any:
    """`STEPS[step]` from Hydra overrides such as `["label_key=cell_type", "model=tiny"]`.

    Raises
    ------
    InputError
        An override is unknown, of the wrong type or out of range, or a required one is missing.
    """
    return to_config(composed(step, overrides), step)


def resolved_text(step: str, overrides: Sequence[str] = ()) -> str:
    """The composed configuration as YAML text: changes when, and only when, the step's options change."""
    return OmegaConf.to_yaml(composed(step, overrides), sort_keys=True)


def yaml_text(options: dict[str, Any]) -> str:
    """Options as YAML text, in the order they have."""
    return OmegaConf.to_yaml(OmegaConf.create({"options": options}).options)


def sweep_folder(overrides: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder of a sweep, named after the time unless the user has chosen one, and the overrides with it."""
    option = "hydra.sweep.dir="
    for word in overrides:
        if word.startswith(option):
            return Path(word.removeprefix(option).strip("'\"")), list(overrides)
    folder = Path("multirun") / time.strftime("%Y-%m-%d_%H-%M-%S")
    return folder, [f"{option}{folder}", *overrides]


def sweep_job() -> tuple[Path, list[str]]:
    """Return the folder and the overrides of the job of a sweep (`-m`) in which this is called."""
    job = HydraConfig.get()
    return Path(job.runtime.output_dir), list(job.overrides.task)


def quoted(value: str) -> str:
    """A path as a Hydra value, whatever characters it holds."""
    # '${' would interpolate: it is escaped, and so are backslashes before it.
    value = re.sub(r"(\\*)\$\{", r"\1\1\\${", value)
    # In Hydra's quoted strings backslashes are literal, but for those right before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value)
    return f"'{escaped}'"


def override_error(error: Exception, step: str, overrides: Sequence[str]) -> InputError:
    """Hydra's explanation of a bad override as one line with a remedy."""
    unknown = re.search(r"Could not override '(\w+)\.(\w+)'", str(error))
    if unknown and unknown[1] in group_names():
        return unknown_option(unknown[1], unknown[2], step, overrides)
    text = f"{error}\n{error.__cause__ or ''}".partition("Config search path")[0]
    text = re.sub(r":\n\t", ": ", text).replace("\n\t", ", ")  # the list of available options
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if isinstance(error, OverrideParseException):
        lines.insert(0, error.override)
    # Hydra advises '+option' to add what does not exist: here that would only be refused one step later.
    noise = ("To append to your ", "See https", "object_type", "reference_type", "full_key", "^")
    found = "; ".join(dict.fromkeys(line.rstrip(".;:") for line in lines if not line.startswith(noise)))
    remedy = f"'scperformer {step} --cfg job' lists the options and 'scperformer {step} --help' shows examples"
    options = {field.name for field in fields(STEPS[step])}
    if "'model'" in found and "model_path" in options and "model" not in options:
        remedy = f"name a trained model with model_path=FOLDER; {remedy}"
    return InputError(found, f"an option of '{step}' and a value it can take", remedy)


def unknown_option(group: str, name: str, step: str, overrides: Sequence[str]) -> InputError:
    """The refusal of an option that its group does not have, with those it has (Hydra would not say)."""
    words = (word.partition(",")[0] for word in overrides)  # of a sweep, the first run
    choices = [word for word in words if word.partition("=")[0] in group_names()]
    known = ", ".join(f"{group}.{option}" for option in composed(step, choices)[group])
    return InputError(f"option {group}.{name}", f"one of {known}", f"'scperformer {step} --cfg job' lists all options")
