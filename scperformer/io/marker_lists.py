"""Lists of marker genes of cell types, as a person or a program writes them.

A long table has a row for each gene (columns type and gene, and perhaps sign, weight, parent and term), a wide one a
column for each type. Sheets of ScType, files of Garnett and GMT are read, too.
"""

import csv
import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from scperformer.base.errors import InputError
from scperformer.base.inputs import how_to_find, table_rows

EXPECTED = (
    "marker genes of two cell types or more: columns type and gene, a column for each type, GMT, or Garnett's file"
)
REMEDY = "see docs/markers.md for its forms"
MAX_BYTES = 2**24
MAX_GENES = 500  # of a type; more are no markers
TYPES = ("type", "cell_type", "celltype", "cell type", "cellname", "cluster", "source", "label")
GENES = ("gene", "genes", "marker", "markers", "gene_symbol", "symbol", "target", "genesymbolmore1")
NEGATIVE = ("genesymbolmore2", "not expressed")
DATE = re.compile(
    r"\d{1,2}[-./ ](?:mar|march|sep|sept|dec)|(?:mar|sep|sept|dec)[-./ ]\d{1,2}|20\d\d-(?:03|09|12)-\d\d.*|4\d{4}", re.I
)


@dataclass
class MarkerList:
    """The marker genes of cell types, with their weights, and the parents of types in a label tree."""

    path: str
    weights: dict[str, dict[str, float]] = field(default_factory=dict)  # of each gene of a type; below 0: not expressed
    parents: dict[str, str] = field(default_factory=dict)
    terms: dict[str, str] = field(default_factory=dict)  # ontology ids

    def add(self, name: str, gene: str, weight: float = 1.0) -> None:
        """Add a marker gene to a type."""
        if DATE.fullmatch(gene):
            found = f"'{gene}' among the genes of '{name}' in {self.path}, a date"
            raise InputError(
                "gene-date", found, "a gene", "write SEPTIN2, MARCHF1 or DELEC1 as text in the spreadsheet"
            )
        self.weights.setdefault(name, {})[gene] = weight

    @property
    def labels(self) -> list[str]:
        """The types that cells can have: those with markers that are no parents."""
        return [name for name in self.weights if name not in self.parents.values()]

    @property
    def genes(self) -> list[str]:
        return list(dict.fromkeys(gene for genes in self.weights.values() for gene in genes))

    def line(self, name: str) -> list[str]:
        """Return a type after all its parents, the most general first."""
        line = [name]
        while (parent := self.parents.get(line[0], name)) not in line:
            line.insert(0, parent)
        return line

    def of_label(self, name: str) -> dict[str, float]:
        """Return the markers of a type and of its parents."""
        return {gene: weight for each in self.line(name) for gene, weight in self.weights.get(each, {}).items()}

    def require_types(self) -> "MarkerList":
        """Refuse a list without a type, or with two of the same genes, or too many of them."""
        if not self.labels:
            raise InputError("no-types", f"no cell type with markers in {self.path}", EXPECTED, REMEDY)
        of_genes: dict[frozenset[tuple[str, float]], str] = {}
        for name in self.labels:
            genes = self.of_label(name)
            if len(genes) > MAX_GENES:
                found = f"{len(genes):,} genes of '{name}' in {self.path}"
                raise InputError("many-markers", found, f"up to {MAX_GENES}", "keep those that tell it from others")
            if (other := of_genes.setdefault(frozenset(genes.items()), name)) != name:
                found = f"the same genes for '{other}' and '{name}' in {self.path}"
                raise InputError("same-markers", found, "genes that tell types apart", "join both, or add a gene")
        return self


def read_marker_list(path: str) -> MarkerList:
    """Read a list of the marker genes of cell types.

    Raises
    ------
    InputError
        The file is no list, has no type, two types with the same genes, or dates in place of genes.
    """
    if not Path(path).is_file():
        raise InputError("no-file", f"no file {path}", EXPECTED, how_to_find(path))
    try:
        if path.lower().endswith((".xlsx", ".xlsm")):
            return _of_rows(_sheet(path), path).require_types()
        with Path(path).open("rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8-sig")
        if path.lower().endswith(".gmt"):
            return _of_gmt(text, path).require_types()
        if re.match(r"\s*(#.*\s*)*>", text):
            return _of_garnett(text, path).require_types()
        return _of_rows(table_rows(text), path).require_types()
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError("marker-list", f"{path} is no table of text ({error})", EXPECTED, REMEDY) from error


