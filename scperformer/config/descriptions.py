"""The options of a step as a user reads them: full names, defaults and texts, for the help and the documentation."""

from dataclasses import MISSING, Field, dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeGuard, get_type_hints

from scperformer.config.options import ExpressionOptions, Options, choices_of, is_option
from scperformer.config.steps import FIRST_WORDS, SCHEMAS, WORKFLOW_STEPS
from scperformer.config.training import TrainOptions

# Options of other programs, such as -o and -j, and of CellTypist, and the options here that mean the same.
ALIASES = {
    "o": "output",
    "out": "output",
    "outdir": "output",
    "i": "inputs",
    "input": "inputs",
    "j": "threads",
}
ALIASES |= {"over_clustering": "clusters", "model": "model_path"}
# Words of CellTypist, and for lists of markers, without such an option: what to write instead, and the option in it.
INSTEAD = {
    "majority_voting": (
        "clusters",
        "write clusters=auto, or clusters=COLUMN: each cluster gets a label, too",
    ),
    "p_thres": (
        "min_confidence",
        "write min_confidence=...: cells below it are unknown, or get a parent label",
    ),
    "mode": (
        "alpha",
        "write alpha=0.1 for sets of labels, or min_confidence=... for unknown cells",
    ),
    **dict.fromkeys(
        ("markers", "marker_list", "marker_file", "marker_genes"),
        (
            "markers_output",
            "markers_output=FILE writes a new table of markers; no option reads a list of markers",
        ),
    ),
    "indata": ("inputs", "write the file as a plain word, without an option"),
}
MIN_SIMILARITY = 0.75  # difflib's ratio of a wrong word and the option suggested for it: names of options are alike


def is_group(kind: object) -> TypeGuard[type[Options]]:
    """Whether the type of a field is a group of options."""
    return isinstance(kind, type) and issubclass(kind, Options)


# data, tokens, ...
GROUPS = {name: kind for name, kind in get_type_hints(TrainOptions).items() if is_group(kind)}
WITH_OPTIONS = {name: kind for name, kind in GROUPS.items() if any(map(is_option, fields(kind)))}
# The tables of docs/configuration.md; "files" has the options of all steps that take cells.
TABLES: dict[str, type[Options]] = {"files": ExpressionOptions, **SCHEMAS, **WITH_OPTIONS}


@dataclass(frozen=True)
class OptionText:
    """An option of a step or group: its full name, its default as on the command line (or `required`), its meaning."""

    name: str
    default: str
    meaning: str


def fields_of(schema: type[Options]) -> dict[str, tuple[Field, Any]]:
    """Return the field and the type of each option of a step by its full name; options of mechanisms are left out."""
    named: dict[str, tuple[Field, Any]] = {}
    hints = get_type_hints(schema)
    for entry in fields(schema):
        kind = hints[entry.name]
        parts = fields_of(kind).items() if is_group(kind) else ()
        named |= {f"{entry.name}.{name}": part for name, part in parts} or {
            entry.name: (entry, kind)
        }
    return named


def option_texts(name: str) -> list[OptionText]:
    """Return the options of a step without groups and `files`, or of one of these; the required ones first."""
    is_group = name in GROUPS
    elsewhere = {"inputs", "attention", *GROUPS}
    common = {entry.name for entry in fields(ExpressionOptions)}
    elsewhere |= {"overwrite"} if name == "files" else common - {"overwrite"}
    texts = []
    for entry in fields(TABLES[name]):
        if is_option(entry) and (is_group or entry.name not in elsewhere):
            meaning = entry.metadata["help"]
            if choices := choices_of(entry):
                meaning += f" (one of {', '.join(choices)})"
            # The first word is required although its option has a default.
            default = "required" if entry.name == FIRST_WORDS.get(name) else _default_text(entry)
            texts.append(OptionText(f"{name}." * is_group + entry.name, default, meaning))
    return sorted(texts, key=lambda text: (text.default != "required", text.name == "overwrite"))


def default_of(entry: Field) -> Any:
    """Return the default of an option; MISSING if it is required."""
    return entry.default if entry.default_factory is MISSING else entry.default_factory()


def _default_text(entry: Field) -> str:
    value = default_of(entry)
    if value is MISSING:
        return "required"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def closest_option(word: str, schema: type[Options]) -> str:
    """Return the full name of the option of a step that a wrong word probably meant; "" if no name is similar."""
    wrong = word.lstrip("-+~").partition("=")[0].replace("-", "_")
    names = [name for name, (entry, _) in fields_of(schema).items() if is_option(entry)]
    usual = ALIASES.get(wrong, wrong)
    return (
        usual
        if usual in names
        else next(iter(get_close_matches(usual, names, 1, MIN_SIMILARITY)), "")
    )


def word_instead(word: str, schema: type[Options]) -> str:
    """Return what a step takes instead of an option of another program; "" if it is none."""
    option, text = INSTEAD.get(word.lstrip("-").partition("=")[0].replace("-", "_"), ("", ""))
    return text if option in fields_of(schema) else ""


def where_to_set(name: str, schema: type[Options]) -> str:
    """Return the remedy for the name of an option that a step does not have."""
    step = schema.word()
    remedy = f"'scperformer {step} --help' lists the options"
    steps = (
        sorted(WORKFLOW_STEPS, key=lambda other: other != "predict") if step == "workflow" else ()
    )
    others = [other for other in steps if name in fields_of(SCHEMAS[other])]
    # model=FOLDER was meant to name a trained model
    if name == "model" and "model_path" in fields_of(schema):
        imported = (
            "one of CellTypist after 'scperformer models import FILE.pkl' with model_path=NAME"
        )
        return f"name a trained model with model_path=FOLDER, {imported}; {remedy}"
    if instead := word_instead(name, schema):
        return f"{instead}; {remedy}"
    if others:
        return f'write overrides: {{{others[0]}: "{name}=..."}} into a file for --config; {remedy}'
    if name.startswith("attention."):
        return f"choose the mechanism with attention=NAME; 'scperformer {step} --cfg job' shows its options"
    near = closest_option(name, schema)
    return f"did you mean {near}? {remedy}" if near not in ("", name) else remedy
