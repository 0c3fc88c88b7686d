"""Which gene of a model each gene of a file is, whatever the two call it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from scperformer.errors import InputError
from scperformer.genes.hgnc import UPDATE, Hgnc, read_hgnc
from scperformer.genes.names import first_of_each, guess_species, id_kind, parts, repeated_note, without_genome
from scperformer.genes.tables import Gencode, gencode, orthologs

# Columns of var that hold names of genes, as CELLxGENE, 10x, scanpy, Seurat and others call them.
NAME_COLUMNS = (
    *("feature_name", "feature_id", "gene_ids", "gene_id", "gene_symbols", "gene_symbol", "gene_names", "gene_name"),
    *("symbol", "symbols", "hgnc_symbol", "gene_short_name", "gene", "genes", "features", "name", "names", "_index"),
    *("ensembl_id", "ensembl_ids", "ensembl", "ensembl_gene_id", "ensembl_gene_ids", "ensg", "ensgid"),
)
# How a gene was found -> a sentence about all that were found so, `many` of them.
EXACT = "exact"
SAID = {
    "version removed": "{many} Ensembl ids were matched without their versions",
    "part of a compound name": "{many} names were matched by a part of them (the Ensembl id or the symbol)",
    "symbol<->Ensembl by GENCODE": "{many} genes were translated between Ensembl ids and symbols (GENCODE 44)",
    "case": "{many} names were matched in upper case",
    "symbol<->Ensembl by HGNC": "{many} genes were translated between Ensembl ids and symbols (HGNC, {date})",
    "previous symbol or alias": "{many} genes were matched by a previous symbol or alias (HGNC, {date})",
    "ortholog": "{many} genes were matched to their only ortholog in the other species (Ensembl 105)",
}
HINT_SHARE = 0.1  # of the model's genes: if more are not found, a hint at what could find them is worth a line


@dataclass(frozen=True, kw_only=True)
class GeneMap:
    """For every gene of a file the gene of a model that it is.

    Attributes
    ----------
    target
        int64, the column of the model; -1: none.
    how
        How it was found: "exact", a key of `SAID`, "var column NAME"; "" where there is none.
    notes
        Sentences for people, with counts.
    species, model_species
        human, mouse, other or unknown, as told or guessed.
    """

    target: np.ndarray
    how: np.ndarray
    notes: list[str]
    species: str
    model_species: str

    @cached_property
    def first(self) -> np.ndarray:
        """For every gene of the file the first one that goes to the same gene of the model; else itself."""
        own = -1 - np.arange(len(self.target))
        return first_of_each(np.where(self.target >= 0, self.target, own))


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
    in `var`, translation between ids and symbols. What is less sure finds only genes of the model that the file has not
    otherwise: names that differ in case only, if no other name does, and previous symbols or aliases, if they are
    one gene's alone and no gene's current symbol.

    Parameters
    ----------
    names
        Of the file; repeated ones are one gene.
    model_genes
        Unique names.
    var
        What the file says about its genes, a row for each of `names`.
    species
        Of the file: auto, human or mouse. Told, and other than the model's: genes are matched by orthologs.

    Raises
    ------
    InputError
        The file is of another species than the model, and `species` is not told; or a table of names is damaged.
    """
    of_model = guess_species(model_genes)
    names, genome = without_genome([str(name).strip() for name in names], of_model if species == "auto" else species)
    columns = name_columns(var)
    of_file = _species(names, columns) if species == "auto" else species
    found = _Matching(names, model_genes)
    differ = "unknown" not in (of_file, of_model) and of_file != of_model
    if differ and species == "auto" and 2 * found.num_exact() < len(model_genes):
        raise _other_species(
            of_file, of_model, names, model_genes, path, has_symbols=bool(columns) or id_kind(names) == "symbol"
        )
    crossed = species != "auto" and {of_file, of_model} == {"human", "mouse"}
    if crossed:
        of_mouse = orthologs()
        partners = of_mouse if of_model == "human" else {human: mouse for mouse, human in of_mouse.items()}
        found.translate(partners, columns)
    else:
        found.by_names(columns)
    is_human = of_model in ("human", "unknown") and (crossed or of_file in ("human", "unknown"))
    tables = (gencode(), read_hgnc()) if is_human else (None, None)
    found.by_tables(*tables)
    if crossed:
        found.how[found.target >= 0] = "ortholog"
    notes = [*genome, *repeated_note(names), *found.notes(tables[1])]
    if is_human:
        notes += _hints(found, *tables)
    return GeneMap(target=found.target, how=found.how, notes=notes, species=of_file, model_species=of_model)


