"""Labels and the Cell Ontology (CL): ids of labels by table or by name, and the terms that join labels in a tree.

The terms come from a file in OBO format that the user names, or from a small table of ours (`cell_types.tsv`), which
has common types of blood, immune system, pancreas and lung.
"""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scperformer.base.errors import InputError
from scperformer.labels.texts import spelled_as
from scperformer.labels.tree import LabelTree

# Values of the option `ontology` beside names of files.
PACKAGED_TERMS = "packaged"
NO_ONTOLOGY = "none"
UNKNOWN_TERM = "unknown"  # in the CELLxGENE schema: there is no ontology term
TERM_TABLE = Path(__file__).with_name("cell_types.tsv")
TABLE_VERSION = "2026-03-26"  # the release of CL that its names and parents are from
# Terms that say nothing about a type: cell, native, eukaryotic, animal, somatic, nucleate and single nucleate cell.
TOO_GENERAL = {f"CL:{number:07}" for number in (0, 3, 255, 548, 2371, 2242, 226)}
TERM_ID = re.compile(r"[A-Za-z]+[:_]\d+")  # CL:0000236, or CL_0000236 as in addresses
SYNONYM = re.compile(r'"((?:[^"\\]|\\.)*)" EXACT')
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True)
class Ontology:
    """Terms of an ontology by their id."""

    version: str  # date of the release, or as the file names it
    names: dict[str, str]
    parents: dict[str, list[str]]  # is_a
    known: dict[str, str]  # the id of each name and synonym, as `_key` writes it

    def term(self, label: str) -> str | None:
        """Return the id of the term with this name or exact synonym; "naive B" also finds "naive B cell"."""
        key = _key(label)
        return self.known.get(key) or (self.known.get(f"{key} cell") if len(key) > 1 else None)

    def ancestors(self, term: str) -> set[str]:
        """Return a term and everything that it is."""
        found = {term}
        waiting = [term]
        while waiting:
            new = [parent for parent in self.parents.get(waiting.pop(), []) if parent not in found]
            found.update(new)
            waiting += new
        return found


def _key(text: str) -> str:
    """Return a name in the form in which names are compared: no capitals, no plural, one blank between words."""
    key = re.sub(r"[\s_]+", " ", text.casefold()).strip().replace("-cell", " cell")
    return re.sub(r"(?<=[^\W\d]{2})s$", "", re.sub(r"\bcells\b", "cell", key))


def _known(names: dict[str, str], synonyms: list[tuple[str, str]], ours: dict[str, str]) -> dict[str, str]:
    """Return the id of each name, else of each synonym of ours, else of each other one that has a single term."""
    ids = {(_key(text), term) for text, term in synonyms if term in names}
    num = Counter(key for key, _ in ids)
    found = {key: term for key, term in ids if num[key] == 1}
    found |= {key: term for key, term in ours.items() if term in names}
    return found | {_key(name): term for term, name in names.items()}


@cache
def packaged_ontology() -> Ontology:
    """Return the terms of our own table."""
    with TERM_TABLE.open(encoding="utf-8", newline="") as file:
        lines = (line for line in file if not line.startswith("#"))
        rows = list(csv.DictReader(lines, delimiter="\t", restval=""))
    names = {row["id"]: row["name"] for row in rows}
    synonyms = [(text, row["id"]) for row in rows for text in row["synonyms"].split("|") if text]
    parents = {row["id"]: [row["parent"]] for row in rows if row["parent"]}
    return Ontology(TABLE_VERSION, names, parents, _known(names, synonyms, {}))


def read_obo(path: str | Path) -> Ontology:
    """Read names, exact synonyms and is_a parents from a file in OBO format; obsolete terms are left out.

    Raises
    ------
    InputError
        The file cannot be read, or has no terms.
    """
    names: dict[str, str] = {}
    parents: dict[str, list[str]] = {}
    synonyms: list[tuple[str, str]] = []
    version = ""
    stanza = ""
    term = ""
    for line in _lines(path, "a file in OBO format such as cl-basic.obo"):
        tag, _, value = line.partition(": ")
        if line.startswith("["):
            stanza = line
            term = ""
        elif not stanza and tag == "data-version":
            version = found[0] if (found := DATE.search(value)) else value
        elif stanza != "[Term]":
            continue
        elif tag == "id":
            term = value
        elif tag == "name":
            names[term] = value
        elif tag == "synonym" and (text := SYNONYM.match(value)):
            synonyms.append((text[1], term))
        elif tag == "is_a":
            parents.setdefault(term, []).append(value.split()[0])
        elif tag == "is_obsolete" and value == "true":
            names.pop(term, None)
    if not names:
        raise InputError(f"no [Term] in {path}", "a file in OBO format such as cl-basic.obo", "download it again")
    return Ontology(version, names, parents, _known(names, synonyms, packaged_ontology().known))


