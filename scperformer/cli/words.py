"""The words of a command line, sorted into input files, options and flags before Hydra sees any of them."""

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from scperformer.base.errors import InputError
from scperformer.cli.option_file import read_options
from scperformer.cli.option_texts import closest_option, text_options
from scperformer.cli.overrides import option_word, quoted

log = logging.getLogger(__name__)

# In these steps the first plain word sets an option; in all others it is an input file.
FIRST_WORDS = {
    "adapt": "model_path",
    "analyze": "analysis",
    "models": "action",
    "workflow": "sample_sheet",
}
# Names in the record of a command that are no options, and how their values are given.
WORD_ONLY = {
    "action": "list, show or import, as the first word",
    "analysis": "spectrum or approximation, as the first word",
    "configfile": "--config FILE",
    "snakemake": "-- and the words for snakemake",
}
OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w./@-]*=|~[A-Za-z_]")  # option=value, +option=value, ~option
FLAGS = {"-m": None, "--cfg": "job", "--config-dir": "FOLDER"}  # as in Hydra; the value after each, None: no value
PLUGIN = "--plugin"  # before the step alone, so that no file in a list of words, as of a workflow, can take its place
CONFIG = "--config"  # a flag of our own: the word after it is a YAML file with options
MAX_NAMED_FILES = 3  # the line that a command logs first names so many files, and only counts more


@dataclass
class SortedWords:
    """The words after the step, each kind in the order in which it was given."""

    files: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)  # option=value, in Hydra's grammar
    flags: list[str] = field(default_factory=list)  # names from FLAGS, each followed by its value if it has one
    option_files: list[str] = field(default_factory=list)  # the values of --config


def to_overrides(words: list[str], step: str) -> list[str]:
    """Turn the words after the step, given in any order, into words in Hydra's grammar.

    Plain words are input files, whatever characters they hold; in some steps the first of them sets an option.

    Returns
    -------
    The options as `option=value`, then the files as `inputs=[...]`, then the flags with their values.

    Raises
    ------
    InputError
        A flag is unknown or lacks its value, or an options file cannot be used.
    """
    given = sort_words(words, step)
    if "--cfg" in given.flags and "-m" in given.flags:
        raise InputError(" ".join(given.flags), "--cfg job without -m", "leave one of them out")
    # A single word is the file if a file of --config sets the option: `adapt sample.h5ad --config FILE`.
    if len(given.files) > 1:
        _set_first_option(given, step)
    add_option_files(given, step)
    _set_first_option(given, step)
    if given.files:
        given.overrides.append(f"inputs=[{','.join(map(quoted, given.files))}]")
    return given.overrides + given.flags


def _set_first_option(given: SortedWords, step: str) -> None:
    """Move the first plain word to the option that it sets in this step, unless the option is already set."""
    option = FIRST_WORDS.get(step)
    if option is not None and given.files and not any(word.startswith(f"{option}=") for word in given.overrides):
        given.overrides.append(f"{option}={quoted(given.files.pop(0))}")


def sort_words(words: list[str], step: str) -> SortedWords:
    """Sort words into files, options and flags, and quote the values of options that take any text.

    A value is not quoted if it is empty, null or already quoted, nor in a sweep, where commas separate values.
    """
    given = SortedWords()
    rest = iter(words)
    for word in rest:
        option, _, value = word.partition("=")
        if word == "--" and step == "workflow":  # all words after it are for snakemake
            given.overrides.append(option_word("snakemake", list(rest)))
        elif word == CONFIG:
            given.option_files.append(_value_of(word, "FILE", "the name of a YAML file", rest))
        elif word.startswith("-"):
            given.flags += _flag(word, step, rest)
        # A file name may look like an option. Path.exists would raise an error for a value too long for a file name.
        elif not OVERRIDE.match(word) or os.path.exists(word):
            given.files.append(word)
        elif option in WORD_ONLY:
            raise InputError(word, WORD_ONLY[option], "leave the name of the option out")
        elif option in text_options(step) and value not in ("", "null") and value[0] not in "'\"" and "-m" not in words:
            given.overrides.append(f"{option}={quoted(value)}")
        else:
            given.overrides.append(word)
    return given


def _value_of(flag: str, placeholder: str, missing: str, rest: Iterator[str]) -> str:
    """Take the word after a flag from `rest`; `placeholder` and `missing` describe it if there is none."""
    value = next(rest, "")
    if not value:
        raise InputError(f"{flag} without a value", f"{flag} {placeholder}", f"add {missing}")
    return value


def _flag(word: str, step: str, rest: Iterator[str]) -> list[str]:
    """Return a flag and its value, taken from `rest`; refuse all other words that begin with '-'."""
    if word == PLUGIN:
        raise InputError(f"{word} after '{step}'", "it before the step", f"write scperformer --plugin FILE {step} ...")
    if word not in FLAGS:
        name = closest_option(word, step)
        remedy = f"write {name}=VALUE" if name else "write a file name that starts with '-' as ./-name"
        if word in ("-v", "--verbose"):
            remedy = "leave it out: every step says what it does"
        raise InputError(f"'{word}'", "a file, option=value, --help, --config FILE, --cfg job or -m", remedy)
    placeholder = FLAGS[word]
    if placeholder is None:
        return [word]
    value = _value_of(word, placeholder, "the value that it takes", rest)
    if word == "--cfg" and value not in ("job", "hydra", "all"):
        raise InputError(f"{word} {value}", f"{word} {placeholder}", "add the value that it takes")
    return [word, value]


def add_option_files(given: SortedWords, step: str) -> None:
    """Add the options and the input file that the files of --config name.

    Words of the command line take precedence over a file, and a file over later ones: of two words that set the same
    option, the last counts, so the options of a file are put in front.
    """
    if step == "workflow":  # snakemake reads the file
        given.overrides = [*(option_word("configfile", path) for path in given.option_files), *given.overrides]
        return
    named = {word.lstrip("+~").partition("=")[0] for word in given.overrides}
    if "label_keys" in named:  # its last column is the label_key
        named.add("label_key")
    for path in given.option_files:
        overrides, inputs = read_options(path, step)
        overrides = [word for word in overrides if word.partition("=")[0] not in named]
        used = [*([] if given.files else inputs), *overrides]
        log.info("%s: %s", path, " ".join(used) or "no option that the command line does not set")
        given.overrides = overrides + given.overrides
        given.files = given.files or inputs


def first_line(step: str, words: list[str]) -> str:
    """Return a line with the step, its files and its options, to be logged before the slow imports of the step."""
    end = words.index("--") if "--" in words else len(words)
    own = words[:end]
    values = [after for flag, after in pairwise(own) if flag == CONFIG or FLAGS.get(flag)]
    files = [word for word in own if not (word.startswith("-") or OVERRIDE.match(word) or word in values)]
    options = [word for word in own if word not in files]
    named = files if len(files) <= MAX_NAMED_FILES else [f"{len(files)} files"]
    for_snakemake = [" ".join(words[end:])] if words[end:] else []
    return f"scperformer {step}: {', '.join([*named, *options, *for_snakemake])}"


def own_presets(flags: list[str]) -> Path | None:
    """Return the user's folder of presets (--config-dir), or None; refuse a folder that does not exist."""
    folders = [Path(value) for flag, value in pairwise(flags) if flag == "--config-dir"]
    if folders and not folders[-1].is_dir():
        raise InputError(
            f"no folder {folders[-1]}", "a folder of presets, as in docs/configuration.md", "check its path"
        )
    return folders[-1] if folders else None
