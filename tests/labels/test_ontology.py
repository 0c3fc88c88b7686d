"""Ontology ids of labels, by name, synonym and CL file; trees of labels from the terms of the ontology."""

import pytest
from support.refusal import refusal

from scperformer.labels.ontology import (
    find_terms,
    joined_by_terms,
    packaged_ontology,
    read_obo,
    read_pairs,
)

# Stanzas of cl-basic.obo of 2022-08-16, without definitions and references.
CL = """\
format-version: 1.2
data-version: cl/releases/2022-08-16/cl-basic.owl
ontology: cl/cl-basic

[Term]
id: CL:0000084
name: T cell
synonym: "T-lymphocyte" EXACT []
is_a: CL:0000542 ! lymphocyte

[Term]
id: CL:0000542
name: lymphocyte

[Term]
id: CL:0000624
name: CD4-positive, alpha-beta T cell
is_a: CL:0000791 ! mature alpha-beta T cell

[Term]
id: CL:0000625
name: CD8-positive, alpha-beta T cell
is_a: CL:0000791 {is_inferred="true"} ! mature alpha-beta T cell

[Term]
id: CL:0000791
name: mature alpha-beta T cell
is_a: CL:0000084 ! T cell

[Term]
id: CL:0000451
name: dendritic cell
synonym: "interdigitating cell" BROAD []

[Term]
id: CL:0000784
name: plasmacytoid dendritic cell
synonym: "pDC" EXACT abbreviation [PMID:1]
synonym: "IPC" EXACT []
is_a: CL:0000451 ! dendritic cell

[Term]
id: CL:0000990
name: conventional dendritic cell
synonym: "IPC" EXACT []
is_a: CL:0000451 ! dendritic cell

[Term]
id: CL:0000012
name: obsolete cell by class
synonym: "classed" EXACT []
is_obsolete: true

[Typedef]
id: part_of
name: part of
"""


@pytest.fixture
def obo(tmp_path):
    path = tmp_path / "cl.obo"
    path.write_text(CL)
    return path


# Ids of the Cell Ontology as CELLxGENE, Azimuth and the ontology's own page name them.
@pytest.mark.parametrize(
    ("label", "term"),
    [
        ("B cells", "CL:0000236"),
        ("CD8+ T cells", "CL:0000625"),
        ("Naive CD4 T", "CL:0000895"),
        ("CD14+ Mono", "CL:0001054"),
        ("type B pancreatic cell", "CL:0000169"),
        ("CD14- Mono", "unknown"),
        ("CD16 negative monocytes", "unknown"),
        ("naive CD4+ T cells", "CL:0000895"),
        ("T cell, CD8+", "CL:0000625"),
        ("CD8\u207a T cell", "CL:0000625"),  # a superscript
        ("monocyte, classical", "CL:0000860"),
        ("CD56 bright NK", "CL:0000938"),
        ("T/NK cells", "unknown"),
        ("D", "unknown"),  # a cluster, not a D cell
        ("cluster 3", "unknown"),
    ],
)
def test_usual_names_are_in_the_packaged_table(label, term):
    assert find_terms([label], ["unknown"], "packaged")[0] == [term]


def test_the_packaged_table_is_consistent():
    """All parents are terms, no name or synonym has two terms, and no term is its own ancestor."""
    ours = packaged_ontology()
    assert {parent for parents in ours.parents.values() for parent in parents} <= ours.names.keys()
    for term, name in ours.names.items():
        assert ours.term(name) == term
        assert all(term not in ours.ancestors(parent) for parent in ours.parents.get(term, []))
    rows = [line.split("\t") for line in _table().splitlines() if line.startswith("CL:")]
    assert len(rows) == len(ours.names)
    for term, _, *more in rows:
        assert all(ours.term(text) == term for text in "".join(more[1:]).split("|") if text), term


def _table():
    from scperformer.labels import ontology

    return ontology.TERM_TABLE.read_text(encoding="utf-8")


def test_a_cl_file_is_read(obo):
    ontology = read_obo(obo)
    assert ontology.version == "2022-08-16"
    assert ontology.names["CL:0000791"] == "mature alpha-beta T cell"
    assert ontology.ancestors("CL:0000625") == {
        "CL:0000625",
        "CL:0000791",
        "CL:0000084",
        "CL:0000542",
    }
    texts = {
        "T-lymphocyte": "CL:0000084",
        "pdc": "CL:0000784",
        "interdigitating cell": None,
        "IPC": None,
    }
    texts |= {"classed": None, "part of": None, "plasma": None}
    texts["cDC"] = "CL:0000990"  # by a synonym in the packaged table
    assert {text: ontology.term(text) for text in texts} == texts
    assert "CL:0000012" not in ontology.names


