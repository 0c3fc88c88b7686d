"""Tables of gene names that come with an installed package: Ensembl ids and symbols, mouse and human orthologs.

CellTypist (MIT licence) ships them as data. Only these files are read; the package itself is not imported.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from scperformer.errors import InputError

PACKAGE = "celltypist"
GENCODE, ORTHOLOGS = "GENCODEv44_Gene_id2name.csv", "Ensembl105_Human2Mouse_Genes.csv"
REMEDY = f"install the package again: pip install --force-reinstall {PACKAGE}"


@dataclass(frozen=True)
class Gencode:
    """Human genes of GENCODE 44: the symbol of an Ensembl id, and the id of a symbol that is one gene's alone.

    `folded` has the same for symbols in upper case.
    """

    symbols: dict[str, str]
    ids: dict[str, str]
    folded: dict[str, str]


@cache
def gencode() -> Gencode | None:
    """GENCODE's ids and symbols; None where the package is not installed.

    Raises
    ------
    InputError
        The file is not what it should be.
    """
    rows = _rows(GENCODE)
    if rows is None:
        return None
    symbols = {identifier: symbol for identifier, symbol in rows if symbol and symbol != identifier}
    ids = one_to_one((symbol, identifier) for identifier, symbol in symbols.items())
    return Gencode(symbols, ids, one_to_one((symbol.upper(), identifier) for symbol, identifier in ids.items()))


@cache
def orthologs() -> dict[str, str]:
    """Human symbol of each mouse symbol, of genes that have one partner only on both sides (Ensembl 105).

    Raises
    ------
    InputError
        The package is not installed, or the file is not what it should be.
    """
    rows = _rows(ORTHOLOGS)
    if rows is None:
        found = "no table of orthologs (the package celltypist is not installed)"
        raise InputError(found, "it, to take mouse genes for human ones", f"pip install {PACKAGE}")
    return one_to_one((mouse, human) for human, mouse in rows if human and mouse)


def one_to_one(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The pairs of which neither side stands in another pair; a pair may be given several times."""
    distinct = set(pairs)
    left, right = Counter(a for a, _ in distinct), Counter(b for _, b in distinct)
    return {a: b for a, b in distinct if left[a] == right[b] == 1}


def _rows(name: str) -> list[tuple[str, str]] | None:
    """The rows of one of the tables, two texts each; None where there is no such file."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "data" / "samples" / name
    if not path.is_file():
        return None
    rows = [line.split(",") for line in path.read_text(encoding="utf-8", errors="replace").splitlines()]
    if not rows or any(len(row) != 2 for row in rows):
        raise InputError(f"{name} of {PACKAGE} has rows that are not two names", "its table of genes", REMEDY)
    return [(first.strip(), second.strip()) for first, second in rows]
