"""Texts of users: names that can be used, cells that a spreadsheet would run as formulas, times and sizes in words."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

MAX_SHOWN_LENGTH = 60  # characters of a name in a line for people
MAX_NAME_LENGTH = 1000  # characters; the longest label of the Cell Ontology has some 150
MIB = 2**20
GIB = 2**30
UNFIT_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")  # kinds of characters that end lines, steer terminals or cannot be written
MIN_SIMILARITY = 0.5  # of a wrong word and the name that was meant, as difflib measures it
FORMULA_START = r"^[=+\-@\t\r\n]"  # spreadsheets run text that starts like this as a formula


def name_problem(name: object) -> str | None:
    """Return why something cannot be the name of a label or a model; None if it can."""
    if not isinstance(name, str):
        return "is not a text"
    if not name.strip():
        return "is empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"has {len(name):,} characters (most: {MAX_NAME_LENGTH:,})"
    odd = next((letter for letter in name if unicodedata.category(letter) in UNFIT_CATEGORIES), None)
    return None if odd is None else f"has the control character U+{ord(odd):04X}"


def in_percent(share: float) -> str:
    """Return a share in words, where nearly all is not all: "94 %", "99.8 %"."""
    decimals = next((digits for digits in range(4) if round(100 * share, digits) < 100), 0) if share < 1 else 0
    return f"{100 * share:.{decimals}f} %"


def did_you_mean(word: object, names: Iterable[object]) -> str:
    """Return "did you mean 'cell_type'? " with the name most like a wrong one, whatever its case; "" if none is."""
    known = {str(name).lower(): str(name) for name in names}
    near = get_close_matches(str(word).lower(), known, 1, MIN_SIMILARITY)
    return f"did you mean '{shortened(known[near[0]])}'? " if near else ""


def escape_formula(text: str) -> str:
    """Return a text for a table, with a ' in front if a spreadsheet would run it."""
    return f"'{text}" if re.match(FORMULA_START, text) else text


def escape_pipes(text: str) -> str:
    """Return a text for a cell of a Markdown table, in which `|` separates cells."""
    return text.replace("|", "\\|")


def join_names(names: Sequence[str]) -> str:
    """Join names by `|`; as in CSV, a name that has a `|` itself is in quotes. `parted` takes them apart."""
    line = io.StringIO()
    csv.writer(line, delimiter="|", lineterminator="").writerow(names)
    return line.getvalue()


def split_names(text: str) -> list[str]:
    """Return the names that `joined` has put together; none of an empty text."""
    return next(csv.reader([text], delimiter="|"), [])


def shortened(name: object) -> str:
    """Return a name for a line of text, cut if it is very long."""
    text = str(name)
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}..."


def in_time(seconds: float) -> str:
    """Return a duration in words: "0.8 s", "42 s", "3 min 20 s", "2 h 05 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left:02d} min" if hours else f"{minutes} min {rest:02d} s"


def in_bytes(num_bytes: float) -> str:
    """Return a size in words: "420 MiB", "3.1 GiB", "24 GiB"."""
    size = num_bytes / GIB
    if size < 0.995:
        return f"{num_bytes / MIB:.0f} MiB"
    return f"{size:.1f} GiB" if size < 9.95 else f"{size:.0f} GiB"
