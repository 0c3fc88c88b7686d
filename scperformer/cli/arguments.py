"""The words of a command line, sorted into input files, options and flags before Hydra sees any; options as words."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scperformer.base.errors import InputError
from scperformer.cli.help import FIRST_WORDS, closest_option, text_options

OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w./@-]*=|~[A-Za-z_]")  # option=value, +option=value, ~option
FLAGS = {"--cfg": "job", "--config-dir": "FOLDER"}  # as in Hydra; the value after each
PLUGIN = "--plugin"  # before the step alone, so that no file in a list of words, as of a workflow, can take its place
ESTIMATE = "--estimate"  # of `train`
UNLOCK = "--unlock"  # of the workflow: snakemake recommends it
CONFIG = "--config"  # of the workflow: the word after it is its YAML file
NOT_TEXT = ("true", "false", "null", "nan", "inf")  # in any case: words that Hydra does not read as text


def without_interpolation(text: str) -> str:
    """Return a text in which OmegaConf replaces nothing: '${' is escaped, and so are backslashes before it."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def quoted(value: str) -> str:
    """Return a text as a Hydra value, whatever characters it holds."""
    if "\0" in value:
        raise InputError("null-character", f"a null character in '{value}'", "text", "remove it")
    # In Hydra's quoted strings backslashes are literal, except for those right before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), without_interpolation(value))
    return f"'{escaped}'"


def _value(value: Any) -> str:
    """Return a text, a number, true, false or null as a Hydra value."""
    if isinstance(value, str | os.PathLike):
        return quoted(os.fspath(value))
    return json.dumps(value, default=_scalar)


def _scalar(value: Any) -> Any:
    """Return a scalar of NumPy, which json does not know, as one of Python."""
    scalar = value.item() if type(value).__module__ == "numpy" else None
    if isinstance(scalar, bool | int | float | str):
        return scalar
    expected = "a text, a number, true, false or None, or a list of these"
    raise InputError("option-type", f"an option of the type {type(value).__name__}", expected, "convert it")


def option_word(name: str, value: Any) -> str:
    """Write `name=value` as one word of a command, whatever characters the value or values hold."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple | set | frozenset):
        return f"{name}=[{','.join(map(_value, value))}]"
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    plain = re.fullmatch(r"[A-Za-z_][a-zA-Z0-9_./-]*", text) and text.lower() not in NOT_TEXT
    return f"{name}={text if plain else _value(value)}"


def option_words(options: Mapping[str, Any]) -> list[str]:
    """Return options (full names -> values) as words of a command; refuse nested ones, and names that are no text."""
    for name, value in options.items():
        if not isinstance(name, str):
            raise InputError("option-name", f"option {name!r}", "the name of an option", "write it as a text")
        if isinstance(value, Mapping):
            remedy = f"write {{'{name}.{next(iter(value), 'NAME')}': ...}}"
            raise InputError(
                "option-name", f"options inside of the option {name}", "the full name of each option", remedy
            )
    return [option_word(name, value) for name, value in options.items()]


def sort_words(words: list[str], step: str, *, several: bool = False) -> tuple[list[str], dict[str, str]]:
    """Turn the words after the step, given in any order, into words in Hydra's grammar, and flags with their values.

    Plain words are input files, whatever characters they hold; in some steps the first of them sets an option. The
    values of options that take any text are quoted, unless they are empty, null or already quoted. If options
    have `several` values (`bench`) they are not, because commas separate these. Returns the options as `option=value`,
    with the files as `inputs=[...]` at the end; and the flags, each with its value.
    """
    options: list[str] = []
    files: list[str] = []
    flags: dict[str, str] = {}
    of_snakemake: list[str] = []
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if step == "workflow" and word in ("--", UNLOCK):  # all words after -- are for snakemake
            of_snakemake += rest if word == "--" else [word]
            options.append(option_word("snakemake", of_snakemake))
        elif word == CONFIG and step == "workflow":  # snakemake reads the file
            options.append(option_word("configfile", _value_of(word, "FILE", rest)))
        elif word == ESTIMATE and step == "train":
            flags[word] = ""
        elif word in FLAGS:
            flags[word] = _value_of(word, FLAGS[word], rest)
        elif word.startswith("-"):
            option = closest_option(word, step)
            remedy = f"write {option}=VALUE" if option else "write a file name that starts with '-' as ./-name"
            if word in ("-m", "--multirun"):
                remedy = "train for each combination of values by 'scperformer bench'"
            if step == "workflow":
                remedy = f"write words for snakemake at the end, after --: scperformer workflow ... -- {word}"
            if word == PLUGIN:
                remedy = f"write it before the step: scperformer --plugin FILE {step} ..."
            raise InputError("bad-argument", f"'{word}'", "a file, option=value, --help or --cfg job", remedy)
        # A file name may look like an option. Path.exists would raise an error for a value too long for a file name.
        elif not OVERRIDE.match(word) or os.path.exists(word):
            files.append(word)
        elif name in text_options(step) and value not in ("", "null") and value[0] not in "'\"" and not several:
            options.append(f"{name}={quoted(value)}")
        else:
            options.append(word)
    first = FIRST_WORDS.get(step)
    if first is not None and files and not any(word.startswith(f"{first}=") for word in options):
        options.append(f"{first}={quoted(files.pop(0))}")
    return [*options, *([f"inputs=[{','.join(map(quoted, files))}]"] if files else [])], flags


def _value_of(flag: str, placeholder: str, rest: Iterator[str]) -> str:
    """Take the value of a flag from `rest`."""
    value = next(rest, "")
    if not value or (flag == "--cfg" and value not in ("job", "hydra", "all")):
        raise InputError(
            "flag-value", f"{flag} {value}".rstrip(), f"{flag} {placeholder}", "add the value that it takes"
        )
    return value


def plugin_words(files: list[str]) -> list[str]:
    """Return the words that name files with mechanisms, before the step."""
    return [word for file in files for word in (PLUGIN, file)]


def own_presets(flags: dict[str, str]) -> Path | None:
    """Return the user's folder of presets (--config-dir), or None; refuse a folder that does not exist."""
    folder = flags.get("--config-dir")
    if folder is not None and not Path(folder).is_dir():
        raise InputError(
            "no-preset-folder",
            f"no folder {folder}",
            "a folder of presets, as in docs/configuration.md",
            "check its path",
        )
    return None if folder is None else Path(folder)
