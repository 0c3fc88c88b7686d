"""Matching the genes of a file to those of a model, whatever names each of them uses, with a table of human genes."""

import gzip
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from scperformer.errors import InputError
from scperformer.genes.names import all_parts, first_of_each, guess_species, id_kind, repeated_note, without_genome

TABLE = Path(__file__).with_name("gene_table.tsv.gz")  # of HGNC's complete set, GENCODE 44 and Ensembl 105
# Columns of var that hold names of genes, as CELLxGENE, 10x, scanpy, Seurat and others call them.
NAME_COLUMNS = (
    *("feature_name", "feature_id", "gene_ids", "gene_id", "gene_symbols", "gene_symbol", "gene_names", "gene_name"),
    *("symbol", "symbols", "hgnc_symbol", "gene_short_name", "gene", "genes", "features", "name", "names", "_index"),
    *("ensembl_id", "ensembl_ids", "ensembl", "ensembl_gene_id", "ensembl_gene_ids", "ensg", "ensgid"),
)
EXACT, ORTHOLOG, COLUMN = "exact", "ortholog", "var column "
# Way in which genes were matched -> a sentence about `many` of them.
SENTENCES = {
    "version removed": "{many} Ensembl ids were matched without their versions",
    "part of a compound name": "{many} names were matched by a part of them (the Ensembl id or the symbol)",
    "symbol<->Ensembl by GENCODE": "{many} genes were translated between Ensembl ids and symbols (GENCODE 44)",
    "case": "{many} names were matched in upper case",
    "symbol<->Ensembl by HGNC": "{many} genes were translated between Ensembl ids and symbols (HGNC, {date})",
    "previous symbol or alias": "{many} genes were matched by a previous symbol or alias (HGNC, {date})",
    ORTHOLOG: "{many} genes were matched to their only ortholog in the other species (Ensembl 105)",
}


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
    with gzip.open(TABLE, "rt", encoding="utf-8") as file:
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


@dataclass(frozen=True, kw_only=True)
class GeneMap:
    """The gene of a model to which each gene of a file is matched."""

    target: np.ndarray  # int64, the column of the model for each gene of the file; -1: none
    how: np.ndarray  # way of the match: "exact", a key of `SENTENCES`, "var column NAME"; "" without a match
    notes: list[str]  # sentences for people, with counts
    species: str  # of the file: human, mouse, other or unknown, as given or guessed

    @cached_property
    def first(self) -> np.ndarray:
        """For each gene of the file, the first one matched to the same gene; itself if it is not matched."""
        own = -1 - np.arange(len(self.target))
        return first_of_each(np.where(self.target >= 0, self.target, own))


class _Names(NamedTuple):
    """The names of some genes, and the Ensembl id and the symbol in each of them."""

    names: Sequence[str]
    ids: list[str | None]
    symbols: list[str | None]


def _split(names: Sequence[str]) -> _Names:
    split = all_parts(names)
    return _Names(names, [identifier for identifier, _ in split], [symbol for _, symbol in split])


class _Claim(NamedTuple):
    """One way to match: a gene of the file goes to the only gene of the model that has the same key."""

    how: str
    keys: Sequence[str | None]  # of the file; None: this way cannot match the gene
    wanted: Sequence[str | None]  # of the model
    sure: bool = True  # False: only for genes of the model that are still without a gene of the file


