"""Matching the genes of a file to those of a model, whatever names each of them uses, with a table of human genes."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from scperformer.base.errors import InputError
from scperformer.genes.axes import without_affixes
from scperformer.genes.names import all_parts, as_in_r, first_of_each, guess_species, id_kind, repeated_note
from scperformer.genes.table import human_genes

# Columns of var that hold names of genes, as CELLxGENE, 10x, scanpy, Seurat and others call them.
NAME_COLUMNS = (
    *("feature_name", "feature_id", "gene_ids", "gene_id", "gene_symbols", "gene_symbol", "gene_names", "gene_name"),
    *("symbol", "symbols", "hgnc_symbol", "gene_short_name", "gene", "genes", "features", "name", "names", "_index"),
    *("ensembl_id", "ensembl_ids", "ensembl", "ensembl_gene_id", "ensembl_gene_ids", "ensg", "ensgid"),
)
EXACT = "exact"
ORTHOLOG = "ortholog"
COLUMN = "var column "
AFFIX = "prefix or suffix removed"
OF_R = "R's make.names"
# Way in which genes were matched -> a sentence about `many` of them.
SENTENCES = {
    AFFIX: "{many} names were matched by the gene in them ({patterns})",
    "version removed": "{many} Ensembl ids were matched without their versions",
    "part of a compound name": "{many} names were matched by a part of them (the Ensembl id or the symbol)",
    "symbol<->Ensembl by GENCODE": "{many} genes were translated between Ensembl ids and symbols (GENCODE 44)",
    "case": "{many} names were matched in upper case",
    OF_R: "{many} names were matched as R's make.names writes them (HLA.A is HLA-A)",
    "symbol<->Ensembl by HGNC": "{many} genes were translated between Ensembl ids and symbols (HGNC, {date})",
    "previous symbol or alias": "{many} genes were matched by a previous symbol or alias (HGNC, {date})",
    ORTHOLOG: "{many} genes were matched to their only ortholog in the other species (Ensembl 105)",
}


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

    The surest way comes first: the name itself, the name without what stands around the genes (`without_affixes`), the
    Ensembl id without version, the parts of a compound name, the names in `var` (the file's table of genes),
    translation between ids and symbols. Less sure ways only match genes of the model that have no match yet: names as
    R writes them, or that differ in case only, if no other name does, and previous symbols or aliases, if they fit one
    gene alone and are not the current symbol of another. Repeated names are one gene.

    If the `species` of the file is given and differs from the model's, genes are matched by orthologs. With `auto`, a
    file of another species than the model is refused.
    """
    model = tuple(str(gene).strip() for gene in model_genes)
    of_model = guess_species(without_affixes(model, "unknown")[0])
    model_plain, _ = without_affixes(model, of_model)
    stored = tuple(str(name).strip() for name in names)
    names, patterns = without_affixes(stored, of_model if species == "auto" else species)
    columns = name_columns(var)
    of_file = species
    if species == "auto":
        guesses = (guess_species(values) for values in (names, *columns.values()))
        of_file = next((guess for guess in guesses if guess != "unknown"), "unknown")
        differ = "unknown" not in (of_file, of_model) and of_file != of_model
        if differ and 2 * len({*names} & {*model_plain}) < len(model_genes):
            ours = names[len(names) // 2]
            theirs = model_genes[len(model_genes) // 2]
            found = f"gene names in {path} that look {of_file} (e.g. '{ours}') for a model whose genes look {of_model} "
            remedy = "use a model of the same species"
            fixes = []
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
    sides = (stored, tuple(names)), (model, tuple(model_plain))
    target, how = _matched(*sides, named, of_model if crossed else None, is_human)
    notes = repeated_note(names)
    ways = Counter(how[how != ""].tolist())
    # The part that is a gene may be found in any other way, too.
    changed = np.array([name != plain for name, plain in zip(stored, names, strict=True)], dtype=bool)
    ways[AFFIX] = int((changed & (how != "") & (how != EXACT)).sum())
    for way, num in ways.items():
        if way.startswith(COLUMN):
            notes.append(f"names of {num:,} genes were taken from var['{way.removeprefix(COLUMN)}']")
        elif way != EXACT and num:
            date = human_genes().hgnc_date if "{date}" in SENTENCES[way] else ""
            notes.append(SENTENCES[way].format(many=f"{num:,}", date=date, patterns=", ".join(patterns)))
    distinct = set(zip(names, target.tolist(), strict=True))
    sums = sum(num > 1 for num in Counter(column for _, column in distinct if column >= 0).values())
    if sums:
        notes.append(f"{sums:,} genes of the model are sums of several genes of the file")
    return GeneMap(target=target, how=how, notes=notes, species=of_file)


@lru_cache(maxsize=2)  # the samples of a run often have the same genes
def _matched(
    file: tuple[tuple[str, ...], tuple[str, ...]],
    model: tuple[tuple[str, ...], tuple[str, ...]],
    columns: tuple[tuple[str, tuple[str, ...]], ...],
    crossed_to: str | None,
    is_human: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return `target` and `how` of a `GeneMap`; the options are those of `_claims`.

    `file` and `model`: the names as they are stored, and without what stands around the genes.
    """
    num_names = len(file[0])
    target = np.full(num_names, -1, dtype=np.int64)
    how = np.full(num_names, "", dtype=object)
    num_genes = len(set(model[0]))

    def is_full() -> bool:
        return len(np.unique(target[target >= 0])) == num_genes

    stored = _Claim(EXACT, file[0], model[0])
    others = _claims(_split(file[1]), _split(model[1]), dict(columns), crossed_to, is_human, is_full)
    for claim in others if crossed_to else chain([stored], others):
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
                target[gene] = column
                how[gene] = claim.how
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
    """Yield all ways to match but the stored names themselves, the surest first.

    `is_human`: the table of human genes can be used. `is_full`: whether each gene of the model has a match by now.

    If the file is of the other species than the model, `crossed_to` is the model's, and the file's symbols are replaced
    by those of their orthologs.
    """
    if crossed_to:
        file = _orthologs(file, columns, crossed_to)
        yield _Claim(ORTHOLOG, file.symbols, model.symbols)
    else:
        yield _Claim(AFFIX, file.names, model.names)  # names without an affix have been compared before
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

    # Where some names have dashes, R has not written the others: TMBIM4.1 and TMBIM4-1 are numbered by R and scanpy.
    is_of_r = not is_full() and all(as_in_r(symbol) == symbol for symbol in file.symbols if symbol)
    is_model_of_r = not is_full() and all(as_in_r(symbol) == symbol for symbol in model.symbols if symbol)
    if is_of_r:
        yield _Claim(OF_R, file.symbols, [symbol and as_in_r(symbol) for symbol in model.symbols], sure=False)
    if is_model_of_r:
        yield _Claim(OF_R, _unless_repeated(file.symbols, as_in_r), model.symbols, sure=False)
    upper = _unless_repeated(file.symbols, str.upper)
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

    if is_of_r:
        yield _Claim(OF_R, [table.in_r.get(symbol or "") for symbol in file.symbols], model_ids, sure=False)
    if is_model_of_r:
        yield _Claim(OF_R, file.ids, [table.in_r.get(symbol or "") for symbol in model.symbols], sure=False)

    current, renamed = _current(file, upper)
    model_current, model_renamed = _current(model, model_upper)
    yield _Claim("symbol<->Ensembl by HGNC", current, model_current)
    yield _Claim("previous symbol or alias", renamed, model_renamed, sure=False)


def _unless_repeated(symbols: Sequence[str | None], written: Callable[[str], str]) -> list[str | None]:
    """Return each symbol as it is `written` elsewhere; None for those that differ and would become the same."""
    new = {symbol: written(symbol) for symbol in set(symbols) if symbol}
    times = Counter(new.values())
    return [new[symbol] if symbol and times[new[symbol]] == 1 else None for symbol in symbols]


def _orthologs(file: _Names, columns: Mapping[str, Sequence[str]], species: str) -> _Names:
    """Replace symbols by those of their orthologs in a species; the first name with an ortholog counts, ids do not."""
    partners = human_genes().orthologs
    if species == "mouse":
        partners = {human: mouse for mouse, human in partners.items()}
    times = Counter(symbol.upper() for symbol in partners)
    by_upper = {symbol.upper(): other for symbol, other in partners.items() if times[symbol.upper()] == 1}
    by_upper = {as_in_r(symbol): other for symbol, other in by_upper.items()} | by_upper  # MT.ND1 of R
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
