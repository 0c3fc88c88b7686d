"""The colour and the symbol of a label: the same in all reports, and far apart for related ones."""

import numpy as np
import pytest
from support.record import record_of

from scperformer.adaptation.record import TreeRecord, texts
from scperformer.base.pictures import PALETTE, colour_distances
from scperformer.model.tissues import collection
from scperformer.results.label_marks import known_marks, label_marks, spread_marks
from scperformer.results.read_annotations import Annotated


def sample_of(
    labels: list[str], parents: dict[str, str] | None = None, terms: dict[str, str] | None = None
):
    """Return an annotated sample without cells: its model has these labels, and parents of them."""
    record = record_of(labels, 0.9)
    if parents is not None:
        nodes = [*dict.fromkeys(parents.values()), *labels]
        of_nodes = [(terms or {}).get(node, "unknown") for node in nodes]
        above = [parents.get(node, "") for node in nodes]
        record.tree = TreeRecord(
            nodes=texts(nodes),
            parents=texts(above),
            ontology_term_ids=texts(of_nodes),
            num_levels=2,
            num_backed_off=0,
        )
    return Annotated(name="s", path=None, key="k", obs=None, umap=None, record=record)


def test_a_label_has_one_mark_in_the_reports_of_all_tissues():
    marks: dict[str, set[tuple[str, str]]] = {}
    for name in ("blood", "pancreas", "lung", "mouse spleen"):
        labels = collection().labels(name)["label"].tolist()
        for label, mark in label_marks([sample_of(labels)]).items():
            marks.setdefault(label, set()).add(mark)
    assert len(marks) > 50
    assert {label for label, found in marks.items() if len(found) > 1} == set()
    assert marks["B cell"] == {known_marks()["B cell"]}


@pytest.mark.parametrize(
    "name", ["human_adult.Pancreas_HCA", "human_adult.ImmuneCensus_HCA", "mouse_adult.Kidney_MCA"]
)
def test_labels_of_a_study_have_different_colours(name):
    labels = collection().terms(name).index
    colours = [known_marks()[label][0] for label in labels]
    assert len(set(colours)) == len(colours) > 5


def test_a_term_has_the_mark_of_its_name():
    terms = {"B": "CL:0000236", "Mono": "CL:0000576", "odd": "unknown"}
    marks = label_marks([sample_of([*terms], dict.fromkeys(terms, "leukocyte"), terms)])
    assert marks["B"] == known_marks()["B cell"]
    assert marks["Mono"] == known_marks()["monocyte"]
    assert len({colour for colour, _ in marks.values()}) == 4


def test_own_labels_do_not_depend_on_other_reports():
    labels = [f"cluster {place}" for place in range(70)]
    first, again = (label_marks([sample_of(labels)]) for _ in range(2))
    assert first == again
    assert len({colour for colour, _ in list(first.values())[:30]}) == 30
    assert len(set(first.values())) == 70


def test_near_labels_get_colours_that_differ_most():
    """Of twelve labels in pairs, the colours of each pair differ more than others on average."""
    nearness = np.kron(np.eye(6), np.ones((2, 2))) * 5 + 0.1
    places = [PALETTE.index(colour) for colour, _ in spread_marks(nearness, {})]
    assert len(set(places)) == 12
    gaps = colour_distances()[np.ix_(places, places)]
    of_pairs = gaps[np.arange(0, 12, 2), np.arange(1, 12, 2)]
    assert of_pairs.min() > np.median(gaps[~np.eye(12, dtype=bool)])
    given = {3: (PALETTE[7], "cross")}
    assert spread_marks(nearness, given)[3] == (PALETTE[7], "cross")
