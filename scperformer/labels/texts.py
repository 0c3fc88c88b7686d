"""The text of a label, the same wherever labels come from: columns of obs, tables of text, options."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

# pandas stores whole numbers with a missing value as floats: clusters 1, 2, ... then are 1.0, 2.0, ...
WHOLE = re.compile(r"([+-]?\d+)(\.0+)?")


def label_texts(values: pd.Series) -> pd.Series:
    """Return labels as strings without surrounding blanks; NaN for a missing or blank label.

    Values that are all whole numbers, as numbers or as text, lose their decimals: 1.0 is "1". They may be of any kind:
    texts, bytes, numbers, categories of these, and the types of pandas that can be missing.
    """
    codes, found = pd.factorize(values)  # a label of many cells is looked at once
    texts = [_text(value) for value in np.asarray(found, dtype=object)]
    if all(WHOLE.fullmatch(text) for text in texts if text):
        texts = [_whole(text) for text in texts]
    # The last entry is the text of missing values, whose code is -1.
    names = np.array([*(text or np.nan for text in texts), np.nan], dtype=object)
    return pd.Series(names[codes], index=values.index, dtype=object, name=values.name)


def spelled_as(labels: Sequence[str], texts: Iterable[str]) -> list[str]:
    """Return each text as a model spells the label that it means, or as it is where it means none.

    Models of earlier versions may have labels such as "1.0".
    """
    own = {_whole(label): label for label in labels} | {label: label for label in labels}
    return [own.get(text, own.get(_whole(text.strip()), text)) for text in texts]


def _text(value: object) -> str:
    return (value.decode(errors="replace") if isinstance(value, bytes) else str(value)).strip()


def _whole(text: str) -> str:
    match = WHOLE.fullmatch(text)
    return text if match is None else match[1]
