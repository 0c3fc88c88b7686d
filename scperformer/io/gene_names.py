"""Names of genes: kinds of gene id, compound names, species, and repeated names."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.messages import shortened
from scperformer.io.gene_table import human_genes

# ENS, a species code of up to four letters (none for human), G and digits
ENSEMBL = r"ENS[A-Z]{0,4}G\d{6,}"
VERSION = r"\.\d+(?:_PAR_Y)?"  # GENCODE marks copies on Y with _PAR_Y
KIND_NAMES = {
    "symbol": "gene symbols",
    "ensembl": "Ensembl ids",
    "unknown": "names of an unknown kind",
}
# Compound names such as ENSG00000167286_CD3D and CD3D_ENSG00000167286.9, with any of the usual separators.
ID_FIRST = re.compile(
    rf"(?P<id>{ENSEMBL})(?:{VERSION})?(?:[_|;:,/ (-]+(?P<symbol>.+?)\)?)?", re.IGNORECASE
)
ID_LAST = re.compile(
    rf"(?P<symbol>.+?)[_|;:,/ (-]+(?P<id>{ENSEMBL})(?:{VERSION})?\)?", re.IGNORECASE
)
ANY_ID = re.compile(ENSEMBL, re.IGNORECASE)
MISSING_NAMES = ("", "nan", "none", "<na>")  # as files store them, in lower case
SPECIES_OF_PREFIX = {"ENSG": "human", "ENSMUSG": "mouse"}
MOUSE_SYMBOL = re.compile(r"[A-Z][a-z]|mt-[A-Z]")  # the first letters, as in Gapdh and mt-Nd1
# Of symbols in lower case, the share that are known of the human: .9 or more of a human or mouse file. Zebrafish has
# .55, as it has two genes for many of one; names such as gene12 tell nothing.
MIN_KNOWN, MIN_TOLD = 0.75, 0.1


def id_kind(names: Sequence[str]) -> str:
    """Return the kind of gene id of most names, a key of `KIND_NAMES`; unknown if most are numbers or empty."""
    series = pd.Series(list(names), dtype=str)
    if series.empty:
        return "unknown"
    if series.str.fullmatch(f"{ENSEMBL}({VERSION})?", case=False).mean() > 0.5:
        return "ensembl"
    letters = series.str.contains("[A-Za-z]", regex=True).mean()
    return "symbol" if letters > 0.5 else "unknown"


def ids_and_symbols(names: Sequence[str]) -> tuple[list[str | None], list[str | None]]:
    """Return the Ensembl id in each name (upper case, without version), and its symbol; None if a name has none."""
    # one search is faster than one for each of 30,000 symbols
    if not ANY_ID.search("\n".join(names)):
        return [None] * len(names), [name or None for name in names]
    matches = [ID_FIRST.fullmatch(name) or ID_LAST.fullmatch(name) for name in names]
    ids = [match["id"].upper() if match else None for match in matches]
    return ids, [
        match["symbol"] if match else name or None
        for match, name in zip(matches, names, strict=True)
    ]


def guess_species(names: Sequence[str]) -> str:
    """Return the species of most names: human, mouse, other (by Ensembl ids or symbols in lower case) or unknown."""
    ids, symbols = ids_and_symbols(names)
    prefixes = Counter(identifier.rstrip("0123456789") for identifier in ids if identifier)
    if prefixes.total() > len(ids) / 2:
        return SPECIES_OF_PREFIX.get(prefixes.most_common(1)[0][0], "other")
    # Symbols differ in capitals (GAPDH and Gapdh, MT-ND1 and mt-Nd1); gapdh may be either.
    with_letters = [symbol for symbol in symbols if symbol and any(map(str.isalpha, symbol))]
    if sum(map(str.isupper, with_letters)) > len(with_letters) / 2:
        return "human"
    # no clones
    in_lower = [symbol.upper() for symbol in with_letters if symbol.islower() and "." not in symbol]
    if len(in_lower) > len(with_letters) / 2:
        table = human_genes()
        known = np.mean([name in table.upper_ids or name in table.former for name in in_lower])
        return "other" if MIN_TOLD <= known < MIN_KNOWN else "unknown"
    num_mouse = sum(bool(MOUSE_SYMBOL.match(symbol)) for symbol in with_letters)
    return "mouse" if num_mouse > len(with_letters) / 2 else "unknown"


def require_named(names: Sequence[str], where: str) -> None:
    """Refuse several genes without a name: repeated names are summed as one gene, but these are different genes."""
    num_missing = sum(name.lower() in MISSING_NAMES for name in names)
    if num_missing > 1:
        remedy = "drop these genes, or use other names as var_names, and save the file"
        found = f"{num_missing} genes of {where} have an empty name or NaN"
        raise InputError("unnamed-genes", found, "a name for every gene", remedy)


def repeated_note(names: Sequence[str]) -> list[str]:
    """Return a list with a note on names that occur more than once; an empty list if all are unique."""
    repeated = [name for name, num in Counter(names).items() if num > 1]
    examples = ", ".join(repr(shortened(name)) for name in repeated[:3])
    note = (
        f"{len(repeated):,} gene names occur more than once ({examples}): their values are added up"
    )
    return [note] if repeated else []


def first_of_each(keys: Sequence[str] | np.ndarray) -> np.ndarray:
    """Return the position of the first equal key for each key, int64."""
    codes, _ = pd.factorize(np.asarray(keys), use_na_sentinel=False)
    _, first = np.unique(codes, return_index=True)
    return first[codes]
