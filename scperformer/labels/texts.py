"""The spelling of labels, the same for all sources: columns of obs, tables of text, options."""

import re
import unicodedata
from collections.abc import Collection, Iterable

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import shortened

CONTAINERS = (list, tuple, set, frozenset, dict, np.ndarray)
TERM_SUFFIX = "_ontology_term_id"  # after the name of the label column, as CELLxGENE names the column of ontology ids
# Words that say that a cell has no label, or is no single cell, and words that may stand beside them.
NO_LABEL = (
    r"un ?(known|assigned|classified|annotated|labell?ed|defined|determined|identified|resolved)|"
    r"not (assigned|annotated|available|applicable|determined)|no (label|annotation)|"
    r"doublets?|multiplets?|low ?quality|low ?qual|empty droplets?|n ?a|nan|nat|none|null"
)
BESIDE = r"cells?|cell ?types?|types?|labels?|clusters?|identity|or|and"
MEANS_NO_LABEL = re.compile(
    rf"(?=.*\b({NO_LABEL})\b)(({NO_LABEL}|{BESIDE})( |$))+|[-?.*\s\u2013\u2014]*"
)
# pandas stores whole numbers with a missing value as floats: clusters 1, 2, ... then are 1.0, 2.0, ...
WHOLE = re.compile(r"([+-]?\d+)(\.0+)?")
NO_WIDTH = "Cf"  # the category in Unicode of characters without width, such as a byte order mark
QUOTED = re.compile(r"""b?["'`\u2018-\u201f](.*)["'`\u2018-\u201f]""")
# Numbers of cells behind a name, as legends of plots have them: "(n=5)", "[1,204 cells]".
NUM_CELLS = re.compile(
    r"[([]?\bn\s*[=:]\s*\d[\d,.']*(\s*cells?)?[)\]]?$|[([]\d[\d,.']*\s*cells?[)\]]$"
)
# Names as R's make.names, janitor and others write them: one character for each blank and sign, + and - included.
PLAIN_NAME = re.compile(r"\w*[._][\w.]*|x\d\w*", re.IGNORECASE)


def label_texts(values: pd.Series) -> pd.Series:
    """Return labels as strings without surrounding blanks and characters without width; NaN for a missing or blank one.

    If all values are whole numbers, as numbers or as text, they lose their decimals: 1.0 becomes "1". Values may be
    strings, bytes, numbers, categories of these, or of a nullable type of pandas; containers are refused.
    """
    require_no_containers(values)
    # so that each label is processed once, not once per cell
    codes, distinct = pd.factorize(values)
    decoded = (
        value.decode(errors="replace") if isinstance(value, bytes) else value
        for value in np.asarray(distinct, dtype=object)
    )
    texts = [visible(str(value)) for value in decoded]
    if all(WHOLE.fullmatch(text) for text in texts if text):
        texts = [_whole(text) for text in texts]
    # Missing values have the code -1, which is the last entry.
    names = np.array([*(text or np.nan for text in texts), np.nan], dtype=object)
    return pd.Series(names[codes], index=values.index, dtype=object, name=values.name)


def first_container(values: pd.Series) -> object | None:
    """Return the first value of a column that is a list, a set, a dictionary or the like; None if there is none."""
    is_categorical = isinstance(values.dtype, pd.CategoricalDtype)
    distinct = values.cat.categories if is_categorical else values if values.dtype == object else ()
    return next((value for value in distinct if isinstance(value, CONTAINERS)), None)


def require_no_containers(values: pd.Series) -> None:
    """Refuse a column that holds lists, sets, dictionaries or the like."""
    if (container := first_container(values)) is not None:
        found = (
            f"a {type(container).__name__} in column '{values.name}' (e.g. {shortened(container)})"
        )
        expected = "a text or a number for each cell"
        raise InputError(
            "container-values", found, expected, "convert the column, for example to strings"
        )


