"""The package's table of human genes: ids, current and former symbols, mouse orthologs."""

import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from scperformer.genes.names import as_in_r

GENE_TABLE = Path(__file__).with_name("gene_table.tsv.gz")  # of HGNC's complete set, GENCODE 44 and Ensembl 105


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

    @cached_property
    def in_r(self) -> dict[str, str]:
        """The Ensembl id of a symbol as R writes it, if that differs."""
        written = ((as_in_r(symbol), symbol, identifier) for symbol, identifier in self.ids.items())
        return of_one((own, identifier) for own, symbol, identifier in written if own != symbol and own not in self.ids)


def parse_genes(lines: Sequence[str]) -> HumanGenes:
    """Index the lines of a table that `data/make_gene_table.py` wrote."""
    rows = [line.rstrip("\n") for line in lines if not line.startswith("#")][1:]
    fields = "\t".join(rows).split("\t")  # not row by row: Python looks at 45,000 lists again and again to find garbage
    identifiers, names, current, previous, aliases, mouse = (fields[column::6] for column in range(6))
    symbols = dict(pair for pair in zip(identifiers, names, strict=True) if all(pair))
    ids = of_one((symbol, identifier) for identifier, symbol in symbols.items())
    approved = frozenset(filter(None, current))
    taken = {symbol.upper() for symbol in approved}
    others = zip(current * 2, "\n".join([*previous, *aliases]).upper().split("\n"), strict=True)
    renamed = of_one((name, now) for now, joined in others if joined for name in joined.split("|") if name)
    return HumanGenes(
        symbols=symbols,
        ids=ids,
        folded=of_one((symbol.upper(), identifier) for symbol, identifier in ids.items()),
        current=one_to_one(pair for pair in zip(identifiers, current, strict=True) if all(pair)),
        approved=approved,
        former={name: now for name, now in renamed.items() if name not in taken},
        orthologs={other: human for other, human in zip(mouse, names, strict=True) if other},
        hgnc_date=lines[0].split()[2],
    )


@cache
def human_genes() -> HumanGenes:
    """Read the package's table of human genes, which `data/make_gene_table.py` makes."""
    with gzip.open(GENE_TABLE, "rt", encoding="utf-8") as file:
        return parse_genes(file.readlines())


def of_one(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the pairs whose first name has a single second one; a pair may be given several times."""
    pairs = list(pairs)
    found = dict(pairs)
    if len(found) < len(pairs):
        for several in {a for a, b in pairs if found[a] != b}:
            del found[several]
    return found


def one_to_one(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the pairs whose names occur in no other pair; a pair may be given several times."""
    pairs = list(pairs)
    back = of_one((b, a) for a, b in pairs)
    return {a: b for a, b in of_one(pairs).items() if b in back}
