"""Match the genes of a file to those of a model, by any names, with the help of a table of human genes."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from anndata.utils import make_index_unique

from scperformer.base.errors import InputError
from scperformer.genes.axes import without_affixes
from scperformer.genes.names import as_in_r, first_of_each, guess_species, id_kind, ids_and_symbols, repeated_note
from scperformer.genes.table import human_genes

# Columns of var with gene names, as CELLxGENE, 10x, scanpy, Seurat and others call them.
NAME_COLUMNS = (
    *("feature_name", "feature_id", "gene_ids", "gene_id", "gene_symbols", "gene_symbol", "gene_names", "gene_name"),
    *("symbol", "symbols", "hgnc_symbol", "gene_short_name", "gene", "genes", "features", "name", "names", "_index"),
    *("ensembl_id", "ensembl_ids", "ensembl", "ensembl_gene_id", "ensembl_gene_ids", "ensg", "ensgid"),
)
# How a gene was matched.
EXACT = "exact"
ORTHOLOG = "ortholog"
COLUMN = "var column "  # followed by the name of the column
AFFIX = "prefix or suffix removed"
VERSION_REMOVED = "version removed"
COMPOUND = "part of a compound name"
GENCODE = "symbol<->Ensembl by GENCODE"
CASE = "case"
MAKE_NAMES = "R's make.names"
HGNC = "symbol<->Ensembl by HGNC"
FORMER = "previous symbol or alias"
# How genes were matched -> the note about `many` of them.
NOTES = {
    AFFIX: "{many} names were matched by the gene in them ({patterns})",
    VERSION_REMOVED: "{many} Ensembl ids were matched without their versions",
    COMPOUND: "{many} names were matched by a part of them (the Ensembl id or the symbol)",
    GENCODE: "{many} genes were translated between Ensembl ids and symbols (GENCODE 44)",
    CASE: "{many} names were matched in upper case",
    MAKE_NAMES: "{many} names were matched as R's make.names writes them (HLA.A is HLA-A)",
    HGNC: "{many} genes were translated between Ensembl ids and symbols (HGNC, {date})",
    FORMER: "{many} genes were matched by a previous symbol or alias (HGNC, {date})",
    ORTHOLOG: "{many} genes were matched to their only ortholog in the other species (Ensembl 105)",
}


@dataclass(frozen=True, kw_only=True)
class GeneMap:
    """The gene of a model to which each gene of a file is matched."""

    target: np.ndarray  # int64, column of the model for each gene of the file; -1: not matched
    how: np.ndarray  # how each gene was matched: "exact", a key of `NOTES`, or "var column NAME"; "" if it was not
    notes: list[str]  # sentences for users, with counts
    species: str  # species of the file: human, mouse, other or unknown; as given or guessed

    @cached_property
    def first(self) -> np.ndarray:
        """For each gene of the file, the first gene matched to the same gene; an unmatched gene is its own first."""
        own = -1 - np.arange(len(self.target))
        return first_of_each(np.where(self.target >= 0, self.target, own))


class _GeneNames(NamedTuple):
    """The names of some genes, with the Ensembl id and the symbol that each name contains."""

    names: Sequence[str]
    ids: list[str | None]
    symbols: list[str | None]


def _parse(names: Sequence[str]) -> _GeneNames:
    pairs = ids_and_symbols(names)
    return _GeneNames(names, [identifier for identifier, _ in pairs], [symbol for _, symbol in pairs])


class _Rule(NamedTuple):
    """One way to match: a gene of the file is matched to the only gene of the model with the same key."""

    how: str
    file_keys: Sequence[str | None]  # None: the rule does not apply to this gene
    model_keys: Sequence[str | None]
    reliable: bool = True  # False: the rule only matches genes of the model that no gene of the file has reached yet


def map_genes(
    names: Sequence[str],
    model_genes: Sequence[str],
    var: pd.DataFrame | None = None,
    species: str = "auto",
    *,
    path: str | Path = "the data",
) -> GeneMap:
    """Match the genes of a file to those of a model.

    The most reliable rule comes first: the name itself, the name without prefix and suffix (`without_affixes`), the
    Ensembl id without its version, the parts of a compound name, the names in `var` (the file's gene table), and the
    translation between ids and symbols. Less reliable rules only match genes of the model that have no match yet: names
    as R writes them or that differ only in case, if no other name does; and previous symbols or aliases that belong to
    one gene alone and are not the current symbol of another. Repeated names are the same gene.

    If the `species` of the file is given and differs from the model's, genes are matched by orthologs. With `auto`, a
    file of another species than the model's is refused.

    Raises
    ------
    InputError
        The file is of another species than the model, and `species` is auto.
    """
    model = tuple(str(gene).strip() for gene in model_genes)
    model_species = guess_species(without_affixes(model, "unknown")[0])
    model_plain, _ = without_affixes(model, model_species)
    stored = tuple(str(name).strip() for name in names)
    plain, patterns = without_affixes(stored, model_species if species == "auto" else species)
    columns = name_columns(var)
    file_species = species
    if species == "auto":
        guesses = (guess_species(values) for values in (plain, *columns.values()))
        file_species = next((guess for guess in guesses if guess != "unknown"), "unknown")
        differ = "unknown" not in (file_species, model_species) and file_species != model_species
        if differ and 2 * len({*plain} & {*model_plain}) < len(model):
            has_symbols = bool(columns) or id_kind(plain) == "symbol"
            examples = plain[len(plain) // 2], model_genes[len(model_genes) // 2]
            raise _species_differ(file_species, model_species, examples, has_symbols, path)
    across_species = species != "auto" and {file_species, model_species} == {"human", "mouse"}
    is_human = model_species in ("human", "unknown") and (across_species or file_species in ("human", "unknown"))

    target, how = _match(
        (stored, tuple(plain)),
        (model, tuple(model_plain)),
        tuple((name, tuple(values)) for name, values in columns.items()),
        model_species if across_species else None,
        is_human,
    )
    notes = repeated_note(plain) + _notes(stored, plain, patterns, target, how)
    return GeneMap(target=target, how=how, notes=notes, species=file_species)


def map_exactly(names: Sequence[str], model_genes: Sequence[str]) -> GeneMap:
    """Match genes by exactly the same name, as CellTypist does: the first of several genes of a name keeps it."""
    unique = make_index_unique(pd.Index([str(name) for name in names]))
    target = pd.Index(model_genes).get_indexer(unique).astype(np.int64)
    how = np.where(target >= 0, EXACT, "").astype(object)
    notes = [f"{len(model_genes):,} genes of the model are looked for by exactly the same name (genes=exact)"]
    return GeneMap(target=target, how=how, notes=notes, species=guess_species(list(names)))


def _species_differ(
    file_species: str, model_species: str, examples: tuple[str, str], has_symbols: bool, path: str | Path
) -> InputError:
    """Return the error about a file of another species than the model; `examples` are a gene of each.

    Orthologs are matched by symbol, so they are only offered if the file `has_symbols`.
    """
    found = f"gene names in {path} that look {file_species} (e.g. '{examples[0]}') "
    found += f"for a model whose genes look {model_species} (e.g. '{examples[1]}')"
    remedy = "use a model of the same species"
    fixes = []
    if model_species != "other":
        remedy += f", or add species={model_species} if these are {model_species} genes"
        fixes.append(f"species={model_species}")
    if {file_species, model_species} == {"human", "mouse"} and has_symbols:
        remedy += f", or species={file_species} to match genes by their orthologs"
        fixes.insert(0, f"species={file_species}")
    return InputError(found, "cells of the species of the model", remedy, fixes)


def _notes(
    stored: Sequence[str], plain: Sequence[str], patterns: Sequence[str], target: np.ndarray, how: np.ndarray
) -> list[str]:
    """Return sentences on how the genes of a file were matched, other than by exactly the same name.

    `stored` are the names in the file, `plain` the same names without prefix and suffix, which `patterns` show.
    """
    num_matched = Counter(how[how != ""].tolist())
    # A gene whose name had a prefix or suffix may have been matched by any later rule.
    has_affix = np.array([name != gene for name, gene in zip(stored, plain, strict=True)], dtype=bool)
    num_matched[AFFIX] = int((has_affix & (how != "") & (how != EXACT)).sum())
    notes = []
    for rule, num in num_matched.items():
        if rule.startswith(COLUMN):
            notes.append(f"names of {num:,} genes were taken from var['{rule.removeprefix(COLUMN)}']")
        elif rule != EXACT and num:
            date = human_genes().hgnc_date if "{date}" in NOTES[rule] else ""
            notes.append(NOTES[rule].format(many=f"{num:,}", date=date, patterns=", ".join(patterns)))
    distinct = set(zip(plain, target.tolist(), strict=True))
    num_sums = sum(num > 1 for num in Counter(column for _, column in distinct if column >= 0).values())
    if num_sums:
        notes.append(f"{num_sums:,} genes of the model are sums of several genes of the file")
    return notes


@lru_cache(maxsize=2)  # the samples of a run often have the same genes
def _match(
    file: tuple[tuple[str, ...], tuple[str, ...]],
    model: tuple[tuple[str, ...], tuple[str, ...]],
    columns: tuple[tuple[str, tuple[str, ...]], ...],
    ortholog_species: str | None,
    is_human: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return `target` and `how` of a `GeneMap`; the options are those of `_rules`.

    `file` and `model` are the stored names, and the names without prefix and suffix.
    """
    num_names = len(file[0])
    target = np.full(num_names, -1, dtype=np.int64)
    how = np.full(num_names, "", dtype=object)
    num_genes = len(set(model[0]))

    def all_reached() -> bool:
        return len(np.unique(target[target >= 0])) == num_genes

    stored = _Rule(EXACT, file[0], model[0])
    others = _rules(_parse(file[1]), _parse(model[1]), dict(columns), ortholog_species, is_human, all_reached)
    for rule in others if ortholog_species else chain([stored], others):
        unmatched = np.flatnonzero(target < 0).tolist()
        if not unmatched:
            break
        times = Counter(rule.model_keys)
        unique = ((key, column) for column, key in enumerate(rule.model_keys) if key is not None and times[key] == 1)
        column_of: dict[str | None, int] = dict(unique)
        reached = set() if rule.reliable else set(target[target >= 0].tolist())
        for gene in unmatched:
            column = column_of.get(rule.file_keys[gene], -1)
            if column >= 0 and column not in reached:
                target[gene] = column
                how[gene] = rule.how
    if ortholog_species:
        how[target >= 0] = ORTHOLOG
    target.flags.writeable = how.flags.writeable = False  # shared by all callers
    return target, how


def _rules(
    file: _GeneNames,
    model: _GeneNames,
    columns: Mapping[str, Sequence[str]],
    ortholog_species: str | None,
    is_human: bool,
    all_reached: Callable[[], bool],
) -> Iterator[_Rule]:
    """Yield all rules but the comparison of the stored names, the most reliable first.

    Parameters
    ----------
    columns
        Further names of the file's genes, by the name of their column in var.
    ortholog_species
        The model's species if the file is of another; the file's symbols are then replaced by their orthologs.
    is_human
        Whether the table of human genes applies.
    all_reached
        Tells whether each gene of the model has a match by the rules so far.
    """
    if ortholog_species:
        file = _with_orthologs(file, columns, ortholog_species)
        yield _Rule(ORTHOLOG, file.symbols, model.symbols)
    else:
        yield from _rules_by_name(file, model)
        for name, values in columns.items():
            other = _parse(values)
            for file_keys, model_keys in zip(other, model, strict=True):  # names, ids, symbols
                yield _Rule(COLUMN + name, file_keys, model_keys)
            file = _completed(file, other)

    # If some symbols have dashes, R has not written the file: TMBIM4.1 and TMBIM4-1 are numbered by R and by scanpy.
    file_may_be_from_r = not all_reached() and _may_be_from_r(file)
    model_may_be_from_r = not all_reached() and _may_be_from_r(model)
    if file_may_be_from_r:
        in_r = [symbol and as_in_r(symbol) for symbol in model.symbols]
        yield _Rule(MAKE_NAMES, file.symbols, in_r, reliable=False)
    if model_may_be_from_r:
        yield _Rule(MAKE_NAMES, _unless_repeated(file.symbols, as_in_r), model.symbols, reliable=False)
    upper = _unless_repeated(file.symbols, str.upper)
    model_upper = [symbol and symbol.upper() for symbol in model.symbols]
    if not is_human:
        yield _Rule(CASE, upper, model_upper, reliable=False)
        return
    if all_reached() and not any(file.ids) and not any(model.ids):
        return  # with symbols alone, the table only helps genes of the model without a match

    yield from _rules_by_table(file, model, upper, model_upper, file_may_be_from_r, model_may_be_from_r)


def _rules_by_name(file: _GeneNames, model: _GeneNames) -> Iterator[_Rule]:
    """Yield the rules that compare the names without prefix and suffix, and their parts."""
    yield _Rule(AFFIX, file.names, model.names)  # names without an affix have been compared before
    bare, model_bare = (
        [None if symbol else own for own, symbol in zip(genes.ids, genes.symbols, strict=True)]
        for genes in (file, model)
    )
    yield _Rule(VERSION_REMOVED, bare, model_bare)
    yield _Rule(COMPOUND, file.ids, model.ids)
    yield _Rule(COMPOUND, file.symbols, model.symbols)


def _rules_by_table(
    file: _GeneNames,
    model: _GeneNames,
    upper: list[str | None],
    model_upper: list[str | None],
    file_may_be_from_r: bool,
    model_may_be_from_r: bool,
) -> Iterator[_Rule]:
    """Yield the rules that need the table of human genes; `upper` are the symbols in upper case."""
    table = human_genes()
    model_ids = [own or table.ids.get(symbol or "") for own, symbol in zip(model.ids, model.symbols, strict=True)]
    yield _Rule(GENCODE, file.ids, model_ids)
    yield _Rule(GENCODE, [table.ids.get(symbol or "") for symbol in file.symbols], model_ids)
    yield _Rule(CASE, upper, model_upper, reliable=False)
    yield _Rule(CASE, [table.upper_ids.get(symbol or "") for symbol in upper], model.ids, reliable=False)
    yield _Rule(CASE, file.ids, [table.upper_ids.get(symbol or "") for symbol in model_upper], reliable=False)
    if file_may_be_from_r:
        ids = [table.r_ids.get(symbol or "") for symbol in file.symbols]
        yield _Rule(MAKE_NAMES, ids, model_ids, reliable=False)
    if model_may_be_from_r:
        ids = [table.r_ids.get(symbol or "") for symbol in model.symbols]
        yield _Rule(MAKE_NAMES, file.ids, ids, reliable=False)
    current, from_former = _current_symbols(file, upper)
    model_current, model_from_former = _current_symbols(model, model_upper)
    yield _Rule(HGNC, current, model_current)
    yield _Rule(FORMER, from_former, model_from_former, reliable=False)


def _completed(file: _GeneNames, other: _GeneNames) -> _GeneNames:
    """Return the names of a file with ids and symbols of a column of var where the names have none."""
    ids = [own or new for own, new in zip(file.ids, other.ids, strict=True)]
    has_letters = [any(map(str.isalpha, symbol or "")) for symbol in file.symbols]
    choices = zip(has_letters, file.symbols, other.symbols, strict=True)
    return _GeneNames(file.names, ids, [own if is_symbol else new for is_symbol, own, new in choices])


def _may_be_from_r(genes: _GeneNames) -> bool:
    """Whether R's make.names would leave all symbols as they are."""
    return all(as_in_r(symbol) == symbol for symbol in genes.symbols if symbol)


def _unless_repeated(symbols: Sequence[str | None], rewrite: Callable[[str], str]) -> list[str | None]:
    """Rewrite each symbol; None for symbols that differ and would become the same."""
    new = {symbol: rewrite(symbol) for symbol in set(symbols) if symbol}
    times = Counter(new.values())
    return [new[symbol] if symbol and times[new[symbol]] == 1 else None for symbol in symbols]


def _with_orthologs(file: _GeneNames, columns: Mapping[str, Sequence[str]], species: str) -> _GeneNames:
    """Replace the symbols of a file by those of their orthologs in `species`, and drop its ids.

    A gene has the ortholog of the first of its symbols, in its name or in `columns`, that has one.
    """
    orthologs = human_genes().orthologs
    if species == "mouse":
        orthologs = {human: mouse for mouse, human in orthologs.items()}
    times = Counter(symbol.upper() for symbol in orthologs)
    by_upper = {symbol.upper(): other for symbol, other in orthologs.items() if times[symbol.upper()] == 1}
    by_upper = {as_in_r(symbol): other for symbol, other in by_upper.items()} | by_upper  # MT.ND1 as R writes it
    sources = [file.symbols, *(_parse(values).symbols for values in columns.values())]
    translated = ([by_upper.get((symbol or "").upper()) for symbol in symbols] for symbols in sources)
    symbols = [next(filter(None, choices), None) for choices in zip(*translated, strict=True)]
    return _GeneNames(file.names, [None] * len(file.names), symbols)


def _current_symbols(genes: _GeneNames, upper: list[str | None]) -> tuple[list[str | None], list[str | None]]:
    """Return HGNC's current symbol of each gene by its id or symbol; and the same, else by a former name in `upper`."""
    table = human_genes()

    def by_former_name(symbol: str | None) -> str | None:
        if symbol in table.upper_ids:  # GENCODE has a gene of that name
            return table.current.get(table.upper_ids[symbol])
        return table.former.get(symbol or "")

    pairs = zip(genes.ids, genes.symbols, strict=True)
    current = [table.current.get(own or "") or (symbol if symbol in table.approved else None) for own, symbol in pairs]
    return current, [now or by_former_name(symbol) for now, symbol in zip(current, upper, strict=True)]


def name_columns(var: pd.DataFrame | None) -> dict[str, list[str]]:
    """Return the columns of var that hold gene names, by the name of the column, in the order of `NAME_COLUMNS`."""
    if var is None:
        return {}
    by_lower = {str(name).lower(): name for name in reversed(list(var.columns))}
    chosen = [by_lower[name] for name in NAME_COLUMNS if name in by_lower]
    texts = {str(name): var[name].astype(object).where(var[name].notna(), "") for name in chosen}
    return {name: [str(value).strip() for value in values] for name, values in texts.items()}
