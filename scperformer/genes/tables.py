"""The package's table of human genes: Ensembl ids, symbols, previous symbols, aliases and mouse orthologs.

`data/make_gene_table.py` makes it from HGNC's complete set, GENCODE 44 and Ensembl 105.
"""

import gzip
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TABLE = Path(__file__).with_name("gene_table.tsv.gz")


@dataclass(frozen=True)
class HumanGenes:
    """Human genes by their ids and names; names that fit several genes are left out."""

    symbols: dict[str, str]  # GENCODE: the symbol of an Ensembl id
    ids: dict[str, str]  # GENCODE: the Ensembl id of a symbol
    folded: dict[str, str]  # as `ids`, for symbols in upper case
    current: dict[str, str]  # HGNC: the current symbol of an Ensembl id
    approved: frozenset[str]  # HGNC: all current symbols
    former: dict[str, str]  # HGNC: the current symbol of a previous symbol or alias (upper case) that is not current
    orthologs: dict[str, str]  # Ensembl 105: the human symbol of a mouse symbol
    hgnc_date: str  # day of HGNC's last change in the table


def parse_genes(lines: Sequence[str]) -> HumanGenes:
    """Index the lines of a table that `data/make_gene_table.py` wrote."""
    rows = [line.rstrip("\n").split("\t") for line in lines if not line.startswith("#")][1:]
    symbols = {identifier: symbol for identifier, symbol, *_ in rows if identifier and symbol}
    ids = one_to_one((symbol, identifier) for identifier, symbol in symbols.items())
    approved = frozenset(current for _, _, current, *_ in rows if current)
    taken = {symbol.upper() for symbol in approved}
    others = ((current, f"{previous}|{aliases}".split("|")) for _, _, current, previous, aliases, _ in rows)
    renamed = {(name.upper(), current) for current, names in others for name in names if name}
    num_genes = Counter(name for name, _ in renamed)
    return HumanGenes(
        symbols=symbols,
        ids=ids,
        folded=one_to_one((symbol.upper(), identifier) for symbol, identifier in ids.items()),
        current=one_to_one((identifier, current) for identifier, _, current, *_ in rows if identifier and current),
        approved=approved,
        former={name: current for name, current in renamed if num_genes[name] == 1 and name not in taken},
        orthologs={mouse: human for _, human, *_, mouse in rows if mouse},
        hgnc_date=lines[0].split()[2],
    )


@cache
def human_genes() -> HumanGenes:
    """Read the package's table of human genes."""
    with gzip.open(TABLE, "rt", encoding="utf-8") as file:
        return parse_genes(file.readlines())


def one_to_one(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the pairs whose names occur in no other pair; a pair may be given several times."""
    distinct = set(pairs)
    left, right = Counter(a for a, _ in distinct), Counter(b for _, b in distinct)
    return {a: b for a, b in distinct if left[a] == right[b] == 1}
