"""Match the genes of a file to the genes of a model, by any names, with the help of a table of human genes."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from anndata.utils import make_index_unique

from scperformer.base.errors import InputError
from scperformer.io.axes import without_affixes
from scperformer.io.gene_names import as_in_r, first_of_each, guess_species, id_kind, ids_and_symbols, repeated_note
from scperformer.io.gene_table import human_genes

# Columns of var with gene names, as CELLxGENE, 10x, scanpy, Seurat and others call them.
NAME_COLUMNS = (
    *("feature_name", "feature_id", "gene_ids", "gene_id", "gene_symbols", "gene_symbol", "gene_names", "gene_name"),
    *("symbol", "symbols", "hgnc_symbol", "gene_short_name", "gene", "genes", "features", "name", "names", "_index"),
    *("ensembl_id", "ensembl_ids", "ensembl", "ensembl_gene_id", "ensembl_gene_ids", "ensg", "ensgid"),
)
Columns: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]
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


def map_genes(
    names: Sequence[str],
    model_genes: Sequence[str],
    var: pd.DataFrame | None = None,
    species: str = "auto",
    *,
    path: str | Path = "the data",
) -> GeneMap:
    """Match the genes of a file to the genes of a model.

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
            found = f"gene names in {path} that look {file_species} (e.g. '{plain[len(plain) // 2]}') "
            found += f"for a model whose genes look {model_species} (e.g. '{model_genes[len(model_genes) // 2]}')"
            remedy = "use a model of the same species"
            fixes = []
            if model_species != "other":
                remedy += f", or add species={model_species} if these are {model_species} genes"
                fixes.append(f"species={model_species}")
            has_symbols = bool(columns) or id_kind(plain) == "symbol"
            if {file_species, model_species} == {"human", "mouse"} and has_symbols:
                remedy += f", or species={file_species} to match genes by their orthologs"
                fixes.insert(0, f"species={file_species}")
            raise InputError(found, "cells of the species of the model", remedy, fixes)
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


def _notes(
    stored: Sequence[str], plain: Sequence[str], patterns: Sequence[str], target: np.ndarray, how: np.ndarray
) -> list[str]:
    """Return sentences on how the genes of a file were matched, other than by exactly the same name."""
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


class _Matches:
    """The gene of a model to which each gene of a file has been matched so far, and how."""

    def __init__(self, num_names: int, num_genes: int):
        self.target = np.full(num_names, -1, dtype=np.int64)
        self.how = np.full(num_names, "", dtype=object)
        self.num_genes = num_genes

    def all_reached(self) -> bool:
        """Whether each gene of the model has a match."""
        return len(np.unique(self.target[self.target >= 0])) == self.num_genes

    def add(
        self, how: str, file_keys: Sequence[str | None], model_keys: Sequence[str | None], *, only_free: bool = False
    ) -> None:
        """Match each gene without a match to the only gene of the model with the same key; None is no key.

        With `only_free`, genes of the model that have a match get no other.
        """
        unmatched = np.flatnonzero(self.target < 0).tolist()
        times = Counter(model_keys if unmatched else ())
        unique = ((key, column) for column, key in enumerate(model_keys) if key is not None and times[key] == 1)
        column_of: dict[str | None, int] = dict(unique)
        taken = set(self.target[self.target >= 0].tolist()) if only_free else set()
        for gene in unmatched:
            column = column_of.get(file_keys[gene], -1)
            if column >= 0 and column not in taken:
                self.target[gene] = column
                self.how[gene] = how


