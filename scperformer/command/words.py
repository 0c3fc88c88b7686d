"""The words of a command line, sorted into input files, options and flags before Hydra sees any of them."""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from scperformer.base.errors import InputError

log = logging.getLogger(__name__)

FIRST_WORDS = {
    "adapt": "model_path",
    "analyze": "analysis",
    "models": "action",
    "workflow": "samples",
}  # the option that the first plain word sets, if not a file
OVERRIDE = re.compile(r"[+~]*[A-Za-z_][\w./@-]*=|~[A-Za-z_]")  # option=value, +option=value, ~option
FLAGS = {"-m": None, "--cfg": "job", "--config-dir": "FOLDER"}  # of Hydra, each with a value that it takes
CONFIG = "--config"  # its value is a YAML file with options
SHORT = {"--json": "json=true"}  # flags that are options
MAX_NAMED_FILES = 3  # in the first line


@dataclass
class SortedWords:
    """The words after the step, by what they are."""

    files: list[str] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)  # option=value, in Hydra's grammar
    flags: list[str] = field(default_factory=list)  # of Hydra, with their values
    option_files: list[str] = field(default_factory=list)  # the values of --config


def to_overrides(words: list[str], step: str) -> list[str]:
    """Turn the words after the step, in any order, into overrides and `inputs=[...]`, and then flags.

    Plain words are input files, whatever characters they hold; the first one sets an option of some steps.

    Raises
    ------
    InputError
        A flag is unknown or lacks its value, or an options file cannot be used.
    """
    # Hydra takes a while to import: help answers at once.
    from scperformer.config import quoted

    found = sort_words(words, step)
    if "--cfg" in found.flags and "-m" in found.flags:
        raise InputError(" ".join(found.flags), "--cfg job without -m", "leave one of them out")
    add_option_files(found, step)
    first = FIRST_WORDS.get(step)
    if first is not None and found.files and not any(word.startswith(f"{first}=") for word in found.overrides):
        found.overrides.append(f"{first}={quoted(found.files.pop(0))}")
    if found.files:
        found.overrides.append(f"inputs=[{','.join(map(quoted, found.files))}]")
    return found.overrides + found.flags


def sort_words(words: list[str], step: str) -> SortedWords:
    """Sort words by what they are, and quote the values of options that are texts."""
    from scperformer.config import option_word, quoted, text_options

    found = SortedWords()
    rest = iter(words)
    for word in rest:
        word = SHORT.get(word, word)
        option, _, value = word.partition("=")
        if word == "--" and step == "workflow":  # the other words are for snakemake
            found.overrides.append(option_word("snakemake", list(rest)))
        elif word == CONFIG:
            found.option_files.append(_value_of(word, "FILE", "the name of a YAML file", rest))
        elif word.startswith("-"):
            found.flags += _flag(word, step, rest)
        elif not OVERRIDE.match(word) or Path(word).exists():
            found.files.append(word)
        elif option in text_options(step) and value not in ("", "null") and value[0] not in "'\"" and "-m" not in words:
            found.overrides.append(f"{option}={quoted(value)}")
        else:
            found.overrides.append(word)
    return found


def _value_of(flag: str, shown: str, added: str, rest: Iterator[str]) -> str:
    """Return the word after a flag."""
    value = next(rest, "")
    if not value:
        raise InputError(f"{flag} without a value", f"{flag} {shown}", f"add {added}")
    return value


def _flag(word: str, step: str, rest: Iterator[str]) -> list[str]:
    """Return a flag of Hydra and the value that it takes; refuse all other words that begin with '-'."""
    from scperformer.config import closest_option

    if word not in FLAGS:
        name = closest_option(word, step)
        remedy = f"write {name}=VALUE" if name else "write a file name that starts with '-' as ./-name"
        if word in ("-v", "--verbose"):
            remedy = "leave it out: every step says what it does"
        raise InputError(f"'{word}'", "a file, option=value, --help, --config FILE, --cfg job or -m", remedy)
    takes = FLAGS[word]
    if takes is None:
        return [word]
    value = _value_of(word, takes, "the value that it takes", rest)
    if word == "--cfg" and value not in ("job", "hydra", "all"):
        raise InputError(f"{word} {value}", f"{word} {takes}", "add the value that it takes")
    return [word, value]


def add_option_files(found: SortedWords, step: str) -> None:
    """Add what the files of --config name; the command line goes before a file."""
    from scperformer.config import option_word, read_options

    if step == "workflow":  # snakemake reads the file
        found.overrides = [*(option_word("configfile", path) for path in found.option_files), *found.overrides]
        return
    named = {word.lstrip("+~").partition("=")[0] for word in found.overrides}
    for path in found.option_files:
        overrides, inputs = read_options(path, step)
        overrides = [word for word in overrides if word.partition("=")[0] not in named]
        used = [*([] if found.files else inputs), *overrides]
        log.info("%s: %s", path, " ".join(used) or f"no option of '{step}'")
        found.overrides = overrides + found.overrides
        found.files = found.files or inputs


def first_line(step: str, words: list[str]) -> str:
    """Return the step, its files and its options in short; it is logged before anything slow is imported."""
    of_flags = [after for flag, after in pairwise(words) if flag == CONFIG or FLAGS.get(flag)]
    files = [word for word in words if not (word.startswith("-") or OVERRIDE.match(word) or word in of_flags)]
    options = [word for word in words if word not in files]
    named = files if len(files) <= MAX_NAMED_FILES else [f"{len(files)} files"]
    return f"scperformer {step}: {', '.join([*named, *options])}"


def own_presets(flags: list[str]) -> Path | None:
    """Return the folder of --config-dir, or None; refuse one that does not exist."""
    folders = [Path(value) for flag, value in pairwise(flags) if flag == "--config-dir"]
    if folders and not folders[-1].is_dir():
        raise InputError(
            f"no folder {folders[-1]}", "a folder of presets, as in docs/configuration.md", "check its path"
        )
    return folders[-1] if folders else None
