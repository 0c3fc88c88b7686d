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

from scperformer.base.errors import InputError
from scperformer.base.inputs import table_rows
from scperformer.io.excel import read_workbook
from scperformer.io.sheet import read_text

EXPECTED = "marker genes of cell types: columns type and gene, a column for each type, GMT, or Garnett's file"
REMEDY = "see docs/markers.md for its forms"
MAX_GENES = 500  # of a type; more are no markers
TYPES = ("type", "cell_type", "celltype", "cell type", "cellname", "cluster", "source", "label")
GENES = ("gene", "genes", "marker", "markers", "gene_symbol", "symbol", "target", "genesymbolmore1")
NEGATIVE = ("genesymbolmore2", "not expressed")
DATE = re.compile(
    r"\d{1,2}[-./ ](?:mar|march|sep|sept|dec)|(?:mar|sep|sept|dec)[-./ ]\d{1,2}|20\d\d-(?:03|09|12)-\d\d.*|4\d{4}",
    re.I,
)


@dataclass
class MarkerList:
    """The marker genes of cell types, with their weights, and the parents of types in a label tree."""

    path: str
    # of each gene of a type; below 0: not expressed
    weights: dict[str, dict[str, float]] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    terms: dict[str, str] = field(default_factory=dict)  # ontology ids

    def add(self, name: str, gene: str, weight: float = 1.0) -> None:
        """Add a marker gene to a type."""
        if DATE.fullmatch(gene):
            found = f"'{gene}' among the genes of '{name}' in {self.path}, a date"
            raise InputError(
                "gene-date", found, "a gene", "write SEPTIN2, MARCHF1 or DELEC1 as text"
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
        return {
            gene: weight
            for each in self.line(name)
            for gene, weight in self.weights.get(each, {}).items()
        }

    def require_types(self) -> "MarkerList":
        """Refuse a list without a type, or with two of the same genes, or too many of them."""
        if not self.labels:
            raise InputError(
                "no-types", f"no cell type with markers in {self.path}", EXPECTED, REMEDY
            )
        of_genes: dict[frozenset[tuple[str, float]], str] = {}
        for name in self.labels:
            genes = self.of_label(name)
            if len(genes) > MAX_GENES:
                found = f"{len(genes):,} genes of '{name}' in {self.path}"
                raise InputError(
                    "many-markers",
                    found,
                    f"up to {MAX_GENES}",
                    "keep those that tell it from others",
                )
            if (other := of_genes.setdefault(frozenset(genes.items()), name)) != name:
                found = f"the same genes for '{other}' and '{name}' in {self.path}"
                raise InputError(
                    "same-markers", found, "genes that tell types apart", "join both, or add a gene"
                )
        return self


def read_marker_list(path: str) -> MarkerList:
    """Read a list of the marker genes of cell types.

    Raises
    ------
    InputError
        The file is no list, has no type, two types with the same genes, or dates in place of genes.
    """
    try:
        if zipfile.is_zipfile(path):
            return _of_rows(read_workbook(Path(path)), path).require_types()
        text = read_text(Path(path), EXPECTED)
        if path.lower().endswith(".gmt"):
            return _of_gmt(text, path).require_types()
        if re.match(r"\s*(#.*\s*)*>", text):
            return _of_garnett(text, path).require_types()
        return _of_rows(table_rows(text), path).require_types()
    except csv.Error as error:  # such as a field of more than 131,072 characters
        raise InputError(
            "marker-list", f"{path} is no table of text ({error})", EXPECTED, REMEDY
        ) from error


def _genes(text: str) -> list[str]:
    return [
        gene for gene in re.split(r"[,;|\s/]+", text) if gene and gene.upper() not in ("NA", "NAN")
    ]


def _of_rows(rows: Sequence[Sequence[str]], path: str) -> MarkerList:
    """Return the list of a table: long, with a column of types and one of genes, or wide."""
    rows = [row for row in rows if any(row)]
    if not rows:
        raise InputError("marker-list", f"nothing in {path}", EXPECTED, REMEDY)
    header = [name.lower() for name in rows[0]]
    place = {name: header.index(name) for name in header}
    types, genes = (
        next((place[name] for name in names if name in place), None) for names in (TYPES, GENES)
    )
    markers = MarkerList(path)
    if types is None or genes is None:
        for name, *column in zip(
            *(list(row) + [""] * (len(rows[0]) - len(row)) for row in rows), strict=False
        ):
            if name and len(header) > 1:
                for gene in filter(None, column):
                    markers.add(name, gene)
        return markers
    for row in rows[1:]:
        filled = {
            name: row[index] for name, index in place.items() if index < len(row) and row[index]
        }
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
                raise InputError(
                    "two-parents", found, "one of them", "correct the rows of the type"
                )
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
