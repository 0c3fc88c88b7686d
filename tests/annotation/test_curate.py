"""Names that a person gives to clusters: joined, with ontology ids, undone by a second call, and recorded."""

import pandas as pd
import pytest
from support.refusal import refusal

from scperformer.annotation.curate import curate

KEY = "scperformer"
OBS = pd.DataFrame(
    {
        f"{KEY}_call": pd.Categorical(["B cell", "B cell", "T", "NK", "unknown", "T"]),
        f"{KEY}_ontology_term_id": pd.Categorical(
            ["CL:1", "CL:1", "CL:2", "unknown", "unknown", "CL:2"]
        ),
        f"{KEY}_cluster": pd.Categorical(["0", "0", "0", "1", "2", "-1"]),
    },
    index=list("abcdef"),
)


def curated(*names: tuple[str, str]) -> tuple[list[str], list[str], list[bool]]:
    columns, _ = curate(OBS, KEY, names, "Ada", "x.h5ad")
    assert list(columns.index) == list(OBS.index)
    return tuple(column.tolist() for _, column in columns.items())


def test_a_name_replaces_the_calls_of_its_cluster_alone():
    labels, terms, named = curated(("0", "plasmablast"), ("1", ""))
    assert labels == ["plasmablast"] * 3 + ["NK", "unknown", "T"]
    assert terms == ["CL:0000980"] * 3 + ["CL:0000623", "unknown", "CL:2"]
    assert named == [True] * 3 + [False] * 3


def test_the_record_has_each_change():
    _, record = curate(OBS, KEY, [("0", "B cell"), ("2", "mine")], "Ada", "x.h5ad")
    rows = zip(record.cluster, record.before, record.after, record.num_cells, strict=True)
    assert set(rows) == {
        ("0", "B cell", "B cell", 2),
        ("0", "T", "B cell", 1),
        ("2", "unknown", "mine", 1),
    }
    assert record.labels == {"B cell": 3, "mine": 1}
    assert record.by == "Ada"
    assert record.date.endswith(" UTC")


def test_names_of_one_spelling_join():
    assert curated(("1", "my_cells"), ("2", "My  cell"))[0] == [
        "B cell",
        "B cell",
        "T",
        "my_cells",
        "my_cells",
        "T",
    ]
    labels, terms, _ = curated(("1", "b cells"))  # a call
    assert (labels[3], terms[3]) == ("B cell", "CL:1")
    labels, terms, _ = curated(("2", "White blood cells"))  # a synonym
    assert (labels[4], terms[4]) == ("White blood cells", "CL:0000738")


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("Doublets", "doublet"),
        ("LOW_QUALITY", "low quality"),
        ("low-quality cells", "low quality"),
        ("Unknown", "unknown"),
    ],
)
def test_names_of_no_type(name, stored):
    labels, terms, _ = curated(("1", name))
    assert (labels[3], terms[3]) == (stored, "unknown")


def test_clusters_are_found_as_spreadsheets_write_them():
    assert curated(("0.0", "x"))[0][:3] == ["x"] * 3
    assert curated(("'-1", "x"))[0][5] == "x"  # with the sign that keeps it from being a formula


def test_names_that_cannot_be_used_are_refused():
    with refusal("unknown-cluster", "'7'", "x.h5ad", "0, 1, 2, -1"):
        curated(("7", "x"))
    with refusal("unknown-cluster", "''"):
        curated(("", "x"))
    with refusal("cluster-twice", "'0'"):
        curated(("0", "x"), ("1", ""), ("0", ""))
    for name in ("a\tb", "x" * 2000, "\ud800"):
        with refusal("bad-label", "'0'"):
            curated(("0", name))
    with refusal("no-clusters", "scperformer_cluster", "clusters=auto"):
        curate(OBS.drop(columns=f"{KEY}_cluster"), KEY, [], "", "x.h5ad")


def test_an_annotation_without_ids_has_those_of_the_ontology():
    columns, _ = curate(OBS.drop(columns=f"{KEY}_ontology_term_id"), KEY, [], "", "x.h5ad")
    assert columns[f"{KEY}_curated_ontology_term_id"].astype(str).iloc[3] == "CL:0000623"
