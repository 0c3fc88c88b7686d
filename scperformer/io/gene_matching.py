"""Match the genes of a file to the genes of a model, by any names, with the help of a table of human genes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from anndata.utils import make_index_unique

from scperformer.base.errors import InputError
from scperformer.io.axes import AXIS_SHARE, is_gene, without_affixes
from scperformer.io.gene_names import (
    first_of_each,
    guess_species,
    id_kind,
    ids_and_symbols,
    repeated_note,
)
from scperformer.io.gene_table import human_genes

NUM_TEXTS_SAMPLED = 1000  # texts of a column of var that are looked at
Names: TypeAlias = tuple[str, ...]
Keys: TypeAlias = Sequence[str | None]
LOOKS = {"human": "human", "mouse": "mouse", "other": "like neither human nor mouse"}
# Rules of a match, and the note about `many` genes that were matched by it.
MANY_SUMS = 0.01  # of the genes of a model; fewer hardly change a label
EXACT = "exact"
AFFIX = (
    "{many} names were matched by the gene in them, without a genome or other text of a platform"
)
PART = "{many} names were matched by a part of them (the Ensembl id without its version, or the symbol)"
COLUMN = "names of {{many}} genes were taken from var['{name}']"
GENCODE = "{many} genes were translated between Ensembl ids and symbols (GENCODE 44)"
HYPHEN = "{many} names were matched with hyphens for underscores, as Seurat writes names"
CASE = "{many} names were matched in upper case"
LOWER = "names in lower case are taken for human: other species, such as frogs, have them, too (species=human confirms)"
HGNC = "{many} genes were translated between Ensembl ids and symbols (HGNC, {date})"
FORMER = "{many} genes were matched by a previous symbol or alias (HGNC, {date})"
ORTHOLOG = "{many} genes were matched to their only ortholog in the other species (Ensembl 105)"


@dataclass(frozen=True, kw_only=True)
class GeneMap:
    """The gene of a model to which each gene of a file is matched."""

    target: np.ndarray  # int64, column of the model for each gene of the file; -1: not matched
    notes: list[str]  # sentences for users, with counts
    species: str  # species of the file: human, mouse, other or unknown; as given or guessed

    @cached_property
    def first(self) -> np.ndarray:
        """For each gene of the file, the first gene matched to the same gene; an unmatched gene is its own first."""
        unmatched = -1 - np.arange(len(self.target))
        return first_of_each(np.where(self.target >= 0, self.target, unmatched))

    def moved(self, target: np.ndarray) -> "GeneMap":
        """Match to other columns: gene j of the model moves to column `target[j]`, or is left out if that is -1."""
        return replace(self, target=np.append(target, -1)[self.target])  # so that -1 stays -1

    def only(self, is_kept: np.ndarray) -> "GeneMap":
        """Match to a part of the genes of the model, boolean G."""
        return self.moved(np.where(is_kept, np.cumsum(is_kept) - 1, -1))


def gene_symbols(names: Iterable[object]) -> list[str]:
    """Return the names of genes; human Ensembl ids become symbols."""
    texts = tuple(str(name).strip() for name in names)
    if id_kind(texts) != "ensembl":
        return list(texts)
    symbols = human_genes().symbols
    split = zip(*ids_and_symbols(texts), texts, strict=True)
    return [symbol or symbols.get(str(gene_id), name) for gene_id, symbol, name in split]


def _other_species(
    file_species: str,
    model_species: str,
    are_symbols: bool,
    examples: tuple[str, str],
    path: str | Path,
) -> InputError:
    """Return the refusal of a file of another species than the model's, with a gene of each."""
    found = f"gene names in {path} that look {LOOKS[file_species]} (e.g. '{examples[0]}') for a "
    found += f"model whose genes look {LOOKS[model_species]} (e.g. '{examples[1]}')"
    remedy = "use a model of the same species"
    fixes = []
    if model_species != "other" and (file_species != "other" or are_symbols):
        remedy += f", or add species={model_species} if these are {model_species} genes"
        fixes.append(f"species={model_species}")
        if file_species != "other" and are_symbols:
            remedy += f", or species={file_species} to match genes by their orthologs"
            fixes.insert(0, f"species={file_species}")
    return InputError("other-species", found, "cells of the species of the model", remedy, fixes)


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
    Ensembl id or symbol in a name, the names in `var` (the file's gene table), and the translation between ids and
    symbols. Less reliable rules only match genes of the model that have no match yet: names with hyphens for
    underscores, as Seurat writes them; names that differ only in case, if no other name does; and previous symbols or
    aliases that belong to one gene alone and are not the current symbol of another. Repeated names are the same gene.

    If the `species` of the file is given and differs from the model's, genes are matched by orthologs. With `auto`, a
    file of another species than the model's is refused.
    """
    model = tuple(str(gene).strip() for gene in model_genes)
    model_species = guess_species(without_affixes(model, "human"))
    model_plain = without_affixes(model, model_species)
    stored = tuple(str(name).strip() for name in names)
    plain = without_affixes(stored, model_species if species == "auto" else species)
    columns = name_columns(var, model)
    file_species = species
    if species == "auto":
        guesses = (guess_species(values) for values in (plain, *columns.values()))
        file_species = next((guess for guess in guesses if guess != "unknown"), "unknown")
        differ = "unknown" not in (file_species, model_species) and file_species != model_species
        if differ and 2 * len({*plain} & {*model_plain}) < len(model):
            are_symbols = bool(columns) or id_kind(plain) == "symbol"
            examples = plain[len(plain) // 2], model_genes[len(model_genes) // 2]
            raise _other_species(file_species, model_species, are_symbols, examples, path)
    across_species = species != "auto" and {file_species, model_species} == {"human", "mouse"}
    target, num_matched = _match(
        (stored, tuple(plain)),
        (model, tuple(model_plain)),
        tuple((name, tuple(values)) for name, values in columns.items()),
        model_species if across_species else None,
        model_species in ("human", "unknown")
        and (across_species or file_species in ("human", "unknown")),
    )
    notes = repeated_note(plain)
    if (
        species == "auto"
        and num_matched.get(CASE, 0) > len(stored) / 2
        and stored[len(stored) // 2].islower()
    ):
        notes.append(LOWER)
    for rule, num in num_matched.items():
        if num and rule != EXACT:
            notes.append(
                rule.format(
                    many=f"{num:,}", date=human_genes().hgnc_date if "{date}" in rule else ""
                )
            )
    distinct = set(zip(plain, target.tolist(), strict=True))
    num_sums = sum(
        num > 1 for num in Counter(column for _, column in distinct if column >= 0).values()
    )
    if num_sums > MANY_SUMS * len(model):
        are = "genes of the model are sums" if num_sums > 1 else "gene of the model is the sum"
        notes.append(f"{num_sums:,} {are} of several genes of the file")
    return GeneMap(target=target, notes=notes, species=file_species)


def map_exactly(names: Sequence[str], model_genes: Sequence[str]) -> GeneMap:
    """Match genes by exactly the same name, as CellTypist does: the first of several genes of a name keeps it."""
    unique = make_index_unique(pd.Index([str(name) for name in names]))
    target = pd.Index(model_genes).get_indexer(unique).astype(np.int64)
    notes = [
        f"{len(model_genes):,} genes of the model are looked for by exactly the same name (genes=exact)"
    ]
    return GeneMap(target=target, notes=notes, species=guess_species(list(names)))


class Rule(NamedTuple):
    """Genes of a file and of a model match if these names of theirs, attributes of `GeneNames`, are equal."""

    note: str
    names: str
    model_names: str
    only_free: bool = False  # genes of the model that have a match get no other
    by_table: bool = False  # needs the table of human genes


# In this order; the names in columns of var are matched between both tuples.
RULES_BY_NAME = (
    Rule(EXACT, "stored", "stored"),
    Rule(EXACT, "plain", "plain"),
    Rule(PART, "ids", "ids"),
    Rule(PART, "symbols", "symbols"),
)
FURTHER_RULES = (
    Rule(GENCODE, "ids", "gencode_ids", by_table=True),
    Rule(GENCODE, "ids_of_symbols", "gencode_ids", by_table=True),
    Rule(HYPHEN, "hyphens", "hyphens", only_free=True),
    Rule(CASE, "upper", "upper", only_free=True),
    Rule(HGNC, "current", "current", by_table=True),
    Rule(FORMER, "current_of_former", "current_of_former", only_free=True, by_table=True),
)


@dataclass
class GeneNames:
    """The names of genes, and what follows from them; None where a gene has no such name."""

    stored: Keys
    plain: Keys  # without prefix and suffix
    ids: Keys  # Ensembl ids
    symbols: Keys
    is_model: bool = False

    @classmethod
    def of(cls, stored: Names, plain: Names, is_model: bool = False) -> "GeneNames":
        return cls(stored, plain, *ids_and_symbols(plain), is_model)

    def completed(self, column: "GeneNames") -> "GeneNames":
        """Return these names with ids, and symbols in place of names without letters, from a column of var."""
        ids = [stored or new for stored, new in zip(self.ids, column.ids, strict=True)]
        pairs = zip(self.symbols, column.symbols, strict=True)
        symbols = [stored if any(map(str.isalpha, stored or "")) else new for stored, new in pairs]
        return replace(self, ids=ids, symbols=symbols)

    def orthologs(self, columns: Iterable["GeneNames"], species: str) -> "GeneNames":
        """Return the ortholog in `species` of each gene, by the first source of symbols that has one."""
        orthologs = human_genes().orthologs
        if species == "mouse":
            orthologs = {human: mouse for mouse, human in orthologs.items()}
        times = Counter(symbol.upper() for symbol in orthologs)
        by_upper = {
            symbol.upper(): other
            for symbol, other in orthologs.items()
            if times[symbol.upper()] == 1
        }
        sources = zip(self.symbols, *(column.symbols for column in columns), strict=True)
        translated = (
            (by_upper.get((symbol or "").upper()) for symbol in symbols) for symbols in sources
        )
        symbols = [next(filter(None, choices), None) for choices in translated]
        return GeneNames(symbols, symbols, [None] * len(symbols), symbols)

    @cached_property
    def ids_of_symbols(self) -> Keys:
        """The Ensembl id of each symbol (GENCODE)."""
        return [human_genes().ids.get(symbol or "") for symbol in self.symbols]

    @cached_property
    def gencode_ids(self) -> Keys:
        """The Ensembl id of each gene, else that of its symbol."""
        return [
            stored or other for stored, other in zip(self.ids, self.ids_of_symbols, strict=True)
        ]

    @cached_property
    def hyphens(self) -> Keys:
        return [symbol and symbol.replace("_", "-") for symbol in self.symbols]

    @cached_property
    def upper(self) -> Keys:
        """The symbols in upper case; of a file, None for symbols that differ only in case."""
        times = Counter(symbol.upper() for symbol in set(self.symbols) if symbol)
        upper = [symbol and symbol.upper() for symbol in self.symbols]
        return (
            upper
            if self.is_model
            else [symbol if symbol and times[symbol] == 1 else None for symbol in upper]
        )

    @cached_property
    def current(self) -> Keys:
        """HGNC's current symbol of each gene, by its id or symbol."""
        table = human_genes()
        pairs = zip(self.ids, self.symbols, strict=True)
        approved = ((gene_id, name if name in table.approved else None) for gene_id, name in pairs)
        return [table.current.get(gene_id or "") or name for gene_id, name in approved]

    @cached_property
    def current_of_former(self) -> Keys:
        """The same, else HGNC's current symbol of the gene that had this name before."""
        table = human_genes()

        def now(name: str | None) -> str | None:
            if name in table.upper_ids:  # GENCODE has a gene of that name
                return table.current.get(table.upper_ids[name])
            return table.former.get(name or "")

        return [
            current or now(name) for current, name in zip(self.current, self.upper, strict=True)
        ]


def _add_matches(target: np.ndarray, keys: Keys, model_keys: Keys, only_free: bool) -> list[int]:
    """Match each gene without a `target` to the only gene of the model with the same key; return these genes.

    None is no key. With `only_free`, genes of the model that have a match get no other.
    """
    unmatched = np.flatnonzero(target < 0).tolist()
    times = Counter(model_keys if unmatched else ())
    taken = set(target[target >= 0].tolist()) if only_free else set()
    unique = (
        (key, column)
        for column, key in enumerate(model_keys)
        if key is not None and times[key] == 1
    )
    column_of: dict[str | None, int] = {
        key: column for key, column in unique if column not in taken
    }
    matched = [gene for gene in unmatched if keys[gene] in column_of]
    target[matched] = [column_of[keys[gene]] for gene in matched]
    return matched


@lru_cache(maxsize=2)  # the samples of a run often have the same genes
def _match(
    file: tuple[Names, Names],
    model: tuple[Names, Names],
    columns: tuple[tuple[str, Names], ...],
    ortholog_species: str | None,
    is_human: bool,
) -> tuple[np.ndarray, dict[str, int]]:
    """Return the target of each gene of a file, and how many genes each rule has matched.

    The names are those as stored, and without prefix and suffix; `columns` are further names of the file's genes.
    `ortholog_species` is the model's species if the file is of another. `is_human`: the table of human genes applies.
    """
    target = np.full(len(file[0]), -1, dtype=np.int64)
    num_matched: Counter[str] = Counter()

    def apply(rules: Iterable[Rule], genes: GeneNames) -> None:
        for rule in rules:
            names = getattr(genes, rule.names), getattr(model_genes, rule.model_names)
            num_matched[rule.note] += len(_add_matches(target, *names, rule.only_free))

    genes = GeneNames.of(*file)
    model_genes = GeneNames.of(*model, is_model=True)
    of_columns = {name: GeneNames.of(values, values) for name, values in columns}
    has_affix = np.zeros(len(target), dtype=bool)
    if ortholog_species:
        genes = genes.orthologs(of_columns.values(), ortholog_species)
        apply(RULES_BY_NAME[-1:], genes)
    else:
        apply(RULES_BY_NAME[:1], genes)
        has_affix = np.array(
            [name != plain for name, plain in zip(*file, strict=True)], dtype=bool
        ) & (target < 0)
        apply(RULES_BY_NAME[1:], genes)
        for name, column in of_columns.items():
            apply(
                [rule._replace(note=COLUMN.format(name=name)) for rule in RULES_BY_NAME[1:]], column
            )
            genes = genes.completed(column)
    num_reached = len(np.unique(target[target >= 0]))
    # If no name is an id, the table only helps genes of the model without a match.
    needs_table = is_human and (
        num_reached < len(set(model[0])) or any(genes.ids) or any(model_genes.ids)
    )
    for rule in FURTHER_RULES:
        if not rule.by_table or (needs_table and (target < 0).any()):
            apply([rule], genes)
    target.flags.writeable = False  # shared by all callers
    if ortholog_species:
        return target, {ORTHOLOG: int((target >= 0).sum())}
    return target, dict(num_matched) | {AFFIX: int((has_affix & (target >= 0)).sum())}


def name_columns(var: pd.DataFrame | None, genes: Iterable[str] = ()) -> dict[str, list[str]]:
    """Return the columns of var that hold gene names, by the name of the column, the one with most known names first.

    Known are names and ids of human and mouse genes in any case, and `genes`.
    """
    if var is None:
        return {}
    known = set(genes)
    columns: dict[str, list[str]] = {}
    shares: dict[str, float] = {}
    for name, column in var.items():
        if pd.api.types.is_numeric_dtype(column.dtype):
            continue
        texts = [str(value).strip() for value in column.astype(object).where(column.notna(), "")]
        some = texts[:: max(1, len(texts) // NUM_TEXTS_SAMPLED)]
        share = np.mean(
            [text in known or is_gene(text) or is_gene(text.upper()) for text in some or [""]]
        )
        if share >= AXIS_SHARE:
            columns[str(name)], shares[str(name)] = texts, float(share)
    return {name: columns[name] for name in sorted(columns, key=lambda name: -shares[name])}