def map_genes(
    names: Sequence[str],
    model_genes: Sequence[str],
    var: pd.DataFrame | None = None,
    species: str = "auto",
    *,
    path: str | Path = "the data",
) -> GeneMap:
    """Find the genes of a file among those of a model.

    The surest way comes first: the name itself, the Ensembl id without version, the parts of a compound name, the names
    in `var` (the file's table of genes), translation between ids and symbols. Less sure ways only match genes of the
    model that have no match yet: names that differ in case only, if no other name does, and previous symbols or
    aliases, if they fit one gene alone and are not the current symbol of another. Repeated names are one gene.

    If the `species` of the file is given and differs from the model's, genes are matched by orthologs. With `auto`, a
    file of another species than the model is refused.
    """
    of_model = guess_species(model_genes)
    names, genome = without_genome([str(name).strip() for name in names], of_model if species == "auto" else species)
    columns = name_columns(var)
    of_file = species
    if species == "auto":
        guesses = (guess_species(values) for values in (names, *columns.values()))
        of_file = next((guess for guess in guesses if guess != "unknown"), "unknown")
        differ = "unknown" not in (of_file, of_model) and of_file != of_model
        if differ and 2 * len({*names} & {gene.strip() for gene in model_genes}) < len(model_genes):
            ours, theirs = names[len(names) // 2], model_genes[len(model_genes) // 2]
            found = f"gene names in {path} that look {of_file} (e.g. '{ours}') for a model whose genes look {of_model} "
            remedy, fixes = "use a model of the same species", []
            if of_model != "other":
                remedy += f", or add species={of_model} if these are {of_model} genes"
                fixes.append(f"species={of_model}")
            if {of_file, of_model} == {"human", "mouse"} and (columns or id_kind(names) == "symbol"):
                remedy += f", or species={of_file} to match genes by their orthologs"  # by symbol
                fixes.insert(0, f"species={of_file}")
            raise InputError(f"{found}(e.g. '{theirs}')", "cells of the species of the model", remedy, fixes)
    crossed = species != "auto" and {of_file, of_model} == {"human", "mouse"}
    is_human = of_model in ("human", "unknown") and (crossed or of_file in ("human", "unknown"))

    named = tuple((name, tuple(values)) for name, values in columns.items())
    model = tuple(str(gene).strip() for gene in model_genes)
    target, how = _matched(tuple(names), model, named, of_model if crossed else None, is_human)
    notes = [*genome, *repeated_note(names)]
    for way, num in Counter(how[how != ""].tolist()).items():
        if way.startswith(COLUMN):
            notes.append(f"names of {num:,} genes were taken from var['{way.removeprefix(COLUMN)}']")
        elif way != EXACT:
            date = human_genes().hgnc_date if "{date}" in SENTENCES[way] else ""
            notes.append(SENTENCES[way].format(many=f"{num:,}", date=date))
    distinct = set(zip(names, target.tolist(), strict=True))
    sums = sum(num > 1 for num in Counter(column for _, column in distinct if column >= 0).values())
    if sums:
        notes.append(f"{sums:,} genes of the model are sums of several genes of the file")
    return GeneMap(target=target, how=how, notes=notes, species=of_file)


@lru_cache(maxsize=2)  # the samples of a run often have the same genes
def _matched(
    names: tuple[str, ...],
    model_genes: tuple[str, ...],
    columns: tuple[tuple[str, tuple[str, ...]], ...],
    crossed_to: str | None,
    is_human: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return `target` and `how` of a `GeneMap`; the options are those of `_claims`."""
    target, how = np.full(len(names), -1, dtype=np.int64), np.full(len(names), "", dtype=object)
    num_genes = len(set(model_genes))

    def is_full() -> bool:
        return len(np.unique(target[target >= 0])) == num_genes

    for claim in _claims(_split(names), _split(model_genes), dict(columns), crossed_to, is_human, is_full):
        unmatched = np.flatnonzero(target < 0).tolist()
        if not unmatched:
            break
        times = Counter(claim.wanted)
        once = ((key, column) for column, key in enumerate(claim.wanted) if key is not None and times[key] == 1)
        place: dict[str | None, int] = dict(once)
        taken = set() if claim.sure else set(target[target >= 0].tolist())
        for gene in unmatched:
            column = place.get(claim.keys[gene], -1)
            if column >= 0 and column not in taken:
                target[gene], how[gene] = column, claim.how
    if crossed_to:
        how[target >= 0] = ORTHOLOG
    target.flags.writeable = how.flags.writeable = False  # shared by all callers
    return target, how


def _claims(
    file: _Names,
    model: _Names,
    columns: Mapping[str, Sequence[str]],
    crossed_to: str | None,
    is_human: bool,
    is_full: Callable[[], bool],
) -> Iterator[_Claim]:
    """Yield all ways to match, the surest first; `is_human`: the table of human genes can be used.

    `is_full`: whether each gene of the model has a match by now.

    If the file is of the other species than the model, `crossed_to` is the model's, and the file's symbols are replaced
    by those of their orthologs.
    """
    if crossed_to:
        file = _orthologs(file, columns, crossed_to)
        yield _Claim(ORTHOLOG, file.symbols, model.symbols)
    else:
        yield _Claim(EXACT, file.names, model.names)
        bare, model_bare = (
            [None if symbol else own for own, symbol in zip(genes.ids, genes.symbols, strict=True)]
            for genes in (file, model)
        )
        yield _Claim("version removed", bare, model_bare)
        yield _Claim("part of a compound name", file.ids, model.ids)
        yield _Claim("part of a compound name", file.symbols, model.symbols)
        for name, values in columns.items():
            other = _split(values)
            for keys, wanted in zip(other, model, strict=True):  # names, ids, symbols
                yield _Claim(COLUMN + name, keys, wanted)
            ids = [own or new for own, new in zip(file.ids, other.ids, strict=True)]
            has_letters = [any(map(str.isalpha, symbol or "")) for symbol in file.symbols]
            choices = zip(has_letters, file.symbols, other.symbols, strict=True)
            file = _Names(file.names, ids, [own if is_word else new for is_word, own, new in choices])

    # Names that differ from another one in case only are left out.
    times = Counter(symbol.upper() for symbol in set(file.symbols) if symbol)
    upper = [symbol.upper() if symbol and times[symbol.upper()] == 1 else None for symbol in file.symbols]
    model_upper = [symbol and symbol.upper() for symbol in model.symbols]
    if not is_human:
        yield _Claim("case", upper, model_upper, sure=False)
        return
    if is_full() and not any(file.ids) and not any(model.ids):
        return  # with symbols alone, the table only finds genes for those of the model that have none
    table = human_genes()
    model_ids = [own or table.ids.get(symbol or "") for own, symbol in zip(model.ids, model.symbols, strict=True)]
    yield _Claim("symbol<->Ensembl by GENCODE", file.ids, model_ids)
    yield _Claim("symbol<->Ensembl by GENCODE", [table.ids.get(symbol or "") for symbol in file.symbols], model_ids)
    yield _Claim("case", upper, model_upper, sure=False)
    yield _Claim("case", [table.folded.get(symbol or "") for symbol in upper], model.ids, sure=False)
    yield _Claim("case", file.ids, [table.folded.get(symbol or "") for symbol in model_upper], sure=False)

    current, renamed = _current(file, upper)
    model_current, model_renamed = _current(model, model_upper)
    yield _Claim("symbol<->Ensembl by HGNC", current, model_current)
    yield _Claim("previous symbol or alias", renamed, model_renamed, sure=False)


def _orthologs(file: _Names, columns: Mapping[str, Sequence[str]], species: str) -> _Names:
    """Replace symbols by those of their orthologs in a species; the first name with an ortholog counts, ids do not."""
    partners = human_genes().orthologs
    if species == "mouse":
        partners = {human: mouse for mouse, human in partners.items()}
    times = Counter(symbol.upper() for symbol in partners)
    by_upper = {symbol.upper(): other for symbol, other in partners.items() if times[symbol.upper()] == 1}
    named = [file.symbols, *(_split(values).symbols for values in columns.values())]
    found = ([by_upper.get((symbol or "").upper()) for symbol in symbols] for symbols in named)
    symbols = [next(filter(None, choices), None) for choices in zip(*found, strict=True)]
    return _Names(file.names, [None] * len(file.names), symbols)


def _current(genes: _Names, upper: list[str | None]) -> tuple[list[str | None], list[str | None]]:
    """Return HGNC's current symbol of each gene, by id or symbol; and the same, also by a former name in `upper`."""
    table = human_genes()

    def renamed(symbol: str | None) -> str | None:
        if symbol in table.folded:  # GENCODE knows a gene by that name
            return table.current.get(table.folded[symbol])
        return table.former.get(symbol or "")

    both = zip(genes.ids, genes.symbols, strict=True)
    current = [table.current.get(own or "") or (symbol if symbol in table.approved else None) for own, symbol in both]
    return current, [now or renamed(symbol) for now, symbol in zip(current, upper, strict=True)]


def name_columns(var: pd.DataFrame | None) -> dict[str, list[str]]:
    """Return the columns of var that hold names of genes, by their own name, in the order of `NAME_COLUMNS`."""
    if var is None:
        return {}
    there = {str(name).lower(): name for name in reversed(list(var.columns))}
    wanted = [there[name] for name in NAME_COLUMNS if name in there]
    texts = {str(name): var[name].astype(object).where(var[name].notna(), "") for name in wanted}
    return {name: [str(value).strip() for value in values] for name, values in texts.items()}
