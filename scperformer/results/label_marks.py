"""The colour and the symbol of each label, the same in all reports.

Labels of the packaged tissues, their parents, and labels of models with the same terms have theirs by name. Other
labels of a model get the remaining ones in its order. Related labels that occur together differ most.
"""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from scperformer.base.pictures import PALETTE, colour_distances
from scperformer.labels.ontology import packaged_ontology
from scperformer.model.tissues import collection
from scperformer.results.read_annotations import Annotated, all_labels

Mark = tuple[str, str]  # colour and symbol
SYMBOLS = ("circle", "diamond", "square", "cross", "x", "triangle-up")
LABELS_PER_SYMBOL = 10
# nearness of labels that occur together, beside the square of their relation, 0 to 1
UNRELATED = 0.1
ADDED = 0.02  # occurrence of a common type in a tissue, in relation to the types of its own study
LATER = 0.3  # by how much the last colour of the palette is worse than the first: the first ones are the clearest


def spread_marks(nearness: np.ndarray, given: Mapping[int, Mark]) -> list[Mark]:
    """Return a mark for each of N labels, one after the other; the nearer two are (N x N), the more colours differ.

    The cost of a colour is the sum of nearness / distance² over labels that have one. Those with a nearness above 0
    have different pairs of colour and symbol, as long as there are any. `given` has the marks of some.
    """
    order = np.linspace(1, 1 + LATER, len(PALETTE))
    costs = order / np.maximum(colour_distances(), 1e-3) ** 2
    marks: dict[int, Mark] = {}
    # few labels have the first colours, as circles
    most = LABELS_PER_SYMBOL * -(-len(nearness) // LABELS_PER_SYMBOL)
    totals = np.tile(1e-9 * order, (len(nearness), 1))
    for label in sorted(range(len(nearness)), key=lambda place: place not in given):
        best = int(totals[label, :most].argmin())
        start = best // LABELS_PER_SYMBOL
        pairs = [
            (PALETTE[best], SYMBOLS[(start + step) % len(SYMBOLS)]) for step in range(len(SYMBOLS))
        ]
        taken = {marks[other] for other in marks if nearness[label, other] > 0}
        marks[label] = given.get(label) or next(
            (pair for pair in pairs if pair not in taken), pairs[0]
        )
        totals += np.outer(nearness[:, label], costs[PALETTE.index(marks[label][0])])
    return [marks[label] for label in range(len(nearness))]


def _relations(above: Sequence[set[str]]) -> np.ndarray:
    """Return how related labels are, N x N: the share of their terms, or nodes above them, that both have."""
    nodes = {node: place for place, node in enumerate(sorted(set().union(*above)))}
    has = np.zeros((len(above), len(nodes)))
    for row, names in enumerate(above):
        has[row, [nodes[name] for name in names]] = 1
    shared = has @ has.T
    sizes = has.sum(axis=1)
    return shared / np.maximum(sizes[:, None] + sizes - shared, 1)


@cache
def known_marks() -> dict[str, Mark]:
    """Return the marks of the labels of all packaged tissues and of the terms above them, by name."""
    ontology = packaged_ontology()
    types = collection().types
    sets = {name: place for place, name in enumerate(types["set"].unique())}
    common = collection().common
    terms = dict(zip(common["name"], common["id"], strict=True)) | dict(
        zip(types["label"], types["id"], strict=True)
    )
    labels = set(terms)
    occurs = {
        name: np.full(len(sets), ADDED if name in set(common["name"]) else 0) for name in terms
    }
    for label, of_set, term in zip(types["label"], types["set"], types["id"], strict=True):
        occurs[label][sets[of_set]] = 1
        for parent in ontology.ancestors(term):
            if (name := ontology.names.get(parent)) is not None and name not in labels:
                terms[name] = parent
                occurs.setdefault(name, np.zeros(len(sets)))[sets[of_set]] = 1
    names = sorted(terms, key=lambda name: (name not in labels, -occurs[name].sum(), name))
    above = [ontology.ancestors(terms[name]) for name in names]
    table = np.array([occurs[name] for name in names])
    related = _relations(above)
    nearness = np.minimum(table @ table.T, 1) * (UNRELATED + related**2)
    return dict(zip(names, spread_marks(nearness, {}), strict=True))


def label_marks(samples: Sequence[Annotated]) -> dict[str, Mark]:
    """Return the marks of the labels of the model of samples, and of their parents."""
    parents: dict[str, str] = {}
    terms: dict[str, str] = {}
    for sample in samples:
        parents |= sample.parents
        terms |= sample.terms
    names = list(dict.fromkeys([*all_labels(samples), *parents]))
    known = known_marks()
    given: dict[int, Mark] = {
        place: known[name] for place, name in enumerate(names) if name in known
    }
    for place, name in enumerate(names):
        of_term = known.get(packaged_ontology().names.get(terms.get(name, ""), ""))
        if place not in given and of_term is not None and of_term not in given.values():
            given[place] = of_term

    def path(name: str) -> set[str]:
        return {name} | (path(parents[name]) if parents.get(name) else set())

    related = _relations([path(name) for name in names])
    return dict(zip(names, spread_marks(UNRELATED + related**2, given), strict=True))