class _Matching:
    """Genes of a file that find their genes in a model, one kind of key after the other."""

    def __init__(self, names: Sequence[str], model_genes: Sequence[str]):
        self.names, self.model = names, [str(gene).strip() for gene in model_genes]
        self.ids, self.symbols = _both(names)
        self.model_ids, self.model_symbols = _both(self.model)
        self.target = np.full(len(names), -1, dtype=np.int64)
        self.how = np.full(len(names), "", dtype=object)

    def num_exact(self) -> int:
        return len(set(self.names) & set(self.model))

    def claim(self, keys: Sequence[str | None], wanted: Sequence[str | None], how: str, *, sure: bool = True) -> None:
        """Send genes without a target to the one gene of the model that has their key.

        Where that is not sure, genes of the model that have been found already are left alone.
        """
        times = Counter(wanted)
        place = {key: column for column, key in enumerate(wanted) if key is not None and times[key] == 1}
        taken = set() if sure else set(self.target[self.target >= 0].tolist())
        for gene in np.flatnonzero(self.target < 0).tolist():
            key = keys[gene]
            column = -1 if key is None else place.get(key, -1)
            if column >= 0 and column not in taken:
                self.target[gene], self.how[gene] = column, how

    def by_names(self, columns: dict[str, list[str]]) -> None:
        """The name itself, its parts, and the names that var has beside it."""
        self.claim(self.names, self.model, EXACT)
        plain = [identifier if not symbol else None for identifier, symbol in zip(self.ids, self.symbols, strict=True)]
        plain_model = [
            identifier if not symbol else None
            for identifier, symbol in zip(self.model_ids, self.model_symbols, strict=True)
        ]
        self.claim(plain, plain_model, "version removed")
        self.claim(self.ids, self.model_ids, "part of a compound name")
        self.claim(self.symbols, self.model_symbols, "part of a compound name")
        for name, values in columns.items():
            ids, symbols = _both(values)
            self.claim(values, self.model, f"var column {name}")
            self.claim(ids, self.model_ids, f"var column {name}")
            self.claim(symbols, self.model_symbols, f"var column {name}")
            self.ids = [own or other for own, other in zip(self.ids, ids, strict=True)]
            self.symbols = [own if _is_word(own) else other for own, other in zip(self.symbols, symbols, strict=True)]

    def translate(self, partners: dict[str, str], columns: dict[str, list[str]]) -> None:
        """Take the symbols of another species for those of their partners; symbols without one are no names here."""
        times = Counter(name.upper() for name in partners)
        folded = {name.upper(): other for name, other in partners.items() if times[name.upper()] == 1}
        self.ids = [None] * len(self.names)
        named = [self.symbols, *(_both(values)[1] for values in columns.values())]
        found = ([folded.get((symbol or "").upper()) for symbol in symbols] for symbols in named)
        self.symbols = [next(filter(None, choices), None) for choices in zip(*found, strict=True)]
        self.claim(self.symbols, self.model_symbols, "ortholog")

    def by_tables(self, table: Gencode | None, hgnc: Hgnc | None) -> None:
        """Translation between ids and symbols, the same name in another case, previous symbols and aliases."""
        folded, model_folded = _folded(self.symbols), [symbol and symbol.upper() for symbol in self.model_symbols]
        if table is not None:
            how = "symbol<->Ensembl by GENCODE"
            model_ids = _ids(self.model_ids, self.model_symbols, table.ids)
            self.claim(self.ids, model_ids, how)
            self.claim([table.ids.get(symbol or "") for symbol in self.symbols], model_ids, how)
        self.claim(folded, model_folded, "case", sure=False)
        if table is not None:
            self.claim([table.folded.get(symbol or "") for symbol in folded], self.model_ids, "case", sure=False)
            self.claim(self.ids, [table.folded.get(symbol or "") for symbol in model_folded], "case", sure=False)
        if hgnc is not None:
            current = [_current(*gene, hgnc) for gene in zip(self.ids, self.symbols, strict=True)]
            of_model = [_current(*gene, hgnc) for gene in zip(self.model_ids, self.model_symbols, strict=True)]
            self.claim(current, of_model, "symbol<->Ensembl by HGNC")
            former = [now or _renamed(old, hgnc, table) for now, old in zip(current, folded, strict=True)]
            of_model = [now or _renamed(old, hgnc, table) for now, old in zip(of_model, model_folded, strict=True)]
            self.claim(former, of_model, "previous symbol or alias", sure=False)

    def notes(self, hgnc: Hgnc | None) -> list[str]:
        """A sentence for each way other than the exact name, and one on genes that are added up."""
        said = []
        for how, many in Counter(self.how[self.how != ""].tolist()).items():
            if how.startswith("var column "):
                said.append(f"names of {many:,} genes were taken from var['{how.removeprefix('var column ')}']")
            elif how != EXACT:
                said.append(SAID[how].format(many=f"{many:,}", date=hgnc.date if hgnc else ""))
        distinct = set(zip(self.names, self.target.tolist(), strict=True))
        sums = sum(num > 1 for num in Counter(column for _, column in distinct if column >= 0).values())
        if sums:
            said.append(f"{sums:,} genes of the model are sums of several genes of the file")
        return said


