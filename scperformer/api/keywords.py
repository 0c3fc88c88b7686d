"""From the keywords of a function to the options of a step."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from anndata import AnnData

from scperformer.config import config_from, meant
from scperformer.errors import InputError
from scperformer.progress import progress

if TYPE_CHECKING:  # it imports torch
    from scperformer.network import Model

File = str | os.PathLike[str]
Options = Mapping[str, Any]
Function = TypeVar("Function", bound=Callable[..., Any])


def step(name: str) -> Callable[[Function], Function]:
    """Show the progress of a function, and refuse keywords that it does not have, with the one that was meant."""

    def decorate(function: Function) -> Function:
        known = list(inspect.signature(function).parameters)

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            for word in named.keys() - known:
                near = next(iter(get_close_matches(word, known, 1, 0.75)), "")
                option = meant(word, name)
                remedy = f"'scperformer {name} --help' lists the options"
                if near:
                    remedy = f"did you mean {near}? help(scperformer.{function.__name__}) shows all of them"
                elif option:
                    remedy = f"write options={{'{option}': ...}}"
                raise InputError(f"keyword {word} of {function.__name__}", f"one of {', '.join(known)}", remedy)
            with progress(f"scperformer.{function.__name__}"):
                return function(*given, **named)

        return call  # type: ignore[return-value]

    return decorate


def config_of(step: str, options: Options | None, **named: Any) -> Any:
    """Make the options of a step; None stands for the default of the step, which presets may change."""
    given = {name: value for name, value in named.items() if value is not None}
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f"options={options!r}", "a mapping", "write options={'trainer.max_epochs': 5}")
    return config_from(step, given | dict(options or {}))


def paths_of(files: File | AnnData | Sequence[File | AnnData]) -> list[str]:
    """Return the names of files; a place holder stands for cells in memory."""
    several = [files] if isinstance(files, str | os.PathLike | AnnData) else list(files)
    return ["AnnData" if isinstance(one, AnnData) else os.fspath(one) for one in several]


def path_of(model: "Model | File | None") -> str | None:
    """Return the folder or the name of a model, for options."""
    if model is None or isinstance(model, str | os.PathLike):
        return None if model is None else os.fspath(model)
    return str(model.path)


def loaded(model: "Model | File | None", cfg: Any) -> "Model":
    """Return the model, or load the one that the options name."""
    from scperformer.network import Model, load_model

    if model is not None and cfg.model_path != path_of(model):
        raise InputError(f"a model and model_path={cfg.model_path}", "one of them", "leave the other out")
    return model if isinstance(model, Model) else load_model(cfg.model_path)


def required_output(cfg: Any) -> Path:
    """Return the output for cells in memory, which have no place of their own."""
    if cfg.output is None:
        raise InputError("no output beside cells in memory", "a folder to write", "add output=...")
    return Path(cfg.output)
