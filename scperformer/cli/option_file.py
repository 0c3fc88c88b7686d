"""Options from a YAML file in the format of the workflow (config/config.yaml), for one step: `--config FILE`.

Such a file may come from anywhere. It can set the options of scperformer, and nothing else: `composed` refuses words
of Hydra, which can call any function.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean
from scperformer.base.yaml_files import read_yaml_file
from scperformer.cli.compose import composed, config_from, make_config
from scperformer.cli.overrides import option_word, option_words, without_interpolation
from scperformer.cli.steps import SCHEMAS
from scperformer.cli.workflow import WORKFLOW_DEFAULTS, WORKFLOW_KEYS, WORKFLOW_STEPS, WorkflowConfig

KEYS = (*WORKFLOW_KEYS, "overrides")
EXPECTED = "a YAML file like config/config.yaml, such as {label_key: cell_type, overrides: {train: {seed: 1}}}"


@contextmanager
def _placed(where: str) -> Iterator[None]:
    """Say in the error about an option in which file, or in which place of it, the option is."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error.found}", error.expected, error.remedy) from error


def _mapping(content: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    """Return the content of a file if it is a mapping with known keys; refuse anything else.

    `where` is the file and the place in it, for errors.
    """
    if not isinstance(content, dict):
        raise InputError(f"{where} is no mapping of names to values", EXPECTED, "see docs/workflow.md")
    for key in content:
        if key not in known:
            raise InputError(f"{where}: '{key}'", f"one of {', '.join(known)}", f"{did_you_mean(key, known)}rename it")
    return content


def words_from_file(content: Any, where: str) -> list[str]:
    """Return the options of a step in a file as words of its command, which `composed` has to check.

    Parameters
    ----------
    content
        A mapping of full names to values, or a list of words `option=value`.
    where
        The file and the place in it, for errors.
    """
    flat = isinstance(content, Mapping) and not any(isinstance(value, Mapping) for value in content.values())
    if not flat and not (isinstance(content, list) and all(isinstance(word, str) and "=" in word for word in content)):
        expected = "options by their names, such as {trainer.max_epochs: 30}, or a list such as [model=base]"
        raise InputError(where, expected, "see docs/workflow.md")
    for name, value in content.items() if flat else ():
        for item in value if isinstance(value, list) else [value]:
            if not isinstance(item, str | int | float | None):
                found = f"{where}: {name}, a value of type {type(item).__name__}"
                raise InputError(found, "a text, a number, true, false, null, or a list of them", "correct it")
    with _placed(where):
        return option_words(content) if flat else [without_interpolation(word) for word in content]


def _checked(content: Any, where: str, steps: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the content of a file with keys of the workflow, and its `overrides`, the options of each of `steps`."""
    content = _mapping(content or {}, where, KEYS)
    return content, _mapping(content.get("overrides") or {}, f"{where}: overrides", steps)


def workflow_options(content: Any, where: str = "configuration") -> tuple[WorkflowConfig, dict[str, list[str]]]:
    """Return the configuration of the workflow, and the options of each of its steps as words of the command.

    Keys that are missing or null have their defaults.

    Raises
    ------
    InputError
        A key, a step, an option or a value is wrong.
    """
    content, named = _checked(content, where, WORKFLOW_STEPS)
    given = {key: value for key, value in content.items() if value is not None and key != "overrides"}
    cfg = config_from("workflow", WORKFLOW_DEFAULTS | given)
    words = {}
    for step in WORKFLOW_STEPS:
        place = f"overrides: {step}"
        words[step] = words_from_file(named.get(step) or {}, place)
        required = {"train": option_word("label_key", cfg.label_key), "evaluate": "truth_key=a"}
        with _placed(place):
            make_config(step, ["inputs=[a]", *filter(None, [required.get(step)]), *words[step]])
    return cfg, words


def read_options(path: str, step: str) -> tuple[list[str], list[str]]:
    """Return the options of a step in a file as words of its command, and its input files.

    The only inputs are those of `reference`, for `train`. `label_key` is for `train`, unless `overrides` has
    `label_keys`, and `model_path` is for the steps that have this option; options under `overrides` take precedence.

    Raises
    ------
    InputError
        The file cannot be read, or a key, a step, an option or the kind of a value is wrong.
    """
    try:
        content = read_yaml_file(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error})", EXPECTED, "check its path and its content") from error
    content, named = _checked(content, path, tuple(SCHEMAS))
    place = f"{path}: overrides: {step}"
    words = words_from_file(named.get(step) or {}, place)
    with _placed(place):
        composed(step, words)
    given = {word.partition("=")[0] for word in words}
    known = {option.name for option in fields(SCHEMAS[step])}
    if step == "train" and content.get("label_key") and not given & {"label_key", "label_keys"}:
        words = [option_word("label_key", content["label_key"]), *words]
    if content.get("model_path") and "model_path" in known - given:
        words = [option_word("model_path", content["model_path"]), *words]
    reference = content.get("reference") if step == "train" else None
    references = reference if isinstance(reference, list) else [reference]
    return words, [str(path) for path in references if path]