def _lines(path: str | Path, expected: str) -> Iterator[str]:
    """Read a text file line by line, without surrounding blanks."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline=None) as file:
            for line in file:
                yield line.strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "bytes that are not UTF-8"
        raise InputError(f"{path} cannot be read ({reason})", expected, "check its name") from error


def read_pairs(path: str | Path, expected: str) -> list[tuple[str, str]]:
    """Read the rows of a CSV or TSV file with two columns; blank lines are left out.

    Raises
    ------
    InputError
        The file cannot be read, or a row has another number of fields or an empty one.
    """
    lines = [line for line in _lines(path, expected) if line]
    rows = list(csv.reader(lines, delimiter="\t" if lines and "\t" in lines[0] else ","))
    for number, row in enumerate(rows, start=1):
        if len(row) != 2 or not all(field.strip() for field in row):
            found = f"row {number} of {path} with {sum(bool(field.strip()) for field in row)} values"
            raise InputError(found, expected, "write two values in each row")
    return [(first.strip(), second.strip()) for first, second in rows]


def _read_ids(path: str, labels: Sequence[str]) -> dict[str, str]:
    """Read the ids of labels from a table, whose first row may name the columns."""
    expected = "a CSV or TSV table with a label and its ontology id in each row"
    rows = read_pairs(path, expected)
    if rows and not TERM_ID.fullmatch(rows[0][1]):
        del rows[0]
    for label, term in rows:
        if not TERM_ID.fullmatch(term):
            raise InputError(f"'{term}' as the id of '{label}' in {path}", "an id such as CL:0000236", "correct it")
    names = spelled_as(labels, (label for label, _ in rows))
    ids = {name: term.replace("_", ":") for name, (_, term) in zip(names, rows, strict=True)}
    if len(ids) < len(rows):
        twice = next(label for label, num in Counter(names).items() if num > 1)
        raise InputError(f"label '{twice}' twice in {path}", "one row per label", "remove the others")
    if not ids.keys() & set(labels):
        found = f"{path} with none of the labels (e.g. '{next(iter(ids), '')}')"
        raise InputError(found, f"labels such as '{labels[0]}'", "write the labels as they are in the reference")
    return ids


def find_terms(labels: Sequence[str], given: Sequence[str], source: str) -> tuple[list[str], Ontology | None]:
    """Return the ontology id of each label (`unknown`: none was found), and the ontology; None for source=none.

    Parameters
    ----------
    given
        Ids that are known already, or `unknown`; they stay.
    source
        `packaged`, `none`, a CL file (`.obo`), or a table of labels and ids (`.csv`, `.tsv`).
    """
    if source == NO_ONTOLOGY:
        return list(given), None
    ontology = read_obo(source) if source.endswith(".obo") else packaged_ontology()
    if source.endswith((".csv", ".tsv")):
        table = _read_ids(source, labels)
        matched = [table.get(label) for label in labels]
    else:
        matched = [ontology.term(label) for label in labels]
    pairs = zip(given, matched, strict=True)
    return [(term or UNKNOWN_TERM) if known == UNKNOWN_TERM else known for known, term in pairs], ontology


def joined_by_terms(labels: Sequence[str], terms: Sequence[str], ontology: Ontology) -> LabelTree | None:
    """Return the tree of labels under the most specific terms that join some of them; None if no term does.

    A term may be several things. Terms that join few labels go first, and one that cuts across them is left out. A term
    of all labels is left out, too: its probability is always 1. A label that alone has the id of a term is the parent.
    """
    joined: dict[str, set[int]] = {}
    for place, term in enumerate(terms):
        for ancestor in ontology.ancestors(term) - TOO_GENERAL if term in ontology.names else ():
            joined.setdefault(ancestor, set()).add(place)
    special: dict[frozenset[int], str] = {}  # the most specific term of each group
    for term in sorted(joined, key=lambda term: (len(ontology.ancestors(term)), term)):
        if 1 < len(joined[term]) < len(labels) and term in ontology.names:
            special[frozenset(joined[term])] = term
    nested: dict[frozenset[int], str] = {}  # node of each group, small groups first
    for group, term in sorted(special.items(), key=lambda item: (len(item[0]), item[1])):
        if all(smaller < group or smaller.isdisjoint(group) for smaller in nested):
            same = [labels[place] for place in group if terms[place] == term]
            name = ontology.names[term]
            taken = name in labels and terms[labels.index(name)] != term
            nested[group] = same[0] if len(same) == 1 else f"{name} ({term})" if taken else name
    parents: dict[str, str] = {}
    groups = list(nested)
    for inner, node in [*((frozenset([place]), label) for place, label in enumerate(labels)), *nested.items()]:
        above = next((nested[group] for group in groups if inner <= group and nested[group] != node), None)
        if above is not None:
            parents[node] = above
    nodes = {node: special[group] for group, node in nested.items() if node not in labels}
    return LabelTree(list(labels), parents, nodes) if parents else None
