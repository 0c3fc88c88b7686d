"""The words of a command line, sorted into input files, options and flags; options as words."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from scperformer.base.errors import InputError
from scperformer.config.descriptions import closest_option, fields_of, word_instead
from scperformer.config.options import choices_of
from scperformer.config.steps import FIRST_WORDS, SCHEMAS

# option=value, +option=value, ~option
OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w./@-]*=|~[A-Za-z_]")
# a text without quotes
PLAIN = re.compile(r"(?!(?:true|false|null|nan|inf)$)[a-z_][a-z0-9_./-]*", re.IGNORECASE)
# of a user, which shells replace at the start of a word alone
HOME = re.compile(r"(?:^|(?<=[=,\[]))~[\w.-]*(?=/)")
CFG = "--cfg"  # as in Hydra; the word after it is `job`, or in a bench `hydra`
PRESETS = "--config-dir"  # as in Hydra; the word after it is the user's folder of presets
PLUGIN = "--plugin"  # before the step alone, so that no file in a list of words, as of a workflow, can take its place
ESTIMATE = "--estimate"  # of `train`
UNLOCK = "--unlock"  # of the workflow: snakemake recommends it
CONFIG = "--config"  # of the workflow: the word after it is its YAML file


def quoted(text: str) -> str:
    """Return a text as a value in Hydra's grammar, whatever characters it holds."""
    if "\0" in text:
        raise InputError("null-character", f"a null character in '{text}'", "text", "remove it")
    # In Hydra's quoted strings backslashes are literal, except for those right before a quote.
    escaped = re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + ("\\'" if match[2] else ""), text)
    return f"'{escaped}'"


def option_word(name: str, value: Any) -> str:
    """Write `name=value` as one word of a command, whatever characters the value or values hold."""
    if isinstance(value, list | tuple):
        return f"{name}=[{','.join(quoted(part) if isinstance(part, str) else json.dumps(part) for part in value)}]"
    if not isinstance(value, str):
        return f"{name}={json.dumps(value)}"
    return f"{name}={value if PLAIN.fullmatch(value) else quoted(value)}"


def _takes_any_text(name: str, step: str) -> bool:
    """Whether an option takes any text, such as the name of a file or a column."""
    entry, kind = fields_of(SCHEMAS[step]).get(name, (None, None))
    return (
        entry is not None
        and not choices_of(entry)
        and (kind is str or set(get_args(kind)) == {str, type(None)})
    )


def sort_words(
    words: list[str], step: str, *, several: bool = False
) -> tuple[list[str], dict[str, str]]:
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
        if not os.path.exists(word):
            word = HOME.sub(lambda home: os.path.expanduser(home[0]), word)
        name, _, value = word.partition("=")
        if step == "workflow" and word in ("--", UNLOCK):  # all words after -- are for snakemake
            of_snakemake += rest if word == "--" else [word]
        elif step == "workflow" and word == CONFIG:  # snakemake reads the file
            options.append(option_word("configfile", _value_of(word, "FILE", rest)))
        elif step == "train" and word == ESTIMATE and not several:
            flags[word] = ""
        elif word == CFG:
            flags[word] = _value_of(word, "hydra" if several else "job", rest)
        elif word == PRESETS:
            flags[word] = _value_of(word, "FOLDER", rest)
        elif word.startswith("-"):
            expected = "a file, option=value, --help or --cfg job"
            raise InputError("bad-argument", f"'{word}'", expected, _instead_of(word, step))
        elif word.startswith("=") and not os.path.exists(word):  # the shell splits at blanks
            name = files[-1] if files else "option"
            found = f"'{name} {word}'"
            raise InputError(
                "blank-in-option", found, "option=value", f"write {name}=VALUE without blanks"
            )
        # A file name may look like an option. Path.exists would raise an error for a value too long for a file name.
        elif not OVERRIDE.match(word) or os.path.exists(word):
            files.append(word)
        elif (
            not several
            and value not in ("", "null")
            and value[0] not in "'\""
            and _takes_any_text(name, step)
        ):
            options.append(f"{name}={quoted(value)}")
        else:
            options.append(word)
    first = FIRST_WORDS.get(step)
    if first is not None and files and not any(word.startswith(f"{first}=") for word in options):
        options.append(f"{first}={quoted(files.pop(0))}")
    lists = {"snakemake": of_snakemake, "inputs": files}
    return options + [option_word(name, values) for name, values in lists.items() if values], flags


def _instead_of(word: str, step: str) -> str:
    """Return what to write instead of a word with a dash that is no flag here."""
    if word == PLUGIN:
        return f"write it before the step: scperformer --plugin FILE {step} ..."
    if step == "workflow":
        return f"write words for snakemake at the end, after --: scperformer workflow ... -- {word}"
    if word in ("-m", "--multirun"):
        return "train for each combination of values by 'scperformer bench'"
    if instead := word_instead(word, SCHEMAS[step]):
        return instead
    option = closest_option(word, SCHEMAS[step])
    return (
        f"write {option}=VALUE" if option else "write a file name that starts with '-' as ./-name"
    )


def _value_of(flag: str, placeholder: str, rest: Iterator[str]) -> str:
    """Take the value of a flag from `rest`."""
    value = next(rest, "")
    if not value or (flag == CFG and value != placeholder):
        found = f"{flag} {value}".rstrip()
        raise InputError(
            "flag-value", found, f"{flag} {placeholder}", "add the value that it takes"
        )
    return value


def plugin_words(files: list[str]) -> list[str]:
    """Return the words that name files with mechanisms, before the step."""
    return [word for file in files for word in (PLUGIN, file)]


def own_presets(flags: dict[str, str]) -> Path | None:
    """Return the user's folder of presets (--config-dir), or None; refuse a folder that does not exist."""
    folder = flags.get(PRESETS)
    if folder is not None and not Path(folder).is_dir():
        expected = "a folder of presets, as in docs/configuration.md"
        raise InputError("no-preset-folder", f"no folder {folder}", expected, "check its path")
    return None if folder is None else Path(folder)
