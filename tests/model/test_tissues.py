"""The packaged profiles: their tables agree, and each tissue has labels that it can call."""

import numpy as np
import pytest
from support.refusal import refusal

from scperformer.labels.ontology import packaged_ontology
from scperformer.labels.tree import best_labels
from scperformer.model.tissues import collection, family_of

NAMES = collection().tissues()["name"].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_a_tissue_has_distinct_labels_with_ids_and_profiles(name):
    tissue = collection().tissue(name)
    labels = tissue.profiles.index
    assert labels.is_unique
    assert len(labels) == len(tissue.terms) > 4
    assert set(tissue.terms) <= packaged_ontology().names.keys()
    assert tissue.profiles.shape[1] > 5000
    assert np.allclose(tissue.profiles.sum(axis=1), 1e6, rtol=1e-3)
    assert tissue.studies["url"].str.startswith("http").all()


@pytest.mark.parametrize("name", ["endothelial cell", "CD4 T cell"])
def test_common_types_are_brought_to_the_scale_of_the_tissue(name):
    own = collection().profiles("human_adult.Pancreas_HCA")
    common = collection().common_types("human").profiles
    added = collection().tissue("pancreas").profiles.loc[name]
    expressed = common.columns[common.loc[name] > 1]
    everywhere = own.columns.intersection(expressed)[::100]
    factors = ((own[everywhere].median() + 5) / (common[everywhere].median() + 5)).clip(1 / 12, 12)
    found = added[everywhere] / common.loc[name, everywhere]
    assert np.allclose(found / found.iloc[0], factors / factors.iloc[0], rtol=1e-3)
    assert factors.max() > 2 * factors.min()


def test_a_tissue_keeps_the_genes_that_other_sets_lack():
    pancreas = collection().tissue("pancreas").profiles
    assert {"INS", "GCG", "SST"} <= {*pancreas.columns}
    assert pancreas["INS"].idxmax() == "beta cell"
    assert pancreas.loc["CD4 T cell", "INS"] < 0.1 * pancreas.loc["beta cell", "INS"]
    assert not pancreas.isna().any(axis=None)


@pytest.mark.parametrize(
    ("wanted", "species", "name"),
    [
        ("pancreas", None, "pancreas"),
        ("Pancreas", "mouse", "mouse pancreas"),
        ("fetal_lung", "human", "fetal lung"),
        ("Liver+large_intestine", "human", "liver + large intestine"),
        ("liver + lung", "mouse", "mouse liver + mouse lung"),
        ("common types", "human", "common types"),
        ("PBMC", "human", "blood"),
        ("colon", "mouse", "mouse large intestine"),
        ("mouse_breast", None, "mouse mammary gland"),
        ("bone marrow", "human", "blood"),
        ("bone marrow", "mouse", "mouse bone marrow"),
    ],
)
def test_a_tissue_is_found_by_its_name(wanted, species, name):
    assert collection().find(wanted, species) == name


def test_an_unknown_tissue_is_refused_with_near_names():
    with refusal("unknown-tissue", "'pancreas'", "bladder, blood (PBMC, "):
        collection().find("pancrea", "human")
    with refusal("unknown-tissue", "'colon'"):
        collection().find("colonn", "human")


def test_synonyms_name_one_tissue_and_no_other():
    names = {*NAMES}
    synonyms = [other for others in collection().synonyms.values() for other in others]
    assert not names.intersection(synonyms)
    assert len(set(synonyms)) == len(synonyms)
    shown = list(collection().with_synonyms("human").values())
    assert shown == sorted(shown)
    assert "large intestine (colon, rectum)" in shown


def test_similar_types_are_of_one_family():
    assert family_of("CL:0000895") == family_of("CL:0000897")  # naive and memory CD4 T cells
    assert family_of("CL:0000895") != family_of("CL:0000900")  # naive CD8 T cells
    assert family_of("CL:0000171") == "CL:0000171"  # alpha cells


def test_the_label_is_the_best_of_the_most_probable_family():
    proba = np.array([[0.3, 0.25, 0.45], [0.1, 0.2, 0.7]], dtype=np.float32)
    families = np.array([0, 0, 1])
    assert best_labels(proba, families).tolist() == [0, 2]
    assert best_labels(proba, None).tolist() == [2, 2]
