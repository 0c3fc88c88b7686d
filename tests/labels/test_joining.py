"""Labels of several studies, or of a model and a truth, are merged to what all mean."""

import numpy as np
import pytest
from support.refusal import refusal

from scperformer.labels.joining import (
    StudyLabels,
    common_labels,
    join_labels,
    read_label_map,
    replicate_types,
)
from scperformer.labels.ontology import packaged_ontology


def study(name: str, *labels: str, terms: dict[str, str] | None = None) -> StudyLabels:
    return StudyLabels(
        name, list(labels), [(terms or {}).get(label, "unknown") for label in labels]
    )


def meant(joint, number: int, study: StudyLabels) -> dict[str, list[str]]:
    rows = joint.meanings[number]
    return {
        label: [joint.labels[place] for place in np.flatnonzero(row)]
        for label, row in zip(study.labels, rows, strict=True)
    }


FINE = study("fine", "Naive CD4 T", "Memory CD4 T", "CD14+ Mono", "B")
COARSE = study("coarse", "T_CD4", "monocyte", "CD19+ B", "odd")


def test_labels_of_one_type_have_the_name_of_the_first_study_and_coarse_labels_stand_for_their_types():
    joint = join_labels([FINE, COARSE], "packaged")
    assert joint.labels == ["B", "CD14+ Mono", "Memory CD4 T", "Naive CD4 T", "odd"]
    assert joint.terms[0] == "CL:0000236"
    assert meant(joint, 0, FINE) == {label: [label] for label in FINE.labels}
    assert meant(joint, 1, COARSE) == {
        "T_CD4": ["Memory CD4 T", "Naive CD4 T"],
        "monocyte": ["CD14+ Mono"],
        "CD19+ B": ["B"],
        "odd": ["odd"],
    }
    assert joint.tree is not None
    assert "Naive CD4 T" in joint.tree.labels


def test_a_study_with_a_type_and_a_part_of_it_divides_what_is_left():
    both = study("both", "CD4 T", "Naive CD4 T", "B")
    joint = join_labels([both, FINE], "packaged")
    assert meant(joint, 0, both) == {
        "CD4 T": ["Memory CD4 T"],
        "Naive CD4 T": ["Naive CD4 T"],
        "B": ["B"],
    }


def test_without_an_ontology_names_are_compared():
    joint = join_labels([study("a", "x", "y"), study("b", "y", "z")], "none")
    assert (joint.labels, joint.tree) == (["x", "y", "z"], None)


def test_a_map_joins_what_the_ontology_does_not_know(tmp_path):
    table = tmp_path / "map.csv"
    table.write_text("label,joint\nodd,T1\nweird,T1\nB,B\n")
    first = study("a", "odd", "weird", "B")
    second = study("b", "T1", "B")
    joint = join_labels([first, second], "none", str(table))
    assert joint.labels == ["B", "T1"]
    assert meant(joint, 0, first) == {"odd": ["T1"], "weird": ["T1"], "B": ["B"]}


def test_spellings_of_studies_and_of_a_map_are_compared_in_one_way(tmp_path):
    joint = join_labels(
        [study("a", "Odd/one", "NK"), study("b", "Odd.one", "nk_cells", "rare")], "none"
    )
    assert joint.labels == ["NK", "Odd/one", "rare"]
    table = tmp_path / "map.csv"
    table.write_text("ODD_ONE,odd\n\ufeffweird,nk cells\n")
    assert read_label_map(str(table), ["Odd one", "Weird", "NK"]) == {
        "Odd one": "odd",
        "Weird": "NK",
    }
    table.write_text("B,B cell\n")  # the map says how the label is to be spelled
    assert read_label_map(str(table), ["B", "NK"]) == {"B": "B cell"}


@pytest.mark.parametrize(
    ("rows", "refused"),
    [
        ("nobody,b\n", ("unknown-label", "'nobody'", "'a'")),
        ("a,b\na,c\n", ("label-map", "'a'", "'b'", "'c'")),
        ("a,b,c\n", ("pairs-row", "row 1", "3 values")),
    ],
)
def test_a_map_that_cannot_be_followed_is_refused(rows, refused, tmp_path):
    table = tmp_path / "map.csv"
    table.write_text(rows)
    with refusal(*refused):
        read_label_map(str(table), ["a", "b", "c"])


def test_studies_that_cannot_be_joined_are_refused():
    with refusal("unshared-labels"):
        join_labels([study("first", "x", "y"), study("second", "z")], "none")
    one = study("first", "T", terms={"T": "CL:0000084"})
    other = study("second", "T", terms={"T": "CL:0000236"})
    with refusal("label-terms"):
        join_labels([one, other], "packaged")


