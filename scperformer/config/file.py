"""Options from a YAML file in the format of the workflow (workflows/config.yaml), for one step: `--config FILE`."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from scperformer.config.compose import option_words
from scperformer.config.steps import SCHEMAS
from scperformer.errors import InputError
from scperformer.text import did_you_mean

KEYS = ("reference", "samples", "label_key", "model_path", "outdir", "predict_jobs", "gpu", "container", "overrides")
EXPECTED = "a YAML file like workflows/config.yaml, such as {label_key: cell_type, overrides: {train: {seed: 1}}}"


def _mapping(content: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    """Return a mapping of the file; refuse anything else, and keys that are not known."""
    if not isinstance(content, dict):
        raise InputError(f"{where} is no mapping of names to values", EXPECTED, "see docs/workflow.md")
    for key in content:
        if key not in known:
            raise InputError(f"{where}: '{key}'", f"one of {', '.join(known)}", f"{did_you_mean(key, known)}rename it")
    return content


def read_options(path: str, step: str) -> tuple[list[str], list[str]]:
    """Return the options of a step in a file as words of its command, and its input file, the `reference` of `train`.

    `label_key` is for `train`, and `model_path` for the steps that have this option; options under `overrides` go
    before both.

    Raises
    ------
    InputError
        The file cannot be read, or a key, a step or the kind of a value is wrong.
    """
    import yaml

    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read ({error})", EXPECTED, "check its path and its content") from error
    content = _mapping(content or {}, path, KEYS)
    named = _mapping(content.get("overrides") or {}, f"{path}: overrides", tuple(SCHEMAS))
    options = named.get(step) or {}
    if isinstance(options, list) and all(isinstance(word, str) and "=" in word for word in options):
        options = dict(word.split("=", 1) for word in options)
        words = {name: f"{name}={value}" for name, value in options.items()}
    elif isinstance(options, dict) and not any(isinstance(value, dict) for value in options.values()):
        words = dict(zip(options, option_words(options), strict=True))
    else:
        expected = "options by their names, such as {trainer.max_epochs: 30}, or a list such as [model=base]"
        raise InputError(f"{path}: overrides: {step}", expected, "see docs/workflow.md")
    if step == "train" and content.get("label_key") and "label_keys" not in options:
        words = {"label_key": option_words({"label_key": content["label_key"]})[0]} | words
    if content.get("model_path") and "model_path" in {option.name for option in fields(SCHEMAS[step])}:
        words = {"model_path": option_words({"model_path": content["model_path"]})[0]} | words
    reference = [str(content["reference"])] if step == "train" and content.get("reference") else []
    return list(words.values()), reference
