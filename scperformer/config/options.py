"""Rules for the values of options, and the options that several commands share.

The options of a command are a dataclass, whose fields `option` and `choice` make: they state the default, the rule for
values, and the text of the help and of docs/configuration.md.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from math import isfinite
from types import MappingProxyType, UnionType
from typing import Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from scperformer.base.errors import InputError
from scperformer.base.inputs import special_kind
from scperformer.base.messages import MAX_NAME_LENGTH, did_you_mean, name_problem

T = TypeVar("T")
AUTO = "auto"  # the value of options that the program may choose itself

# What a type takes, for errors, by a part of its name.
VALUES_OF_TYPES = {
    "list": "a list",
    "bool | str": "true, false or a text",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
}
# words for true and false in turn
FLAGS = ("true", "false", "yes", "no", "on", "off", "y", "n", "1", "0")

# a check of a value, and the text that says which values pass it
Rule = tuple[Callable[[Any], bool], str]
ABOVE_ZERO: Rule = (lambda value: value > 0, "a number above 0")
ZERO_OR_MORE: Rule = (lambda value: value >= 0, "0 or more")
ONE_OR_MORE: Rule = (lambda value: value >= 1, "1 or more")
BELOW_ONE: Rule = (lambda value: 0 <= value < 1, "0 or more and below 1")
SHARE: Rule = (lambda value: 0 <= value <= 1, "a share from 0 to 1")
# no program is faster with more; a billion of them abort it
MAX_THREADS = max(64, 4 * (os.cpu_count() or 1))
THREADS: Rule = (lambda value: 1 <= value <= MAX_THREADS, f"1 to {MAX_THREADS} on this machine")
SEED: Rule = (lambda value: 0 <= value < 2**32, "0 to 2**32 - 1")
NAME: Rule = (lambda value: bool(value.strip()), "a name")
LINE: Rule = (
    lambda value: name_problem(value) is None,
    f"a name in one line of at most {MAX_NAME_LENGTH:,} characters",
)

SOURCE: Rule = (
    lambda source: source in ("auto", "X", "raw") or source.startswith("layers/"),
    "auto, X, raw or layers/NAME",
)
ONTOLOGY: Rule = (
    lambda source: source in ("packaged", "none") or source.endswith(".obo"),
    "packaged, none, or a file in .obo",
)


def span(low: int, high: int) -> Rule:
    """Return the rule of numbers from `low` to `high`."""
    return (lambda value: low <= value <= high, f"{low} to {high}")


def option(default: Any = MISSING, help: str = "", rule: Rule | None = None) -> Any:
    """Return a field of an `Options` class, which is required without a default; the rule never checks None."""
    metadata = {"rule": rule, "help": help}
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def choice(*values: str, help: str = "") -> Any:
    """Return a field of an `Options` class that is one of `values`; the first is the default."""
    metadata = {
        "rule": (values.__contains__, f"one of {', '.join(values)}"),
        "help": help,
        "choices": values,
    }
    return field(default=values[0], metadata=metadata)


def fixed(default: Any, rule: Rule | None = None) -> Any:
    """Return a field that is no option: presets or plain words set it, and models record it."""
    entry = default if isinstance(default, Field) else option(default, rule=rule)
    entry.metadata = MappingProxyType({**entry.metadata, "fixed": True})
    return entry


def is_option(entry: Field) -> bool:
    """Return whether users can set a field by its name."""
    return not entry.metadata.get("fixed", False)


def choices_of(entry: Field) -> tuple[str, ...]:
    """Return the values that a field can have if `choice` has made it, else none."""
    return entry.metadata.get("choices", ())


def require(ok: bool, option: str, value: object, expected: str, near: str = "") -> None:
    """Raise an InputError about an option unless `ok`; `near` is a hint such as "did you mean 'mean'? ", or ""."""
    if not ok:
        # quotes show blank text
        shown = repr(value) if isinstance(value, str) and not value.strip() else value
        raise InputError(
            "option-range", f"{option}={shown}", expected, f"{near}set {option} accordingly"
        )


def option_value(name: str, kind: Any, value: Any) -> Any:
    """Return a plain value as the type of the option `name`; a text becomes a number or flag, and these a text."""
    try:
        converted = _converted(kind, value)
    except (ValueError, OverflowError) as error:
        expected = next(
            (text for part, text in VALUES_OF_TYPES.items() if part in str(kind)),
            "a value of its kind",
        )
        raise InputError(
            "bad-option", f"{name}={in_word(value)}", expected, f"set {name} accordingly"
        ) from error
    for part in converted if isinstance(converted, list) else [converted]:
        require(not isinstance(part, float) or isfinite(part), name, part, "a number")
    return converted


def _converted(kind: Any, value: Any) -> Any:
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if Any in kinds or type(value) in kinds:
        return value
    first, *others = (kind for kind in kinds if kind is not type(None))
    if get_origin(first) is list and value is not None:
        parts = value if isinstance(value, list) else [value]  # one value needs no brackets
        return [_converted(get_args(first)[0], part) for part in parts]
    if others or isinstance(value, list | None):
        raise ValueError
    if first is bool:
        return FLAGS.index(str(value).lower()) % 2 == 0
    if first is str:
        return in_word(value)
    if type(value) not in (str, int):  # no number is cut to a whole one
        raise ValueError
    return first(value)


def in_word(value: object) -> str:
    """Return a value as on the command line, for a message."""
    if isinstance(value, list):
        return f"[{','.join(map(in_word, value))}]"
    return (
        {True: "true", False: "false", None: "null"}[value]
        if isinstance(value, bool | None)
        else str(value)
    )


def checked(schema: type[T], values: Mapping[str, object], prefix: str) -> T:
    """Make a dataclass from plain values, such as JSON; `prefix` is for names in errors."""
    types = get_type_hints(schema)
    if unknown := [name for name in values if name not in types]:
        known = ", ".join(f"{prefix}{name}" for name in types) or "none"
        expected = f"an option that exists ({known})"
        raise InputError("unknown-option", f"option {prefix}{unknown[0]}", expected, "leave it out")
    return schema(
        **{
            name: option_value(f"{prefix}{name}", types[name], value)
            for name, value in values.items()
        }
    )


@dataclass(kw_only=True)
class Options:
    """Base class of options: the rule of each field is checked when an instance is made, and no text is a device."""

    # before names in messages; None: the name of the group, as in `data.split`
    prefix: ClassVar[str | None] = None

    @classmethod
    def word(cls) -> str:
        """Return the name of the group or step on the command line: `data` for DataConfig, `train` for TrainOptions."""
        return cls.__name__.removesuffix("Config").removesuffix("Options").lower()

    def __post_init__(self) -> None:
        prefix = f"{self.word()}." if self.prefix is None else self.prefix
        for entry in fields(self):
            value, name = getattr(self, entry.name), f"{prefix}{entry.name}"
            for part in value if isinstance(value, list) else [value]:
                # Each of `inputs` is refused where it is read, as other inputs may be used.
                if (
                    isinstance(part, str)
                    and entry.name != "inputs"
                    and (kind := special_kind(part))
                ):
                    expected = "a name, or the path of a file or folder"
                    raise InputError(
                        "option-type",
                        f"{name}={part}, {kind}",
                        expected,
                        "copy its content into a file",
                    )
            if value is not None and (rule := entry.metadata.get("rule")) is not None:
                fits, expected = rule
                require(fits(value), name, value, expected, did_you_mean(value, choices_of(entry)))


@dataclass(kw_only=True)
class FileOptions(Options):
    """Options of the steps that take files."""

    prefix = ""
    takes_one: ClassVar[bool] = False  # whether the step takes exactly one file

    inputs: list[str] = option([], "the files, given as plain words of the command")
    overwrite: bool = option(False, "replace an existing output of this step")

    def __post_init__(self) -> None:
        super().__post_init__()
        num = len(self.inputs)
        if num == 0 or (self.takes_one and num > 1):
            expected = "exactly one file" if self.takes_one else "at least one file"
            remedy = f"name it; 'scperformer {self.word()} --help' shows examples"
            raise InputError(
                "number-of-inputs",
                f"{num} input files" if num else "no input file",
                expected,
                remedy,
            )


@dataclass(kw_only=True)
class ExpressionOptions(FileOptions):
    """Options that replace the detection of a file's content."""

    orientation: str = choice(
        *("auto", "cells_by_genes", "genes_by_cells"),
        help="orientation of a text table whose names do not show it; see docs/inputs.md#files",
    )
    source: str = option(
        "auto", "the matrix, if it is not the detected one: X, raw or layers/NAME", SOURCE
    )
    input_kind: str = choice(
        *("auto", "counts", "linear", "log1p"),
        help="kind of the values; linear: TPM, corrected counts",
    )
    input_total: float | None = option(
        None, "total count of a cell before the logarithm, such as 10000", ABOVE_ZERO
    )
    input_base: str = choice("auto", "e", "2", "10", help="base of the logarithm")
    species: str = choice(
        *("auto", "human", "mouse"),
        help="species of the genes; a model of the other species uses orthologs; see docs/inputs.md#genes",
    )


@dataclass(kw_only=True)
class ModelOptions(ExpressionOptions):
    """Options of the steps that apply a model to cells."""

    model_path: str | None = option(
        None,
        "a folder or the name of a model; if null, $SCPERFORMER_MODEL, else the tissue is inferred",
    )
    genes: str = choice(
        *("matched", "exact"),
        help="how genes match: also by ids, case and previous symbols, or by exact name; see docs/inputs.md#genes",
    )
    min_overlap: float = option(
        0.2,
        "minimum gene overlap, weighted by informative expression; see docs/inputs.md#genes",
        SHARE,
    )

    @property
    def adapts(self) -> bool:
        """Whether the step can adapt the model to the genes of the file."""
        return False


@dataclass(kw_only=True)
class TissueOptions(ModelOptions):
    """Options of the steps that find the tissue of a file, where no model is named."""

    tissue: str | None = option(
        None,
        "a tissue of 'scperformer models list' instead of a model; if both are null, it is inferred",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tissue is not None and self.model_path is not None:
            found = f"tissue={self.tissue} and model_path={self.model_path}"
            raise InputError("tissue-and-model", found, "one of them", "leave the other out")
