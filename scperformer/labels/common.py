"""The labels of two studies merged to what both mean, by the terms of the Cell Ontology that their names are."""

from collections import Counter
from collections.abc import Mapping, Sequence

from scperformer.labels.ontology import Ontology, spelling

# Terms by markers and the terms of the same monocytes by function, which the ontology does not connect.
SAME = {"CL:0001054": "CL:0000860", "CL:0002396": "CL:0000875"}


def common_labels(
    own: Sequence[str], other: Sequence[str], ontology: Ontology, known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return what each label of a model, `own`, and each true label, `other`, is merged to.

    A true label that the model lacks, such as CD4 T, takes in the labels of the model that are types of it, such as
    memory and naive CD4 T. If there are none, it is taken in by the label of the model that it is the nearest type of.
    Labels of the model with one id are one, unless they are true labels, too. A label without a term is another
    spelling of a label of the model, or it stays, as one without a relative. `known` has ontology ids of labels of the
    model; other labels get the id of their name.
    """
    terms = {label: term for label in (*own, *other) if (term := ontology.term(label)) is not None}
    terms = {label: SAME.get(term, term) for label, term in (terms | dict(known or {})).items()}
    above = {label: ontology.ancestors(term) for label, term in terms.items()}
    takes_in: dict[str, str] = {}  # the label to which a term and all types of it are merged
    for label in other:
        if label in own or label not in terms:
            continue
        if any(terms[label] in above[one] for one in own if one in terms):
            takes_in[terms[label]] = label
        elif parents := [one for one in own if terms.get(one) in above[label]]:
            nearest = max(parents, key=lambda one: len(above[one]))
            takes_in[terms[nearest]] = nearest
    first_with: dict[str, str] = {}  # the first label of the model with each id
    for label in own:
        first_with.setdefault(terms.get(label, label), label)
    num_true = Counter(terms.get(label) for label in set(own).intersection(other))
    own_spelling = {spelling(label): label for label in own}
    merged = {}
    for label in (*own, *other):
        found = [term for term in above.get(label, ()) if term in takes_in]
        # The most general of them takes in the others, too.
        if label in own:
            same = label if num_true[terms.get(label)] > 1 else first_with[terms.get(label, label)]
        else:
            same = label if label in terms else own_spelling.get(spelling(label), label)
        merged[label] = takes_in[min(found, key=lambda term: len(ontology.ancestors(term)))] if found else same
    return merged
