"""Write the tables of configuration.md from the dataclasses of scperformer.config: `python docs/make_configuration.py`.

A table stands between `<!-- options: NAME -->` and `<!-- end -->`; NAME is a step, a group, or `files`. The meaning of
an option is its comment: the lines above it in the dataclass, and the text behind it.
"""

import inspect
import re
from dataclasses import MISSING, Field, fields
from pathlib import Path

from scperformer.cli import FIRST_WORDS
from scperformer.config import groups, steps

PAGE = Path(__file__).with_name("configuration.md")
GROUPS = {name.removesuffix("Config").lower(): part for name, part in vars(groups).items() if name.endswith("Config")}
TABLES = {"files": steps.ExpressionOptions} | steps.SCHEMAS | GROUPS


def meanings(table: type) -> dict[str, str]:
    """Return the comment of each option of a dataclass, and of its base classes."""
    found: dict[str, str] = {}
    for part in reversed([part for part in table.__mro__ if part.__module__.startswith("scperformer.")]):
        above: list[str] = []
        for line in inspect.getsource(part).splitlines():
            option = re.match(r"    (\w+): [^#]*(?:# (.*))?$", line)
            if option:
                found[option[1]] = " ".join([*above, option[2] or ""]).strip()
            above = [*above, line.strip(" #")] if line.startswith("    # ") else []
    return {name: re.sub(r"docs/((\w+\.md)[#\w-]*)", r"[\2](\1)", text) for name, text in found.items()}


def default(option: Field, first_word: str | None) -> str:
    """Return the default of an option as a user would write it."""
    value = option.default if option.default_factory is MISSING else option.default_factory()
    if value is MISSING or option.name == first_word != "action":  # `models` alone lists the models
        return "required"
    if value is None or isinstance(value, bool):
        return "`null`" if value is None else f"`{str(value).lower()}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def rows(name: str) -> str:
    """Return a table of options; groups, and the options of files, have tables of their own."""
    meaning = meanings(TABLES[name])
    elsewhere = {"inputs", "attention", *GROUPS} | ({"overwrite"} if name == "files" else set())
    if name != "files":
        elsewhere |= {option.name for option in fields(TABLES["files"])} - {"overwrite"}
    lines = []
    for option in fields(TABLES[name]):
        if name in GROUPS or option.name not in elsewhere:
            value = default(option, FIRST_WORDS.get(name))
            prefix = f"{name}." if name in GROUPS else ""
            choices = option.metadata.get("rule", (None, ""))[1]
            text = f"{meaning[option.name]} ({choices})" if choices.startswith("one of ") else meaning[option.name]
            lines.append(f"| `{prefix}{option.name}` | {value} | {text} |")
    lines.sort(key=lambda line: ("| required |" not in line, line.startswith("| `overwrite`")))
    return "\n".join(["| Option | Default | Meaning |", "|---|---|---|", *lines])


def page(text: str) -> str:
    """Return the text of the page with its tables made anew."""
    tables = re.compile(r"(<!-- options: (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
    return tables.sub(lambda found: f"{found[1]}{rows(found[2])}{found[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