def _sheet(path: str) -> list[list[str]]:
    """Return the rows of the first sheet of a workbook; nothing in it is computed."""
    try:
        with zipfile.ZipFile(path) as archive:  # a small archive may hold more than memory does
            size = sum(part.file_size for part in archive.infolist())
        if size > 16 * MAX_BYTES:
            raise ValueError(f"{size:,} bytes")
        table = pd.read_excel(path, header=None, dtype=str, na_filter=False)
    except Exception as error:  # openpyxl raises many kinds for damaged workbooks
        raise InputError("marker-list", f"{path} is no list ({error})", EXPECTED, "save it as .csv") from error
    return [[field.strip() for field in row] for row in table.to_numpy(str).tolist()]


def _genes(text: str) -> list[str]:
    return [gene for gene in re.split(r"[,;|\s/]+", text) if gene and gene.upper() not in ("NA", "NAN")]


def _of_rows(rows: Sequence[Sequence[str]], path: str) -> MarkerList:
    """Return the list of a table: long, with a column of types and one of genes, or wide."""
    rows = [row for row in rows if any(row)]
    if not rows:
        raise InputError("marker-list", f"nothing in {path}", EXPECTED, REMEDY)
    header = [name.lower() for name in rows[0]]
    place = {name: header.index(name) for name in header}
    types, genes = (next((place[name] for name in names if name in place), None) for names in (TYPES, GENES))
    markers = MarkerList(path)
    if types is None or genes is None:
        for name, *column in zip(*(list(row) + [""] * (len(rows[0]) - len(row)) for row in rows), strict=False):
            if name and len(header) > 1:
                for gene in filter(None, column):
                    markers.add(name, gene)
        return markers
    for row in rows[1:]:
        filled = {name: row[index] for name, index in place.items() if index < len(row) and row[index]}
        name = row[types] if types < len(row) else ""
        if not name:
            continue
        weight = _weight(filled, name, path)
        for gene in _genes(filled.get(header[genes], "")):
            markers.add(name, gene, weight)
        for gene in (gene for column in NEGATIVE for gene in _genes(filled.get(column, ""))):
            markers.add(name, gene, -1.0)
        for key, kept in (("parent", markers.parents), ("term", markers.terms)):
            if key in filled and kept.setdefault(name, filled[key]) != filled[key]:
                found = f"'{kept[name]}' and '{filled[key]}' as {key} of '{name}' in {path}"
                raise InputError("two-parents", found, "one of them", "correct the rows of the type")
    return markers


def _weight(filled: dict[str, str], name: str, path: str) -> float:
    sign = filled.get("sign", "+").lower()
    try:
        weight = float(filled.get("weight", "1"))
        return -abs(weight) if sign in ("-", "-1", "negative", "down", "0", "false") else weight
    except ValueError:
        found = f"weight '{filled['weight']}' of a gene of '{name}' in {path}"
        raise InputError("marker-weight", found, "a number", "correct it") from None


def _of_gmt(text: str, path: str) -> MarkerList:
    markers = MarkerList(path)
    for line in text.splitlines():
        name, _, *genes = [*line.split("\t"), "", ""]
        for gene in filter(None, map(str.strip, genes)):
            markers.add(name.strip(), gene)
    return markers


def _of_garnett(text: str, path: str) -> MarkerList:
    markers = MarkerList(path)
    name = ""
    for line in text.splitlines():
        key, _, value = line.partition("#")[0].partition(":")
        if line.startswith(">"):
            name = line[1:].strip()
        elif key.strip() in ("expressed", *NEGATIVE):
            for gene in _genes(value):
                markers.add(name, gene, -1.0 if key.strip() in NEGATIVE else 1.0)
        elif key.strip() == "subtype of":
            markers.parents[name] = value.strip()
    return markers
