"""Labels and the Cell Ontology (CL): ids of labels by name, and label trees made from its terms.

The terms come from a file in OBO format that the user names, or from a small table in this package (`cell_types.tsv`)
with common cell types of blood, immune system, pancreas and lung.
"""

import csv
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from scperformer.base.errors import InputError
from scperformer.base.inputs import table_rows
from scperformer.labels.texts import spelling, visible
from scperformer.labels.tree import UNKNOWN_TERM, LabelTree

# Values of the option `ontology`; all others are names of files.
PACKAGED_TERMS = "packaged"
NO_ONTOLOGY = "none"
TERM_TABLE = Path(__file__).with_name("cell_types.tsv")
TABLE_VERSION = "2026-03-26"  # the release of CL from which the table has its names and parents
# Terms that say nothing about a type: cell, native, eukaryotic, animal, somatic, nucleate and single nucleate cell.
TOO_GENERAL = {f"CL:{number:07}" for number in (0, 3, 255, 548, 2371, 2242, 226)}
SYNONYM = re.compile(r'"((?:[^"\\]|\\.)*)" EXACT')
VERSION = re.compile(r"^data-version: .*?(\d{4}-\d{2}-\d{2})", re.MULTILINE)


@dataclass(frozen=True)
class Ontology:
    """The terms of an ontology, by their ids."""

    version: str  # date of the release
    names: dict[str, str]
    parents: dict[str, list[str]]  # by the relation is_a
    ids: dict[str, str]  # the id of each name and synonym, in the form of `spelling`

    def term(self, label: str) -> str | None:
        """Return the id of the term with this name or exact synonym; "monocyte, classical" is "classical monocyte"."""
        last, _, first = label.partition(",")
        return self.ids.get(spelling(label)) or self.ids.get(spelling(f"{first} {last}"))

    def ancestors(self, term: str) -> set[str]:
        """Return a term and all its ancestors by is_a."""
        ancestors = {term}
        waiting = [term]
        while waiting:
            new = [
                parent for parent in self.parents.get(waiting.pop(), []) if parent not in ancestors
            ]
            ancestors.update(new)
            waiting += new
        return ancestors


def _ids_of(
    names: dict[str, str], synonyms: list[tuple[str, str]], packaged: dict[str, str]
) -> dict[str, str]:
    """Return the id of each name and synonym; of several, the id of the name, else of the packaged table, else none."""
    pairs = {(spelling(text), term) for text, term in synonyms if term in names}
    num_terms = Counter(key for key, _ in pairs)
    ids = {key: term for key, term in pairs if num_terms[key] == 1}
    ids |= {key: term for key, term in packaged.items() if term in names}
    num_names = Counter(map(spelling, names.values()))
    return ids | {
        key: term for term, name in names.items() if num_names[key := spelling(name)] == 1
    }


@cache
def packaged_ontology() -> Ontology:
    """Return the terms of the table in this package."""
    with TERM_TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(
            csv.DictReader((line for line in file if line[0] != "#"), delimiter="\t", restval="")
        )
    names = {row["id"]: row["name"] for row in rows}
    synonyms = [(text, row["id"]) for row in rows for text in row["synonyms"].split("|") if text]
    parents = {row["id"]: [row["parent"]] for row in rows if row["parent"]}
    return Ontology(TABLE_VERSION, names, parents, _ids_of(names, synonyms, {}))


def read_obo(path: str | Path) -> Ontology:
    """Read names, exact synonyms and is_a parents from a file in OBO format; obsolete terms are left out."""
    names: dict[str, str] = {}
    parents: dict[str, list[str]] = {}
    synonyms: list[tuple[str, str]] = []
    text = _read_text(path, "a file in OBO format such as cl-basic.obo")
    head, *stanzas = f"\n{text}".split("\n[")
    for stanza in stanzas:
        kind, *lines = stanza.splitlines()
        tags = [line.strip().partition(": ")[::2] for line in lines]
        fields = dict(tags)
        if kind.strip() == "Term]" and "name" in fields and fields.get("is_obsolete") != "true":
            term = fields.get("id", "")
            names[term] = fields["name"]
            parents[term] = [value.split()[0] for tag, value in tags if tag == "is_a"]
            exact = (SYNONYM.match(value) for tag, value in tags if tag == "synonym")
            synonyms += [(text[1], term) for text in exact if text]
    if not names:
        found = f"no [Term] in {path}"
        raise InputError(
            "bad-ontology", found, "a file in OBO format such as cl-basic.obo", "download it again"
        )
    version = VERSION.search(head)
    return Ontology(
        version[1] if version else "",
        names,
        parents,
        _ids_of(names, synonyms, packaged_ontology().ids),
    )


