"""The spelling of labels, the same for all sources: columns of obs, tables of text, options."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import shortened

CONTAINERS = (list, tuple, set, frozenset, dict, np.ndarray)
# Words that say that a cell has no label, or is no single cell, and words that may stand beside them.
NO_LABEL = (
    r"un ?(known|assigned|classified|annotated|labell?ed|defined|determined|identified|resolved)|"
    r"not (assigned|annotated|available|applicable|determined)|no (label|annotation)|"
    r"doublets?|multiplets?|low ?quality|low ?qual|empty droplets?|n ?a|nan|nat|none|null"
)
BESIDE = r"cells?|cell ?types?|types?|labels?|clusters?|identity|or|and"
MEANS_NO_LABEL = re.compile(rf"(?=.*\b({NO_LABEL})\b)(({NO_LABEL}|{BESIDE})( |$))+|[-?.*\s\u2013\u2014]*")
# pandas stores whole numbers with a missing value as floats: clusters 1, 2, ... then are 1.0, 2.0, ...
WHOLE = re.compile(r"([+-]?\d+)(\.0+)?")


def label_texts(values: pd.Series) -> pd.Series:
    """Return labels as strings without surrounding blanks; NaN for a missing or blank label.

    If all values are whole numbers, as numbers or as text, they lose their decimals: 1.0 becomes "1". Values may be
    strings, bytes, numbers, categories of these, or of a nullable type of pandas; containers are refused.
    """
    require_no_containers(values)
    codes, distinct = pd.factorize(values)  # so that each label is processed once, not once per cell
    decoded = (
        value.decode(errors="replace") if isinstance(value, bytes) else value
        for value in np.asarray(distinct, dtype=object)
    )
    texts = [str(value).strip() for value in decoded]
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
        found = f"a {type(container).__name__} in column '{values.name}' (e.g. {shortened(container)})"
        expected = "a text or a number for each cell"
        raise InputError("container-values", found, expected, "convert the column, for example to strings")


def means_no_label(text: str) -> bool:
    """Whether a text says that a cell has no label or is no single cell: "Unknown cell", "unassigned", "NA", "-"."""
    words = re.sub(r"[\W_]+", " ", text.casefold()).strip()
    return MEANS_NO_LABEL.fullmatch(words or text) is not None


def without_no_labels(texts: pd.Series) -> pd.Series:
    """Return labels as `label_texts` makes them, with NaN in place of texts that mean no label."""
    return texts.mask(texts.isin([text for text in texts.dropna().unique() if means_no_label(text)]))


def spelled_as(labels: Sequence[str], texts: Iterable[str]) -> list[str]:
    """Return each text as the model spells this label; a text that is not a label stays, without blanks around it."""
    return [text if text in labels else _whole(text.strip()) for text in texts]


def _whole(text: str) -> str:
    match = WHOLE.fullmatch(text)
    return text if match is None else match[1]
