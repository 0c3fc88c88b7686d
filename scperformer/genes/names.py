"""Names of genes: their kind of id, their parts, how R writes them, their species, and repeated names."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import shortened

# ENS, a species code of up to four letters (none for human), G, digits; a version, and GENCODE's mark of copies on Y
ENSEMBL = r"ENS[A-Z]{0,4}G\d{6,}"
VERSION = r"\.\d+(?:_PAR_Y)?"
KIND_NAMES = {"symbol": "gene symbols", "ensembl": "Ensembl ids"}
KIND_NAMES |= {"ensembl_versioned": "Ensembl ids with versions", "unknown": "names of an unknown kind"}
# ENSG00000167286_CD3D and CD3D_ENSG00000167286.9, with any of the usual separators.
ID_FIRST = re.compile(rf"(?P<id>{ENSEMBL})(?:{VERSION})?(?:[_|;:,/ (-]+(?P<symbol>.+?)\)?)?", re.IGNORECASE)
ID_LAST = re.compile(rf"(?P<symbol>.+?)[_|;:,/ (-]+(?P<id>{ENSEMBL})(?:{VERSION})?\)?", re.IGNORECASE)
ANY_ID = re.compile(ENSEMBL, re.IGNORECASE)
BLANK = ("", "nan", "none", "<na>")  # missing names, as files store them
SPECIES = {"ENSG": "human", "ENSMUSG": "mouse"}
MOUSE_SYMBOL = re.compile(r"[A-Z][a-z]|mt-[A-Z]")  # its beginning: Gapdh, mt-Nd1


def id_kind(names: Sequence[str]) -> str:
    """Return the kind of gene id of most names, a key of `KIND_NAMES`; unknown: mostly numbers, or empty names."""
    series = pd.Series(list(names), dtype=str)
    if series.empty:
        return "unknown"
    versioned = series.str.fullmatch(ENSEMBL + VERSION, case=False).mean()
    plain = series.str.fullmatch(ENSEMBL, case=False).mean()
    if versioned + plain > 0.5:
        return "ensembl_versioned" if versioned > plain else "ensembl"
    letters = series.str.contains("[A-Za-z]", regex=True).mean()
    return "symbol" if letters > 0.5 else "unknown"


def parts(name: str) -> tuple[str | None, str | None]:
    """Return the Ensembl id in a name (upper case, without version) and the symbol; None for an absent part."""
    if "ENS" not in name.upper():
        return None, name or None
    found = ID_FIRST.fullmatch(name) or ID_LAST.fullmatch(name)
    return (found["id"].upper(), found["symbol"]) if found else (None, name)


def all_parts(names: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Return the `parts` of each name."""
    if not ANY_ID.search("\n".join(names)):  # a search instead of one for each of 30,000 symbols
        return [(None, name or None) for name in names]
    return [parts(name) for name in names]


def as_in_r(name: str) -> str:
    """Return a name as R's make.names writes it: dots for other characters, X in front of a digit (X5S_rRNA, HLA.A)."""
    if name.isalnum() and name[0].isalpha():
        return name
    valid = re.sub(r"[^\w.]", ".", name)
    return valid if re.match(r"[^\W\d_]|\.(?!\d)", valid) else f"X{valid}"


def guess_species(names: Sequence[str]) -> str:
    """Return the species of most names: human, mouse, other (Ensembl ids of neither) or unknown."""
    split = all_parts(names)
    prefixes = Counter(identifier.rstrip("0123456789") for identifier, _ in split if identifier)
    if prefixes.total() > len(split) / 2:
        return SPECIES.get(prefixes.most_common(1)[0][0], "other")
    # Symbols differ in their capitals (GAPDH and Gapdh, MT-ND1 and mt-Nd1); gapdh may be either.
    symbols = [symbol for _, symbol in split if symbol and any(map(str.isalpha, symbol))]
    if sum(symbol.isupper() for symbol in symbols) > len(symbols) / 2:
        return "human"
    return "mouse" if sum(bool(MOUSE_SYMBOL.match(symbol)) for symbol in symbols) > len(symbols) / 2 else "unknown"


def require_unique(names: Sequence[str], where: str) -> None:
    """Refuse repeated names in a list that defines genes."""
    index = pd.Index(names)
    repeated = index[index.duplicated()].unique()
    if len(repeated):
        examples = ", ".join(repr(str(name)) for name in repeated[:3])
        found = f"{len(repeated)} gene names occur more than once in {where} (e.g. {examples})"
        raise InputError(found, "unique gene names", "remove the repetitions")


def require_named(names: Sequence[str], where: str) -> None:
    """Refuse several genes without a name: equal names are one gene, but these are not."""
    num = sum(name.lower() in BLANK for name in names)
    if num > 1:
        remedy = "drop these genes, or use other names as var_names, and save the file"
        raise InputError(f"{num} genes of {where} have an empty name or NaN", "a name for every gene", remedy)


def repeated_note(names: Sequence[str]) -> list[str]:
    """Return a note on names that occur more than once; none if all are unique."""
    repeated = [name for name, num in Counter(names).items() if num > 1]
    examples = ", ".join(repr(shortened(name)) for name in repeated[:3])
    note = f"{len(repeated):,} gene names occur more than once ({examples}): their values are added up"
    return [note] if repeated else []


def first_of_each(keys: Sequence[str] | np.ndarray) -> np.ndarray:
    """Return for each key the position of the first equal key, int64."""
    codes, _ = pd.factorize(np.asarray(keys), use_na_sentinel=False)
    _, first = np.unique(codes, return_index=True)
    return first[codes]
