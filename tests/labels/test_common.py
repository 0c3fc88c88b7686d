"""Labels of a model and of a truth are merged to what both mean."""

import pytest

from scperformer.labels.common import common_labels
from scperformer.labels.ontology import packaged_ontology

OWN = ["Naive CD4 T", "Memory CD4 T", "CD8 T", "CD14+ Mono", "FCGR3A+ Mono", "B", "NK", "DC", "Platelet"]


def changed(own: list[str], other: list[str]) -> dict[str, str]:
    """What is merged, without the labels that stay."""
    merged = common_labels(own, other, packaged_ontology())
    assert set(merged) == {*own, *other}
    return {label: common for label, common in merged.items() if label != common}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (["CD19+ B"], {"B": "CD19+ B"}),  # other names of the same
        (["CD4 T", "CD8 T"], {"Naive CD4 T": "CD4 T", "Memory CD4 T": "CD4 T"}),
        (["naive B"], {"naive B": "B"}),  # a type of a label of the model
        (["classical monocyte"], {"CD14+ Mono": "classical monocyte"}),
        (["monocyte", "CD14+ Mono"], {"CD14+ Mono": "monocyte", "FCGR3A+ Mono": "monocyte"}),
        (["Treg"], {}),  # a relative of labels of the model, but none is a type of the other
        (["T cell", "CD4 T"], dict.fromkeys(("Naive CD4 T", "Memory CD4 T", "CD8 T", "CD4 T"), "T cell")),
        (["no such type"], {}),
        (["CD8-positive, alpha-beta T cells"], {"CD8 T": "CD8-positive, alpha-beta T cells"}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, list) else "",
)
def test_labels_are_merged_to_what_both_mean(other, expected):
    assert changed(OWN, other) == expected


def test_other_spellings_of_labels_without_a_term_are_merged():
    assert changed(["Tumour-2 LGR5+", "B"], ["tumour 2 LGR5-positive cells"]) == {
        "tumour 2 LGR5-positive cells": "Tumour-2 LGR5+"
    }
    assert changed(["Tumour-2 LGR5+", "B"], ["tumour 2 LGR5-", "tumour 1 LGR5+"]) == {}


def test_known_ids_come_before_names():
    own = ["CD8 T cell, GZMB high", "B", "other"]
    known = {"CD8 T cell, GZMB high": "CL:0000625", "other": "CL:0000236"}
    merged = common_labels(own, ["CD8 T", "B cell"], packaged_ontology(), known)
    expected = {own[0]: "CD8 T", "CD8 T": "CD8 T", "B": "B cell", "other": "B cell", "B cell": "B cell"}
    assert merged == expected


def test_the_nearest_type_of_the_model_takes_in_a_true_label():
    assert changed(["T cell", "CD4 T"], ["Memory CD4 T"]) == {"Memory CD4 T": "CD4 T"}


def test_labels_of_the_model_with_one_id_are_one_unless_the_truth_tells_them_apart():
    own = ["B", "B cells", "NK", "naive 1", "naive 2"]
    known = {"naive 1": "CL:0000895", "naive 2": "CL:0000895"}
    merged = common_labels(own, ["B", "NK"], packaged_ontology(), known)
    assert merged == {"B": "B", "B cells": "B", "NK": "NK", "naive 1": "naive 1", "naive 2": "naive 1"}
    merged = common_labels(own, ["B", "naive 1", "naive 2"], packaged_ontology(), known)
    assert merged == {"B": "B", "B cells": "B", "NK": "NK", "naive 1": "naive 1", "naive 2": "naive 2"}
