"""Text for people: checks and suggestions for names, escaping for tables, and durations with units."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from itertools import accumulate

MAX_SHOWN_LENGTH = 60  # characters; longer names are cut in messages
MAX_LISTED_LENGTH = 130  # characters of a list of names in a message
MAX_NAME_LENGTH = 1000  # characters; the longest label of the Cell Ontology has about 150
# Unicode: control characters, surrogates, and separators of lines and paragraphs.
UNFIT_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
# names that no column of a table in an h5ad file or zarr store can have
NO_COLUMNS = ("_index", ".", "..")
MIN_SIMILARITY = 0.5  # difflib's ratio of an unknown word and the name suggested for it
FORMULA_START = r"^[=+\-@\t\r\n]"  # spreadsheets evaluate text that starts like this


def name_problem(name: object) -> str | None:
    """Return why a value cannot name a label or a model, for a message; None if it can."""
    if not isinstance(name, str):
        return "is not text"
    if not name.strip():
        return "is empty"
    if len(name) > MAX_NAME_LENGTH:
        return f"has {len(name):,} characters (most: {MAX_NAME_LENGTH:,})"
    unfit = next(
        (letter for letter in name if unicodedata.category(letter) in UNFIT_CATEGORIES), None
    )
    return None if unfit is None else f"has the control character U+{ord(unfit):04X}"


def in_percent(share: float) -> str:
    """Return a share as a percentage: "94 %"; below 1 it is never rounded up to 100 % ("99.8 %")."""
    decimals = (
        next((digits for digits in range(4) if round(100 * share, digits) < 100), 0)
        if share < 1
        else 0
    )
    return f"{100 * share:.{decimals}f} %"


def did_you_mean(word: object, names: Iterable[object]) -> str:
    """Return "did you mean 'cell_type'? " with the most similar name, ignoring case; "" if no name is similar."""
    names_by_lower = {str(name).lower(): str(name) for name in names}
    near = get_close_matches(str(word).lower(), names_by_lower, 1, MIN_SIMILARITY)
    return f"did you mean '{shortened(names_by_lower[near[0]])}'? " if near else ""


def escape_formula(text: str) -> str:
    """Return text for a table; a leading ' keeps spreadsheets from evaluating it as a formula."""
    return f"'{text}" if re.match(FORMULA_START, text) else text


def join_names(names: Sequence[str]) -> str:
    """Join names with `|`; as in CSV, a name that contains `|` is quoted. `split_names` is the inverse."""
    line = io.StringIO()
    csv.writer(line, delimiter="|", lineterminator="").writerow(names)
    return line.getvalue()


def split_names(text: str) -> list[str]:
    """Return the names that `join_names` joined; an empty text has no names."""
    return next(csv.reader([text], delimiter="|"), [])


def shortened(name: object) -> str:
    """Return a name for a message, cut if it is very long."""
    text = str(name)
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[:MAX_SHOWN_LENGTH]}..."


def listed(names: Iterable[object]) -> str:
    """Join names by commas for a message, as many as fit into 130 characters: "B, NK and 34 more"."""
    texts = [str(name) for name in names]
    num = max(
        1, sum(end <= MAX_LISTED_LENGTH for end in accumulate(len(text) + 2 for text in texts))
    )
    rest = f" and {len(texts) - num} more" if num < len(texts) else ""
    return ", ".join(text[:MAX_LISTED_LENGTH] for text in texts[:num]) + rest


def named(num_cells: Mapping[str, int]) -> str:
    """Name labels with their numbers of cells: "'B cell' (1), 'T cell' (3) and 34 more"."""
    return listed(f"'{shortened(label)}' ({num:,})" for label, num in num_cells.items())


def in_time(seconds: float) -> str:
    """Return a duration with its unit: "0.8 s", "42 s", "3 min 20 s", "2 h 05 min"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    hours, left = divmod(minutes, 60)
    return f"{hours} h {left:02d} min" if hours else f"{minutes} min {rest:02d} s"
