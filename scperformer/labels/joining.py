"""Labels joined: spellings of one type, numbered samples of one, the labels of several studies or of a truth."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean
from scperformer.labels.ontology import (
    Ontology,
    find_terms,
    joined_by_terms,
    packaged_ontology,
    read_pairs,
)
from scperformer.labels.texts import spelled_as, spellings
from scperformer.labels.tree import UNKNOWN_TERM, LabelTree

HYPHEN_OR_SIGN = re.compile(r"\d-(?!positive)")  # CD27-IgD+ may be CD27+ IgD+ or CD27- IgD+
# Endings of names that R, pandas and people add to samples of one type; T1 and Th17 are types.
REPLICATE = re.compile(
    r"(?P<type>.*?[^\W_])(?:(?P<mark>[._-])|[\s._-]rep(?:licate)?[\s._-]?)(?P<number>\d+)",
    re.IGNORECASE,
)
MAP = "a CSV or TSV table with a label of a study and its joint label in each row"
# Terms by markers and the terms of the same monocytes by function, which the ontology does not connect.
SAME = {"CL:0001054": "CL:0000860", "CL:0002396": "CL:0000875"}


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
    # of each study: which joint labels each of its labels stands for, boolean K x C
    meanings: list[np.ndarray]


def read_label_map(path: str, labels: Sequence[str]) -> dict[str, str]:
    """Read what labels of the studies are called jointly, from a table whose header may be `label` and `joint`.

    Its labels, and joint labels that are not new, may be other spellings of `labels`.
    """
    rows = read_pairs(path, MAP)
    if rows and rows[0][0].casefold() == "label" and "label" not in labels:
        del rows[0]
    joint_of: dict[str, str] = {}
    mapped = spelled_as(labels, [label for label, _ in rows])
    kept = [label for label in labels if label not in mapped]
    for label, joint in zip(mapped, spelled_as(kept, [joint for _, joint in rows]), strict=True):
        if label not in labels:
            remedy = f"{did_you_mean(label, labels)}write the labels as the studies have them"
            raise InputError(
                "unknown-label",
                f"label '{label}' in {path}",
                f"labels such as '{labels[0]}'",
                remedy,
            )
        if joint_of.setdefault(label, joint) != joint:
            found = f"two joint labels of '{label}' in {path} ('{joint_of[label]}' and '{joint}')"
            raise InputError(
                "label-map", found, "one joint label for each label", "leave one of them out"
            )
    return joint_of


def replicate_types(names: Collection[str]) -> dict[str, str]:
    """Return the type of each name that differs from a different name only in a number at the end: B, B.1, B_2, B_rep3.

    Two types of the table have several such names, or one is numbered as R does it (B, B.1, B.2). Numbers behind a
    hyphen need a name without, and no number is taken from a type of the packaged ontology, such as Th.17.
    """
    of_type: dict[str, list[str]] = {name: [name] for name in sorted(names)}
    for name in sorted(names):
        match = REPLICATE.fullmatch(name)
        if match is None or packaged_ontology().term(match["type"] + match["number"]) is not None:
            continue
        if match["mark"] != "-" or match["type"] in names:
            of_type.setdefault(match["type"], []).append(name)
    several = {kind: replicates for kind, replicates in of_type.items() if len(replicates) > 1}
    if len(several) < 2 and not any(
        {kind, f"{kind}.1", f"{kind}.2"} <= set(replicates) for kind, replicates in several.items()
    ):
        return {}
    return {
        name: kind for kind, replicates in several.items() for name in replicates if name != kind
    }


def joined_spellings(
    labels: Sequence[str], stated: Sequence[str], source: str
) -> tuple[dict[str, tuple[str, str]], list[list[str]]]:
    """Find labels of one study that are one type: names of one term of the ontology `source`, or spellings of one name.

    Returns the shortest name of each other one and its id (or `unknown`), and groups of labels that may be one type:
    they have the same id, but not by their names, or one has + where another has a hyphen.
    """
    terms, ontology = find_terms(labels, stated, source)
    spelled = spellings(labels)
    groups: dict[tuple[str, str], list[str]] = {}
    of_term: dict[str, list[str]] = {}
    for label, term in sorted(
        zip(labels, terms, strict=True), key=lambda pair: (len(pair[0]), pair[0])
    ):
        name = spelled[label] and ((ontology and ontology.term(label)) or spelled[label])
        groups.setdefault((term, name or label), []).append(label)
        if term != UNKNOWN_TERM:
            of_term.setdefault(term, []).append(label)
    joined: dict[str, tuple[str, str]] = {}
    unsure = []
    for (term, _), (first, *others) in groups.items():
        if any(map(HYPHEN_OR_SIGN.search, [first, *others])) and any(
            "+" in label for label in [first, *others]
        ):
            unsure += [[first, *others]] if term == UNKNOWN_TERM else []
        else:
            joined |= dict.fromkeys(others, (first, term))
    remaining = ([label for label in alike if label not in joined] for alike in of_term.values())
    return joined, [*unsure, *(alike for alike in remaining if len(alike) > 1)]


def join_labels(
    studies: Sequence[StudyLabels], source: str, label_map: str | None = None
) -> JointLabels:
    """Join the labels of studies that have the same ontology id or spelling or, by `label_map`, the same joint label.

    A label is named as in the first study that has it. A label of which another label is a type, by the ontology
    `source` (`find_terms`), is not a joint label: it stands for its types. A name with two ontology ids, and a study
    that shares no label with the others, are refused.
    """
    names = list(dict.fromkeys(label for study in studies for label in study.labels))
    renamed = {} if label_map is None else read_label_map(label_map, names)
    term_of_name: dict[str, str] = {}  # id of each name, in the order of the studies
    for study in studies:
        for label, term in zip(study.labels, study.terms, strict=True):
            stated = UNKNOWN_TERM if label in renamed else term
            name = renamed.get(label, label)
            earlier = term_of_name.setdefault(name, stated)
            if UNKNOWN_TERM not in (earlier, stated) and earlier != stated:
                found = f"label '{name}' as {earlier} and, in {study.study}, as {stated}"
                expected = "one ontology id for each label"
                raise InputError(
                    "label-terms", found, expected, "rename one of them with label_map=..."
                )
            term_of_name[name] = stated if earlier == UNKNOWN_TERM else earlier
    terms, ontology = find_terms(list(term_of_name), list(term_of_name.values()), source)
    term_of = dict(zip(term_of_name, terms, strict=True))
    spelled: dict[str, str | None] = spellings(term_of) | {name: name for name in renamed.values()}
    key_of = {
        name: spelled[name] or name if term == UNKNOWN_TERM else term
        for name, term in term_of.items()
    }
    first_with: dict[str, str] = {}  # the first name of each id, or of each spelling
    for name, key in key_of.items():
        first_with.setdefault(key, name)

    def joint_name(label: str) -> str:
        return first_with[key_of[renamed.get(label, label)]]

    all_names = sorted(set(first_with.values()))
    # the other names that are types of a name
    types: dict[str, list[str]] = {name: [] for name in all_names}
    for name in all_names:
        above = set() if ontology is None else ontology.ancestors(term_of[name]) - {term_of[name]}
        for parent in above & first_with.keys():
            types[first_with[parent]].append(name)
    labels = [name for name in all_names if not types[name]]
    column = {label: index for index, label in enumerate(labels)}
    meanings = []
    for study in studies:
        meaning = np.zeros((len(study.labels), len(labels)), dtype=bool)
        for row, label in enumerate(study.labels):
            name = joint_name(label)
            meaning[row, [column[kind] for kind in (types[name] or [name]) if kind in column]] = (
                True
            )
        meanings.append(_without_repeats(meaning))
    knows = np.stack([meaning.any(axis=0) for meaning in meanings])
    for number, study in enumerate(studies):
        if not (knows[number] & np.delete(knows, number, axis=0).any(axis=0)).any():
            found = f"no label of {study.study} in the other studies"
            expected = "studies that share labels"
            raise InputError(
                "unshared-labels", found, expected, "name their joint labels with label_map=..."
            )
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
        # else: two labels of a study under one joint label
        result[row] = is_left if is_left.any() else meaning[row]
        taken |= meaning[row]
    return result


def common_labels(
    labels: Sequence[str],
    truth: Sequence[str],
    ontology: Ontology,
    stated: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return what each of the `labels` of a model, and each true label, is merged to.

    A true label that the model lacks, such as CD4 T, takes in the labels of the model that are types of it, such as
    memory and naive CD4 T. If there are none, it is taken in by the label of the model that it is the nearest type of.
    Labels of the model with one id are one, unless they are true labels, too. A label without a term stays, as one
    without a relative. `stated` has ontology ids of labels of the model; other labels get the id of their name.
    """
    terms = {
        label: term for label in (*labels, *truth) if (term := ontology.term(label)) is not None
    }
    terms = {label: SAME.get(term, term) for label, term in (terms | dict(stated or {})).items()}
    above = {label: ontology.ancestors(term) for label, term in terms.items()}
    takes_in: dict[str, str] = {}  # the label to which a term and all types of it are merged
    for label in truth:
        if label in labels or label not in terms:
            continue
        if any(terms[label] in above[type_] for type_ in labels if type_ in terms):
            takes_in[terms[label]] = label
        elif parents := [parent for parent in labels if terms.get(parent) in above[label]]:
            nearest = max(parents, key=lambda parent: len(above[parent]))
            takes_in[terms[nearest]] = nearest
    first_with: dict[str, str] = {}  # the first label of the model with each id
    for label in labels:
        first_with.setdefault(terms.get(label, label), label)
    num_true = Counter(terms.get(label) for label in set(labels).intersection(truth))
    merged = {}
    for label in (*labels, *truth):
        wider = [term for term in above.get(label, ()) if term in takes_in]
        if wider:  # the most general term takes in the others, too
            merged[label] = takes_in[min(wider, key=lambda term: len(ontology.ancestors(term)))]
        elif label in labels:
            merged[label] = (
                label if num_true[terms.get(label)] > 1 else first_with[terms.get(label, label)]
            )
        else:
            merged[label] = label
    return merged