@lru_cache(maxsize=2)  # the samples of a run often have the same genes
def _match(
    file_names: tuple[tuple[str, ...], tuple[str, ...]],
    model_names: tuple[tuple[str, ...], tuple[str, ...]],
    columns: Columns,
    ortholog_species: str | None,
    is_human: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """Return `target` and `how` of a `GeneMap`.

    The names are those as stored, and without prefix and suffix; `columns` are further names of the file's genes.
    `ortholog_species` is the model's species if the file is of another. `is_human`: the table of human genes applies.
    """
    matches = _Matches(len(file_names[0]), len(set(model_names[0])))
    file = _parse(file_names[1])
    model = _parse(model_names[1])
    if ortholog_species:
        file = _with_orthologs(file, columns, ortholog_species)
        matches.add(ORTHOLOG, file.symbols, model.symbols)
    else:
        matches.add(EXACT, file_names[0], model_names[0])
        matches.add(AFFIX, file.names, model.names)
        bare, model_bare = (
            [None if symbol else own for own, symbol in zip(genes.ids, genes.symbols, strict=True)]
            for genes in (file, model)
        )
        matches.add(VERSION_REMOVED, bare, model_bare)
        matches.add(COMPOUND, file.ids, model.ids)
        matches.add(COMPOUND, file.symbols, model.symbols)
        for name, values in columns:
            other = _parse(values)
            for file_keys, model_keys in zip(other, model, strict=True):  # names, ids, symbols
                matches.add(COLUMN + name, file_keys, model_keys)
            file = _completed(file, other)
    if (matches.target < 0).any():
        _match_less_reliably(matches, file, model, is_human)
    if ortholog_species:
        matches.how[matches.target >= 0] = ORTHOLOG
    matches.target.flags.writeable = matches.how.flags.writeable = False  # shared by all callers
    return matches.target, matches.how


def _match_less_reliably(matches: _Matches, file: _GeneNames, model: _GeneNames, is_human: bool) -> None:
    """Match further genes by names as R writes them, in upper case, and with the table of human genes."""
    # If some symbols have dashes, R has not written the file: TMBIM4.1 and TMBIM4-1 are numbered by R and by scanpy.
    file_may_be_from_r, model_may_be_from_r = (
        not matches.all_reached() and all(as_in_r(symbol) == symbol for symbol in genes.symbols if symbol)
        for genes in (file, model)
    )
    if file_may_be_from_r:
        in_r = [symbol and as_in_r(symbol) for symbol in model.symbols]
        matches.add(MAKE_NAMES, file.symbols, in_r, only_free=True)
    if model_may_be_from_r:
        matches.add(MAKE_NAMES, _unless_repeated(file.symbols, as_in_r), model.symbols, only_free=True)
    upper = _unless_repeated(file.symbols, str.upper)
    model_upper = [symbol and symbol.upper() for symbol in model.symbols]
    if not is_human:
        matches.add(CASE, upper, model_upper, only_free=True)
        return
    if matches.all_reached() and not any(file.ids) and not any(model.ids):
        return  # with symbols alone, the table only helps genes of the model without a match

    table = human_genes()
    ids_by_symbol, model_ids_by_symbol = (
        [table.ids.get(symbol or "") for symbol in genes.symbols] for genes in (file, model)
    )
    model_ids = [own or by_symbol for own, by_symbol in zip(model.ids, model_ids_by_symbol, strict=True)]
    matches.add(GENCODE, file.ids, model_ids)
    matches.add(GENCODE, ids_by_symbol, model_ids)
    matches.add(CASE, upper, model_upper, only_free=True)
    matches.add(CASE, [table.upper_ids.get(symbol or "") for symbol in upper], model.ids, only_free=True)
    matches.add(CASE, file.ids, [table.upper_ids.get(symbol or "") for symbol in model_upper], only_free=True)
    if file_may_be_from_r:
        matches.add(MAKE_NAMES, [table.r_ids.get(symbol or "") for symbol in file.symbols], model_ids, only_free=True)
    if model_may_be_from_r:
        matches.add(MAKE_NAMES, file.ids, [table.r_ids.get(symbol or "") for symbol in model.symbols], only_free=True)
    current, from_former = _current_symbols(file, upper)
    model_current, model_from_former = _current_symbols(model, model_upper)
    matches.add(HGNC, current, model_current)
    matches.add(FORMER, from_former, model_from_former, only_free=True)


def _completed(file: _GeneNames, other: _GeneNames) -> _GeneNames:
    """Return the names of a file with ids and symbols of a column of var where the names have none."""
    ids = [own or new for own, new in zip(file.ids, other.ids, strict=True)]
    has_letters = [any(map(str.isalpha, symbol or "")) for symbol in file.symbols]
    choices = zip(has_letters, file.symbols, other.symbols, strict=True)
    return _GeneNames(file.names, ids, [own if is_symbol else new for is_symbol, own, new in choices])


def _unless_repeated(symbols: Sequence[str | None], rewrite: Callable[[str], str]) -> list[str | None]:
    """Rewrite each symbol; None for symbols that differ and would become the same."""
    new = {symbol: rewrite(symbol) for symbol in set(symbols) if symbol}
    times = Counter(new.values())
    return [new[symbol] if symbol and times[new[symbol]] == 1 else None for symbol in symbols]


def _with_orthologs(file: _GeneNames, columns: Columns, species: str) -> _GeneNames:
    """Replace the symbols of a file, in names or `columns`, by their orthologs in `species`, and drop its ids."""
    orthologs = human_genes().orthologs
    if species == "mouse":
        orthologs = {human: mouse for mouse, human in orthologs.items()}
    times = Counter(symbol.upper() for symbol in orthologs)
    by_upper = {symbol.upper(): other for symbol, other in orthologs.items() if times[symbol.upper()] == 1}
    by_upper = {as_in_r(symbol): other for symbol, other in by_upper.items()} | by_upper  # MT.ND1 as R writes it
    sources = [file.symbols, *(_parse(values).symbols for _, values in columns)]
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
