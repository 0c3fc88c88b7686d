"""Write the tables of configuration.md from the dataclasses of scperformer.config: `python docs/make_configuration.py`.

A table stands between `<!-- options: NAME -->` and `<!-- end -->`; NAME is a step, a group, or `files`.
"""

import re
from pathlib import Path

from scperformer.command.words import FIRST_WORDS
from scperformer.config import option_texts

PAGE = Path(__file__).with_name("configuration.md")


def rows(name: str) -> str:
    """Return a table of options; groups, and the options of files, have tables of their own."""
    lines = ["| Option | Default | Meaning |", "|---|---|---|"]
    for option in option_texts(name, FIRST_WORDS.get(name)):
        default = option.default if option.default == "required" else f"`{option.default}`"
        meaning = re.sub(r"docs/((\w+\.md)[#\w-]*)", r"[\2](\1)", option.meaning)
        lines.append(f"| `{option.name}` | {default} | {meaning} |")
    return "\n".join(lines)


def page(text: str) -> str:
    """Return the text of the page with its tables made anew."""
    tables = re.compile(r"(<!-- options: (\w+) -->\n).*?(\n<!-- end -->)", re.DOTALL)
    return tables.sub(lambda found: f"{found[1]}{rows(found[2])}{found[3]}", text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
