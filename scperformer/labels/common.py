"""The labels of two studies merged to what both mean, by the terms of the Cell Ontology that their names are."""

from collections import Counter
from collections.abc import Mapping, Sequence

from scperformer.labels.ontology import Ontology, spelling

# Terms by markers and the terms of the same monocytes by function, which the ontology does not connect.
SAME = {"CL:0001054": "CL:0000860", "CL:0002396": "CL:0000875"}


def common_labels(
    labels: Sequence[str], truth: Sequence[str], ontology: Ontology, stated: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return what each of the `labels` of a model, and each true label, is merged to.

    A true label that the model lacks, such as CD4 T, takes in the labels of the model that are types of it, such as
    memory and naive CD4 T. If there are none, it is taken in by the label of the model that it is the nearest type of.
    Labels of the model with one id are one, unless they are true labels, too. A label without a term is a different
    spelling of a label of the model, or it stays, as one without a relative. `stated` has ontology ids of labels of the
    model; other labels get the id of their name.
    """
    terms = {label: term for label in (*labels, *truth) if (term := ontology.term(label)) is not None}
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
    by_spelling = {spelling(label): label for label in labels}
    merged = {}
    for label in (*labels, *truth):
        wider = [term for term in above.get(label, ()) if term in takes_in]
        if wider:  # the most general term takes in the others, too
            merged[label] = takes_in[min(wider, key=lambda term: len(ontology.ancestors(term)))]
        elif label in labels:
            merged[label] = label if num_true[terms.get(label)] > 1 else first_with[terms.get(label, label)]
        else:
            merged[label] = label if label in terms else by_spelling.get(spelling(label), label)
    return merged