def test_given_ids_stay_and_packaged_synonyms_complement_a_cl_file(obo):
    labels = ["cDC", "B", "T cells", "mine"]
    terms, _ = find_terms(labels, ["unknown", "unknown", "unknown", "CL:0000001"], str(obo))
    assert terms == ["CL:0000990", "unknown", "CL:0000084", "CL:0000001"]  # the file has no B cell
    assert find_terms(labels, ["CL:1", *["unknown"] * 3], "none") == (
        ["CL:1", *["unknown"] * 3],
        None,
    )


@pytest.mark.parametrize(
    ("text", "refused"),
    [("b,c,x\n", ("row 1", "3 values")), ("b\tc\nc\t\n", ("row 2", "1 values"))],
)
def test_malformed_tables_are_refused(tmp_path, text, refused):
    path = tmp_path / "ids.tsv"
    path.write_text(text)
    with refusal("pairs-row", *refused):
        read_pairs(path, "a table")


def test_unreadable_files_are_refused(tmp_path):
    with refusal("bad-ontology"):
        read_obo(tmp_path / "none.obo")
    (tmp_path / "x.obo").write_bytes(b"\xff\xfe\x00")
    with refusal("bad-ontology"):
        read_obo(tmp_path / "x.obo")
    (tmp_path / "y.obo").write_text("<html>")
    with refusal("bad-ontology"):
        read_obo(tmp_path / "y.obo")
    with refusal("bad-ontology"):
        read_pairs(tmp_path / "none.csv", "a table")


def test_labels_are_joined_by_the_most_specific_terms(obo):
    labels = ["CD4", "CD8", "pDC", "cDC", "odd"]
    terms = ["CL:0000624", "CL:0000625", "CL:0000784", "CL:0000990", "unknown"]
    tree = joined_by_terms(labels, terms, read_obo(obo))
    joined = {"CD4": "mature alpha-beta T cell", "CD8": "mature alpha-beta T cell"}
    assert tree.parents == joined | {"pDC": "dendritic cell", "cDC": "dendritic cell"}
    assert tree.terms == {"mature alpha-beta T cell": "CL:0000791", "dendritic cell": "CL:0000451"}
    # A term that joins all labels is left out.
    assert joined_by_terms(labels[:2], terms[:2], read_obo(obo)) is None


def test_a_label_with_the_id_of_a_term_is_the_parent_of_its_subtypes(obo):
    labels = ["T", "CD4", "CD8", "DC"]
    tree = joined_by_terms(
        labels, ["CL:0000084", "CL:0000624", "CL:0000625", "CL:0000451"], read_obo(obo)
    )
    assert tree.parents == {
        "CD4": "mature alpha-beta T cell",
        "CD8": "mature alpha-beta T cell",
    } | {"mature alpha-beta T cell": "T"}


def test_a_label_narrower_than_its_id_is_no_parent_by_name():
    labels = ["crypt progenitor cell", "enterocyte", "BEST4 enterocyte", "T cell"]
    # of intestinal epithelial cell, enterocyte, ...
    terms = ["CL:0002563", "CL:0000584", "CL:4030026", "CL:0000084"]
    tree = joined_by_terms(labels, terms, packaged_ontology(), by_name=True)
    of_epithelium = {
        "crypt progenitor cell": "intestinal epithelial cell",
        "enterocyte": "intestinal epithelial cell",
    }
    assert tree.parents == of_epithelium | {"BEST4 enterocyte": "enterocyte"}
    assert (
        joined_by_terms(labels, terms, packaged_ontology()).parents["enterocyte"]
        == "crypt progenitor cell"
    )


def test_terms_that_overlap_smaller_groups_are_left_out(tmp_path):
    """x joins a, b; y joins b, c; w joins a, b, c: x and w are nested, y is not."""
    path = tmp_path / "o.obo"
    terms = {
        "X:1": ["X:8", "X:7"],
        "X:2": ["X:8", "X:9", "X:7"],
        "X:3": ["X:9", "X:7"],
        "X:4": [],
        "X:7": [],
    }
    stanzas = [f"[Term]\nid: {term}\nname: n{term[-1]}\n" for term in [*terms, "X:8", "X:9"]]
    stanzas = [
        text + "".join(f"is_a: {up}\n" for up in terms.get(text[11:14], [])) for text in stanzas
    ]
    path.write_text("\n".join(stanzas))
    tree = joined_by_terms(["a", "b", "c", "d"], ["X:1", "X:2", "X:3", "X:4"], read_obo(path))
    assert tree.parents == {"a": "n8", "b": "n8", "n8": "n7", "c": "n7"}