def means_no_label(text: str) -> bool:
    """Whether a text says that a cell has no label or is no single cell: "Unknown cell", "unassigned", "NA", "-"."""
    words = re.sub(r"[\W_]+", " ", text.casefold()).strip()
    return MEANS_NO_LABEL.fullmatch(words or text) is not None


def without_no_labels(texts: pd.Series) -> pd.Series:
    """Return labels as `label_texts` makes them, with NaN in place of texts that mean no label."""
    return texts.mask(
        texts.isin([text for text in texts.dropna().unique() if means_no_label(text)])
    )


def visible(text: str) -> str:
    """Return a text without characters that have no width, and without blanks around it."""
    if not text.isascii():
        text = "".join(letter for letter in text if unicodedata.category(letter) != NO_WIDTH)
    return text.strip()


def spelling(text: str) -> str:
    """Return a name in the form for comparisons, in which spellings of one name are equal.

    It has lower case and single blanks. Quotes, a number of cells ("(n=5)"), plurals, "cell" at the end, hyphens,
    underscores, dots, commas, and + or "positive" behind a marker are left out, so that "CD8-positive, alpha-beta T
    cells" and "CD8+.alpha.beta_T" are the same.
    """
    key = re.sub(
        "[\u2010-\u2015\u2212]", "-", unicodedata.normalize("NFKC", visible(text)).casefold()
    )
    key = re.sub(r"[_.\s]+", " ", NUM_CELLS.sub("", QUOTED.sub(r"\1", key))).strip()
    key = re.sub(r"-(?=[\s,/)]|$)", " negative ", key)  # CD16- is not CD16
    key = re.sub(r"(?<=\w)\+(?=\W|$)|(?<=\d)\+|[- ]positive\b", " ", key)
    words = re.sub(r"[-,\s]+", " ", key).strip()
    words = re.sub(r"(?<=[^\W\d]{2})s$", "", re.sub(r"\bcells\b", "cell", words))
    return re.sub("(?<=..) cell$", "", words)  # but D may be a cluster where "D cell" is a type


def spellings(labels: Iterable[str]) -> dict[str, str | None]:
    """Return the spelling of each label; labels with equal ones are the same.

    A `PLAIN_NAME` has that of the only other label with its letters, as it lost all signs: None if there are several,
    such as CD16+ and CD16- for CD16..mono. Names without letters, such as -1 and 1, are their own spellings.
    """
    spelled = {
        label: spelling(label) if any(map(str.isalpha, label)) else label for label in labels
    }
    signed: dict[str, set[str]] = {}
    for label, key in spelled.items():
        if PLAIN_NAME.fullmatch(label) is None:
            signed.setdefault(_letters(key), set()).add(key)
    unique: dict[str, str | None] = {}
    for label, key in spelled.items():
        choices = signed.get(_letters(key), {key}) if PLAIN_NAME.fullmatch(label) else {key}
        unique[label] = next(iter(choices)) if len(choices) == 1 else None
    return unique


def _letters(spelled: str) -> str:
    words = re.sub(r"[\W_]+", " ", spelled.replace(" negative", " ")).strip()
    return re.sub(r"^x(?=\d)", "", words)  # R puts X before a digit


def spelled_as(labels: Collection[str], texts: Iterable[str]) -> list[str]:
    """Return each text as `labels` have it; one that is none of them, or may be several, stays without blanks around.

    Texts are compared by their `spellings`.
    """
    texts = list(map(visible, texts))
    spelled = spellings([*labels, *texts])
    alike: dict[str | None, set[str]] = {}
    for label in labels:
        alike.setdefault(spelled[label], set()).add(label)
    result = []
    for text in texts:
        same = set() if spelled[text] is None else alike.get(spelled[text], set())
        result.append(
            text if text in labels else next(iter(same)) if len(same) == 1 else _whole(text)
        )
    return result


def _whole(text: str) -> str:
    match = WHOLE.fullmatch(text)
    return text if match is None else match[1]