@pytest.mark.parametrize(
    ("names", "types"),
    [
        (["B", "B.1", "B.2", "NK"], {"B.1": "B", "B.2": "B"}),
        (
            ["B_1", "B_2", "NK_1", "NK_3", "DC"],
            {"B_1": "B", "B_2": "B", "NK_1": "NK", "NK_3": "NK"},
        ),
        (
            ["B_rep1", "B rep2", "T.Rep_1", "T.Rep_2"],
            {"B_rep1": "B", "B rep2": "B", "T.Rep_1": "T", "T.Rep_2": "T"},
        ),
        (["B", "B-1", "NK", "NK-1", "NK-2"], {"B-1": "B", "NK-1": "NK", "NK-2": "NK"}),
        (["T1", "T2", "Th17/Th1", "CD4", "CD8"], {}),
        (["Th.1", "Th.2", "Th.17", "ILC.2", "ILC.3", "B"], {}),
        (["ILC-1", "ILC-2", "Th-1", "Th-2"], {}),
        (["Th17", "Th17.1", "Th1", "B"], {}),
        (["DC_1", "DC_2", "B", "NK"], {}),  # of one type only: its subtypes
        ([f"cluster_{number}" for number in range(9)], {}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_numbers_at_the_end_of_names_are_samples_of_a_type_if_several_types_have_them(names, types):
    assert replicate_types(names) == types


OWN = [
    "Naive CD4 T",
    "Memory CD4 T",
    "CD8 T",
    "CD14+ Mono",
    "FCGR3A+ Mono",
    "B",
    "NK",
    "DC",
    "Platelet",
]


def changed(own: list[str], other: list[str]) -> dict[str, str]:
    """What is merged, without the labels that stay."""
    merged = common_labels(own, other, packaged_ontology())
    assert set(merged) == {*own, *other}
    return {label: common for label, common in merged.items() if label != common}


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (OWN, ["CD19+ B"], {"B": "CD19+ B"}),  # other names of the same
        (OWN, ["CD4 T", "CD8 T"], {"Naive CD4 T": "CD4 T", "Memory CD4 T": "CD4 T"}),
        (OWN, ["naive B"], {"naive B": "B"}),  # a type of a label of the model
        (OWN, ["classical monocyte"], {"CD14+ Mono": "classical monocyte"}),
        (OWN, ["monocyte", "CD14+ Mono"], {"CD14+ Mono": "monocyte", "FCGR3A+ Mono": "monocyte"}),
        (OWN, ["Treg"], {}),  # a relative of labels of the model, but none is a type of the other
        (
            OWN,
            ["T cell", "CD4 T"],
            dict.fromkeys(("Naive CD4 T", "Memory CD4 T", "CD8 T", "CD4 T"), "T cell"),
        ),
        (OWN, ["no such type"], {}),
        (OWN, ["CD8-positive, alpha-beta T cells"], {"CD8 T": "CD8-positive, alpha-beta T cells"}),
        # the nearest type of the model takes it in
        (["T cell", "CD4 T"], ["Memory CD4 T"], {"Memory CD4 T": "CD4 T"}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) and value != OWN else "",
)
def test_labels_are_merged_to_what_both_mean(own, other, expected):
    assert changed(own, other) == expected


def test_known_ids_come_before_names():
    own = ["CD8 T cell, GZMB high", "B", "other"]
    known = {"CD8 T cell, GZMB high": "CL:0000625", "other": "CL:0000236"}
    merged = common_labels(own, ["CD8 T", "B cell"], packaged_ontology(), known)
    expected = {
        own[0]: "CD8 T",
        "CD8 T": "CD8 T",
        "B": "B cell",
        "other": "B cell",
        "B cell": "B cell",
    }
    assert merged == expected


def test_labels_of_the_model_with_one_id_are_one_unless_the_truth_tells_them_apart():
    own = ["B", "B cells", "NK", "naive 1", "naive 2"]
    known = {"naive 1": "CL:0000895", "naive 2": "CL:0000895"}
    merged = common_labels(own, ["B", "NK"], packaged_ontology(), known)
    assert merged == {
        "B": "B",
        "B cells": "B",
        "NK": "NK",
        "naive 1": "naive 1",
        "naive 2": "naive 1",
    }
    merged = common_labels(own, ["B", "naive 1", "naive 2"], packaged_ontology(), known)
    assert merged == {
        "B": "B",
        "B cells": "B",
        "NK": "NK",
        "naive 1": "naive 1",
        "naive 2": "naive 2",
    }