def _read_text(path: str | Path, expected: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "bytes that are not UTF-8"
        raise InputError(
            "bad-ontology", f"{path} cannot be read ({reason})", expected, "check its name"
        ) from error


def read_pairs(path: str | Path, expected: str) -> list[tuple[str, str]]:
    """Read the rows of a CSV or TSV file with two columns, also with semicolons; blank lines are left out."""
    rows = [row for row in table_rows(_read_text(path, expected).strip()) if row not in ([], [""])]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2 or not all(row):
            found = f"row {number} of {path} with {sum(map(bool, row))} values"
            raise InputError("pairs-row", found, expected, "write two values in each row")
    return [(visible(first), visible(second)) for first, second in rows]


def find_terms(
    labels: Sequence[str], stated: Sequence[str], source: str
) -> tuple[list[str], Ontology | None]:
    """Return the ontology id of each label, which may be `stated`, or `unknown`; and the ontology, or None."""
    if source == NO_ONTOLOGY:
        return list(stated), None
    ontology = packaged_ontology() if source == PACKAGED_TERMS else read_obo(source)
    pairs = zip(labels, stated, strict=True)
    return [
        (ontology.term(label) or term) if term == UNKNOWN_TERM else term for label, term in pairs
    ], ontology


def joined_by_terms(
    labels: Sequence[str], terms: Sequence[str], ontology: Ontology, *, by_name: bool = False
) -> LabelTree | None:
    """Return the tree of labels under the most specific terms that join some of them; None if no term does.

    A term may have several parents, so that groups of labels can overlap. Small groups are taken first, and a group
    that overlaps one of them without containing it is left out. A term of all labels is left out, too: its probability
    would always be 1. If one label of a group has the id of its term, this label is the parent; `by_name`: only if it
    has the name of the term, too, as other labels may be narrower than their ids.
    """
    term_of = _most_specific_terms(labels, terms, ontology)
    node_of: dict[frozenset[int], str] = {}  # nested groups, small ones first
    for group, term in sorted(term_of.items(), key=lambda item: (len(item[0]), item[1])):
        if all(smaller < group or smaller.isdisjoint(group) for smaller in node_of):
            same = [labels[index] for index in group if terms[index] == term]
            same = [label for label in same if not by_name or ontology.term(label) == term]
            name = ontology.names[term]
            is_other_label = name in labels and terms[labels.index(name)] != term
            node_of[group] = (
                same[0] if len(same) == 1 else f"{name} ({term})" if is_other_label else name
            )
    single_labels = ((frozenset([index]), label) for index, label in enumerate(labels))
    parents: dict[str, str] = {}
    for group, node in (*single_labels, *node_of.items()):
        parent = next(
            (above for larger, above in node_of.items() if group <= larger and above != node), None
        )
        if parent is not None:
            parents[node] = parent
    inner_terms = {node: term_of[group] for group, node in node_of.items() if node not in labels}
    return LabelTree(list(labels), parents, inner_terms) if parents else None


def _most_specific_terms(
    labels: Sequence[str], terms: Sequence[str], ontology: Ontology
) -> dict[frozenset[int], str]:
    """Return the groups of two or more labels, but not all, that a term joins, each with its most specific term."""
    joined: dict[str, set[int]] = {}  # indices of the labels under each term
    for index, term in enumerate(terms):
        for ancestor in ontology.ancestors(term) - TOO_GENERAL if term in ontology.names else ():
            joined.setdefault(ancestor, set()).add(index)
    term_of: dict[frozenset[int], str] = {}
    # the most specific last
    for term in sorted(joined, key=lambda term: (len(ontology.ancestors(term)), term)):
        if 1 < len(joined[term]) < len(labels) and term in ontology.names:
            term_of[frozenset(joined[term])] = term
    return term_of
