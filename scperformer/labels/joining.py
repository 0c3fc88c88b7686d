"""The labels of several studies joined: the same type under one name, and coarse labels over the fine ones."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean
from scperformer.labels.ontology import find_terms, joined_by_terms, read_pairs
from scperformer.labels.tree import UNKNOWN_TERM, LabelTree

MAP = "a CSV or TSV table with a label of a study and its joint label in each row"


@dataclass(frozen=True)
class StudyLabels:
    """The labels of one study."""

    study: str
    labels: list[str]
    terms: list[str]  # ontology id of each label, or "unknown"


@dataclass(frozen=True)
class JointLabels:
    """The labels of several studies together: C of them, none of which is a type of another."""

    labels: list[str]
    terms: list[str]  # ontology id of each label, or "unknown"
    tree: LabelTree | None
    meanings: list[np.ndarray]  # of each study: which joint labels each of its labels stands for, boolean K x C


def read_label_map(path: str, labels: Sequence[str]) -> dict[str, str]:
    """Read what labels of the studies are called jointly, from a table whose header may be `label` and `joint`."""
    rows = read_pairs(path, MAP)
    if rows and rows[0][0].casefold() == "label" and "label" not in labels:
        del rows[0]
    joint_of: dict[str, str] = {}
    for label, joint in rows:
        if label not in labels:
            remedy = f"{did_you_mean(label, labels)}write the labels as the studies have them"
            raise InputError(f"label '{label}' in {path}", f"labels such as '{labels[0]}'", remedy)
        if joint_of.setdefault(label, joint) != joint:
            found = f"two joint labels of '{label}' in {path} ('{joint_of[label]}' and '{joint}')"
            raise InputError(found, "one joint label for each label", "leave one of them out")
    return joint_of


def join_labels(studies: Sequence[StudyLabels], source: str, label_map: str | None = None) -> JointLabels:
    """Join the labels of studies that have the same ontology id or, by `label_map`, the same joint label.

    A label is named as in the first study that has it. A label of which another label is a type, by the ontology
    `source` (`find_terms`), is no joint label: it stands for its types. A name with two ontology ids, and a study that
    shares no label with the others, are refused.
    """
    names = list(dict.fromkeys(label for study in studies for label in study.labels))
    renamed = {} if label_map is None else read_label_map(label_map, names)
    given: dict[str, str] = {}  # id of each name, in the order of the studies
    for study in studies:
        for label, term in zip(study.labels, study.terms, strict=True):
            own = UNKNOWN_TERM if label in renamed else term
            name = renamed.get(label, label)
            known = given.setdefault(name, own)
            if UNKNOWN_TERM not in (known, own) and known != own:
                found = f"label '{name}' as {known} and, in {study.study}, as {own}"
                raise InputError(found, "one ontology id for each label", "rename one of them with label_map=...")
            given[name] = own if known == UNKNOWN_TERM else known
    terms, ontology = find_terms(list(given), list(given.values()), source)
    term_of = dict(zip(given, terms, strict=True))
    first_with: dict[str, str] = {}  # the first name of each id
    for name, term in term_of.items():
        first_with.setdefault(name if term == UNKNOWN_TERM else term, name)

    def joint_name(label: str) -> str:
        name = renamed.get(label, label)
        return first_with[name if term_of[name] == UNKNOWN_TERM else term_of[name]]

    all_names = sorted(set(first_with.values()))
    types: dict[str, list[str]] = {name: [] for name in all_names}  # the other names that are types of a name
    for name in all_names:
        above = set() if ontology is None else ontology.ancestors(term_of[name]) - {term_of[name]}
        for parent in above & first_with.keys():
            types[first_with[parent]].append(name)
    labels = [name for name in all_names if not types[name]]
    column = {label: place for place, label in enumerate(labels)}
    meanings = []
    for study in studies:
        meaning = np.zeros((len(study.labels), len(labels)), dtype=bool)
        for row, label in enumerate(study.labels):
            name = joint_name(label)
            meaning[row, [column[kind] for kind in (types[name] or [name]) if kind in column]] = True
        meanings.append(_without_repeats(meaning))
    knows = np.stack([meaning.any(axis=0) for meaning in meanings])
    for number, study in enumerate(studies):
        if not (knows[number] & np.delete(knows, number, axis=0).any(axis=0)).any():
            found = f"no label of {study.study} in the other studies"
            raise InputError(found, "studies that share labels", "name their joint labels with label_map=...")
    joint_terms = [term_of[label] for label in labels]
    tree = None if ontology is None else joined_by_terms(labels, joint_terms, ontology)
    return JointLabels(labels, joint_terms, tree, meanings)


def _without_repeats(meaning: np.ndarray) -> np.ndarray:
    """Leave a joint label to the label of a study that stands for the fewest.

    A study may have both a type and types of it: there, the coarse label stands for the types that have no label of
    their own, if there are any.
    """
    result = meaning.copy()
    taken = np.zeros(meaning.shape[1], dtype=bool)
    for row in np.argsort(meaning.sum(axis=1), kind="stable"):
        is_left = meaning[row] & ~taken
        result[row] = is_left if is_left.any() else meaning[row]  # else: two labels of a study under one joint label
        taken |= meaning[row]
    return result
