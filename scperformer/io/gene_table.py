"""The table of human genes in the package: ids, current and former symbols, mouse orthologs."""

import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# from HGNC's complete set, GENCODE 44 and Ensembl 105
GENE_TABLE = Path(__file__).with_name("gene_table.tsv.gz")


@dataclass(frozen=True)
class HumanGenes:
    """Human genes by their ids and names; names of several genes are left out."""

    symbols: dict[str, str]  # GENCODE: Ensembl id -> symbol
    ids: dict[str, str]  # GENCODE: symbol -> Ensembl id
    upper_ids: dict[str, str]  # GENCODE: symbol in upper case -> Ensembl id
    current: dict[str, str]  # HGNC: Ensembl id -> current symbol
    approved: frozenset[str]  # HGNC: all current symbols
    # HGNC: previous symbol or alias, in upper case and not current -> current symbol
    former: dict[str, str]
    orthologs: dict[str, str]  # Ensembl 105: mouse symbol -> human symbol
    hgnc_date: str  # date of the last change of HGNC's table


def parse_genes(lines: Sequence[str]) -> HumanGenes:
    """Index the lines of the table that `data/make_gene_table.py` wrote."""
    rows = [line.rstrip("\n") for line in lines if not line.startswith("#")][1:]
    # a list for each of 45,000 rows would keep the garbage collector busy
    fields = "\t".join(rows).split("\t")
    identifiers, names, current, previous, aliases, mouse = (
        fields[column::6] for column in range(6)
    )
    symbols = dict(pair for pair in zip(identifiers, names, strict=True) if all(pair))
    ids = unambiguous((symbol, identifier) for identifier, symbol in symbols.items())
    approved = frozenset(filter(None, current))
    approved_upper = {symbol.upper() for symbol in approved}
    others = zip(current * 2, "\n".join([*previous, *aliases]).upper().split("\n"), strict=True)
    former = unambiguous(
        (name, now) for now, joined in others if joined for name in joined.split("|") if name
    )
    return HumanGenes(
        symbols=symbols,
        ids=ids,
        upper_ids=unambiguous((symbol.upper(), identifier) for symbol, identifier in ids.items()),
        current=one_to_one(pair for pair in zip(identifiers, current, strict=True) if all(pair)),
        approved=approved,
        former={name: now for name, now in former.items() if name not in approved_upper},
        orthologs={other: human for other, human in zip(mouse, names, strict=True) if other},
        hgnc_date=lines[0].split()[2],
    )


@cache
def human_genes() -> HumanGenes:
    """Read the table of human genes."""
    with gzip.open(GENE_TABLE, "rt", encoding="utf-8") as file:
        return parse_genes(file.readlines())


def unambiguous(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the mapping of the pairs without keys that have several values; a pair may be given several times."""
    pairs = list(pairs)
    values = dict(pairs)
    if len(values) < len(pairs):
        for ambiguous in {key for key, value in pairs if values[key] != value}:
            del values[ambiguous]
    return values


def one_to_one(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the mapping of the pairs whose names occur in no other pair; a pair may be given several times."""
    pairs = list(pairs)
    back = unambiguous((value, key) for key, value in pairs)
    return {key: value for key, value in unambiguous(pairs).items() if value in back}
