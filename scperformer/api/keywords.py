"""From the keywords of a function to the options of a step."""

import inspect
import os
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from anndata import AnnData

from scperformer.base.errors import InputError
from scperformer.cli.compose import config_from
from scperformer.cli.option_texts import closest_option, option_texts

if TYPE_CHECKING:  # it imports torch
    from scperformer.model.load import Model

File = str | os.PathLike[str]
Options = Mapping[str, Any]
CELL_SOURCES = (str, os.PathLike, AnnData)  # of cells
Function = TypeVar("Function", bound=Callable[..., Any])


def step(name: str) -> Callable[[Function], Function]:
    """Make a function of Python of a step.

    Its docstring gets the meaning of each keyword that is an option of the step, from the dataclass of the step. A call
    shows its progress, and refuses keywords that the function does not have, with the one that was meant.
    """

    def decorate(function: Function) -> Function:
        known = list(inspect.signature(function).parameters)
        function.__doc__ = with_options(function.__doc__ or "", known, name)

        @wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            for word in named.keys() - known:
                near = next(iter(get_close_matches(word, known, 1, 0.75)), "")
                option = closest_option(word, name)
                remedy = f"'scperformer {name} --help' lists the options"
                if near:
                    remedy = f"did you mean {near}? help(scperformer.{function.__name__}) shows all of them"
                elif option:
                    remedy = f"write options={{'{option}': ...}}"
                raise InputError(f"keyword {word} of {function.__name__}", f"one of {', '.join(known)}", remedy)
            return function(*given, **named)

        return call  # type: ignore[return-value]

    return decorate


def with_options(text: str, keywords: Sequence[str], step: str) -> str:
    """Return a docstring with the meaning of each keyword that is an option of a step, before that of `options`."""
    meanings = {option.name: option.meaning for option in [*option_texts(step), *option_texts("files")]}
    entries = ""
    for name in keywords:
        if name in meanings and f"\n    {name}\n" not in text:
            meaning = re.sub(r"\bnull\b", "None", meanings[name])
            lines = textwrap.wrap(f"{meaning[0].upper()}{meaning[1:]}.", 112)
            entries += f"    {name}\n" + "".join(f"        {line}\n" for line in lines)
    before, marker, after = text.partition("    options\n")
    return f"{before}{entries}{marker}{after}"


def config_of(step: str, options: Options | None, **named: Any) -> Any:
    """Make the options of a step; None stands for the default of the step, which presets may change.

    A class as `attention` is registered, and chosen by its name.
    """
    given = {name: value for name, value in named.items() if value is not None}
    if options is not None and not isinstance(options, Mapping):
        raise InputError(f"options={options!r}", "a mapping", "write options={'trainer.max_epochs': 5}")
    given |= dict(options or {})
    if isinstance(mechanism := given.get("attention"), type):
        from scperformer.attention.registry import register_attention  # imports torch

        given["attention"] = register_attention(mechanism).__name__.lower()
    return config_from(step, given)


def listed(cells: Any, *, several: bool = True, in_memory: bool = False) -> list[File | AnnData]:
    """Return the cells that a function was given as a list of files, or of the AnnData; refuse anything else at once.

    Parameters
    ----------
    several
        More than one file may be given.
    in_memory
        More than one AnnData may be given, too.

    Raises
    ------
    InputError
        Tables, matrices and other objects; the remedy says how to make an AnnData of them.
    """
    if isinstance(cells, CELL_SOURCES):
        return [cells]
    expected = "an AnnData, a file or a list of files" if several else "an AnnData or a file"
    if not several or getattr(cells, "ndim", 1) != 1 or isinstance(cells, Mapping) or not isinstance(cells, Iterable):
        raise InputError(f"cells of type {type(cells).__name__}", expected, _remedy(cells))
    found: list[File | AnnData] = list(cells)
    for one in found:
        if not isinstance(one, CELL_SOURCES):
            raise InputError(f"a {type(one).__name__} in a list of cells", expected, _remedy(one))
    if not in_memory and any(isinstance(one, AnnData) for one in found):
        remedy = "call the function for each of them, or put them together with anndata.concat"
        raise InputError("a list with an AnnData in it", "one AnnData, or a list of files", remedy)
    return found


def _remedy(cells: Any) -> str:
    """Return how to make an AnnData of an object."""
    if isinstance(getattr(cells, "mod", None), Mapping):  # MuData; of tables it is the modulo
        return "give the modality with the RNA alone, mdata.mod['rna']"
    if hasattr(cells, "columns"):
        return "make an AnnData of it, anndata.AnnData(table), with cells in rows and genes in columns"
    if hasattr(cells, "ndim"):
        genes = "var=pandas.DataFrame(index=genes)"
        return f"make an AnnData of it, anndata.AnnData(matrix, {genes}), with cells in rows"
    return "give an AnnData, or names of files"


def paths_of(cells: Any, *, several: bool = True, in_memory: bool = False) -> list[str]:
    """Return the names of files; a place holder stands for cells in memory. Arguments and errors as `listed`."""
    found = listed(cells, several=several, in_memory=in_memory)
    return ["AnnData" if isinstance(one, AnnData) else os.fspath(one) for one in found]


def path_of(model: "Model | File | None") -> str | None:
    """Return the folder or the name of a model, for options."""
    if model is None or isinstance(model, str | os.PathLike):
        return None if model is None else os.fspath(model)
    return str(model.path)


def loaded(model: "Model | File | None", cfg: Any) -> "Model":
    """Return the model, or load the one that the options name."""
    from scperformer.model.load import Model, load_model

    if model is not None and cfg.model_path != path_of(model):
        raise InputError(f"a model and model_path={cfg.model_path}", "one of them", "leave the other out")
    return model if isinstance(model, Model) else load_model(cfg.model_path)


def required_output(cfg: Any, expected: str = "a folder to write") -> Path:
    """Return the output for cells in memory, which have no place of their own."""
    if cfg.output is None:
        raise InputError("no output beside cells in memory", expected, "add output=...")
    return Path(cfg.output)