def _both(names: Iterable[str]) -> tuple[list[str | None], list[str | None]]:
    """The Ensembl ids in names, and the symbols in them."""
    split = [parts(name) for name in names]
    return [identifier for identifier, _ in split], [symbol for _, symbol in split]


def _is_word(name: str | None) -> bool:
    return bool(name) and any(map(str.isalpha, name or ""))


def _ids(ids: list[str | None], symbols: list[str | None], table: dict[str, str]) -> list[str | None]:
    """The Ensembl id of each gene: its own, else that of its symbol."""
    return [own or table.get(symbol or "") for own, symbol in zip(ids, symbols, strict=True)]


def _folded(symbols: list[str | None]) -> list[str | None]:
    """Symbols in upper case; None for those that differ from another one in case only."""
    times = Counter(symbol.upper() for symbol in set(symbols) if symbol)
    return [symbol.upper() if symbol and times[symbol.upper()] == 1 else None for symbol in symbols]


def _current(identifier: str | None, symbol: str | None, hgnc: Hgnc) -> str | None:
    """The current symbol of a gene by its id, or its symbol if that is current."""
    return hgnc.symbols.get(identifier or "") or (symbol if symbol in hgnc.ids else None)


def _renamed(symbol: str | None, hgnc: Hgnc, table: Gencode | None) -> str | None:
    """The current symbol of the gene that a symbol (upper case) once meant, unless GENCODE knows another gene by it."""
    if symbol and table is not None and symbol in table.folded:
        return hgnc.symbols.get(table.folded[symbol])
    return hgnc.former.get(symbol or "")


def name_columns(var: pd.DataFrame | None) -> dict[str, list[str]]:
    """The columns of var that hold names of genes by their own name, in the order of `NAME_COLUMNS`."""
    if var is None:
        return {}
    there = {str(name).lower(): name for name in reversed(list(var.columns))}
    wanted = [there[name] for name in NAME_COLUMNS if name in there]
    texts = {str(name): var[name].astype(object).where(var[name].notna(), "") for name in wanted}
    return {name: [str(value).strip() for value in values] for name, values in texts.items()}


def _species(names: Sequence[str], columns: dict[str, list[str]]) -> str:
    """Whose genes they are by their names, else by the first column that tells."""
    guesses = (guess_species(values) for values in (names, *columns.values()))
    return next((guess for guess in guesses if guess != "unknown"), "unknown")


def _other_species(
    of_file: str,
    of_model: str,
    names: Sequence[str],
    model_genes: Sequence[str],
    path: str | Path,
    has_symbols: bool,
) -> InputError:
    ours, theirs = names[len(names) // 2], model_genes[len(model_genes) // 2]
    remedy, mends = "use a model of the same species", []
    if of_model != "other":
        remedy += f", or add species={of_model} if these are {of_model} genes"
        mends.append(f"species={of_model}")
    if {of_file, of_model} == {"human", "mouse"} and has_symbols:  # orthologs go by symbol
        remedy += f", or species={of_file} to match genes by their orthologs"
        mends.insert(0, f"species={of_file}")
    return InputError(
        f"gene names in {path} that look {of_file} (e.g. '{ours}') for a model whose genes look {of_model} "
        f"(e.g. '{theirs}')",
        "cells of the species of the model",
        remedy,
        mends,
    )


def _hints(found: _Matching, table: Gencode | None, hgnc: Hgnc | None) -> list[str]:
    """What would find more genes, where many are missing."""
    num_found = len(set(found.target[found.target >= 0].tolist()))
    if len(found.model) - num_found <= HINT_SHARE * len(found.model) or (found.target >= 0).all():
        return []
    hints = []
    if table is None:
        hints.append("Ensembl ids and symbols were not translated: the package celltypist has the table and is missing")
    if hgnc is None:
        hints.append(f"previous symbols and aliases were not looked up: '{UPDATE}' fetches the table once")
    return hints
