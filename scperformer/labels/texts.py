"""The spelling of labels, the same for all sources: columns of obs, tables of text, options."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

# pandas stores whole numbers with a missing value as floats: clusters 1, 2, ... then are 1.0, 2.0, ...
WHOLE = re.compile(r"([+-]?\d+)(\.0+)?")


def label_texts(values: pd.Series) -> pd.Series:
    """Return labels as strings without surrounding blanks; NaN for a missing or blank label.

    If all values are whole numbers, as numbers or as text, they lose their decimals: 1.0 becomes "1". Values may be
    strings, bytes, numbers, categories of these, or of a nullable type of pandas.
    """
    codes, distinct = pd.factorize(values)  # so that each label is processed once, not once per cell
    texts = [_text(value) for value in np.asarray(distinct, dtype=object)]
    if all(WHOLE.fullmatch(text) for text in texts if text):
        texts = [_whole(text) for text in texts]
    # Missing values have the code -1, which is the last entry.
    names = np.array([*(text or np.nan for text in texts), np.nan], dtype=object)
    return pd.Series(names[codes], index=values.index, dtype=object, name=values.name)


def spelled_as(labels: Sequence[str], texts: Iterable[str]) -> list[str]:
    """Return each text as the model spells this label; a text that is not a label is returned unchanged.

    Models of earlier versions may have labels such as "1.0".
    """
    own = {_whole(label): label for label in labels} | {label: label for label in labels}
    return [own.get(text, own.get(_whole(text.strip()), text)) for text in texts]


def _text(value: object) -> str:
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip()


def _whole(text: str) -> str:
    match = WHOLE.fullmatch(text)
    return text if match is None else match[1]
