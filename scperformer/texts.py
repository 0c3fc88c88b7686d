"""Texts that others wrote: which can be names, and which a spreadsheet would run."""

import re
import unicodedata

NUM_SHOWN = 60  # characters of a name in a line for people
LONGEST_NAME = 1000  # characters; the longest label of the Cell Ontology has some 150
BREAKS = ("Cc", "Cs", "Zl", "Zp")  # kinds of characters that end lines, steer terminals or cannot be written
FORMULA = r"^[=+\-@\t\r\n]"  # spreadsheets run what starts like this


def unfit(name: object) -> str | None:
    """Why something cannot be the name of a label or a model; None if it can."""
    if not isinstance(name, str):
        return "is no text"
    if not name.strip():
        return "is empty"
    if len(name) > LONGEST_NAME:
        return f"has {len(name):,} characters (most: {LONGEST_NAME:,})"
    odd = next((letter for letter in name if unicodedata.category(letter) in BREAKS), None)
    return None if odd is None else f"has the control character U+{ord(odd):04X}"


def defused(text: str) -> str:
    """A text for a table: with a ' in front if a spreadsheet would run it."""
    return f"'{text}" if re.match(FORMULA, text) else text


def shortened(name: object) -> str:
    """A name for a line among others: the beginning of one that is very long."""
    text = str(name)
    return text if len(text) <= NUM_SHOWN else f"{text[:NUM_SHOWN]}..."
