"""The packaged collection of profiles: its tables agree, and its tissues are found by the names that users write."""

import pytest

from scperformer.labels.ontology import packaged_ontology
from scperformer.model.tissues import FOLDER, LICENCE, collection


@pytest.mark.parametrize(
    ("name", "species", "found"),
    [
        ("pancreas", None, "pancreas"),
        ("Pancreas ", "mouse", "mouse pancreas"),
        ("mouse_lung", "human", "mouse lung"),
        ("kidney", None, "kidney"),
        ("kidney", "mouse", "mouse kidney"),
        ("mouse kidney", "human", "mouse kidney"),
        ("calvaria", None, None),
        ("neonatal_calvaria", None, "mouse neonatal calvaria"),
        ("fetal_kidney", "mouse", "fetal kidney"),
        ("pancras", None, None),
    ],
)
def test_names_that_users_write(name, species, found):
    assert collection().named(name, species) == found


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("pancreas", "pancreas (adult human)"),
        ("fetal pancreas", "fetal pancreas (human)"),
        ("mouse lung", "lung (adult mouse)"),
        ("mouse embryonic brain", "embryonic brain (mouse)"),
        ("mouse neonatal rib", "neonatal rib (mouse)"),
    ],
)
def test_titles(name, title):
    assert collection().title(name) == title


def test_the_labels_of_a_tissue():
    tissue = collection().tissue("mouse prostate")
    labels = collection().labels("mouse prostate")
    assert labels["label"].tolist() == tissue.profiles.index.tolist()
    assert labels["term"].tolist() == tissue.terms
    assert (
        list(dict.fromkeys(labels["set"]))[: len(tissue.studies)] == tissue.studies.index.tolist()
    )


@pytest.mark.parametrize("species", ["human", "mouse"])
def test_types_that_do_not_occur_everywhere_have_a_kind(species):
    tissue = collection().common_types(species)
    parents = tissue.tree.parents
    kinds = {label: parents.get(label, label) for label in tissue.others}
    assert {kinds[name] for name in ("keratinocyte", "hepatocyte", "trophoblast cell")} == {
        "epithelial cell"
    }
    assert kinds["neuron"] == kinds["glial cell"] == "neural cell"
    assert kinds["cardiomyocyte"] == kinds["skeletal muscle cell"] == "muscle cell"
    assert (kinds["thymocyte"], kinds["germ cell"]) == ("T cell", "germ cell")


def test_the_table_of_common_types_is_consistent():
    table = collection().common
    assert table["name"].is_unique
    assert set(table["id"]) <= set(packaged_ontology().names)
    assert set(table["use"]) == {"common", "other", "broad"}
    lacks = {term for terms in table["lacks"] if terms for term in terms.split("; ")}
    assert lacks <= set(packaged_ontology().names)
    assert (table["lacks"][table["use"] != "common"] == "").all()
    rows = table["id"].tolist()
    # of the first row that contains a type, so that narrower ones come first
    for number, term in enumerate(rows):
        assert not packaged_ontology().ancestors(term) & {*rows[:number]}, term


def test_an_added_type_has_the_term_of_its_row():
    macrophage = collection().labels("pancreas").set_index("label").loc["macrophage"]
    assert macrophage["term"] == "CL:0000235"


def test_every_study_has_all_that_its_licence_asks_for():
    for study in collection().sets.itertuples():
        assert study.title
        assert study.url.startswith("http")
        assert study.licence == "CC BY 4.0"
    text = (FOLDER / LICENCE).read_text(encoding="utf-8")
    assert "https://creativecommons.org/licenses/by/4.0/" in text
    assert "https://github.com/Nanostring-Biostats/CellProfileLibrary" in text
