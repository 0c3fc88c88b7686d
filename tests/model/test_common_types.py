"""Common types: they are fitted to all studies of a species, and complement the tissues that lack them."""

import numpy as np
import pytest

from scperformer.labels.ontology import packaged_ontology
from scperformer.model.common_types import RIDGE, fit_common_types
from scperformer.model.tissues import BLOOD_CELL, collection

TYPES = np.array([0, 1, 2, 0, 1, 2, 0, 1, 1])
STUDIES = np.array([0, 0, 0, 1, 1, 1, 2, 2, 2])


@pytest.fixture
def planted():
    """Parts of 3 types and 3 studies, and the profiles that are their sums, with noise."""
    rng = np.random.default_rng(0)
    of_type, of_study = rng.uniform(2, 5, (3, 40)), rng.normal(0, 0.7, (3, 40))
    of_study -= of_study.mean(axis=0)
    logs = of_type[TYPES] + of_study[STUDIES] + rng.normal(0, 0.01, (9, 40))
    return of_type, logs, np.ones(logs.shape, dtype=bool)


def naive_types(logs, measured, types, studies):
    """The parts of the types by ridge regression of each gene, on types and studies; only the latter are penalised."""
    num_types, num_studies = types.max() + 1, studies.max() + 1
    found = np.zeros((num_types, logs.shape[1]))
    for gene in range(logs.shape[1]):
        rows = np.flatnonzero(measured[:, gene])
        design = np.hstack([np.eye(num_types)[types[rows]], np.eye(num_studies)[studies[rows]]])
        pairs = list(zip(types[rows], studies[rows], strict=True))
        weights = np.array([1 / pairs.count(pair) for pair in pairs])
        penalty = np.diag([0.0] * num_types + [RIDGE] * num_studies)
        normal = design.T @ (weights[:, None] * design) + penalty
        found[:, gene] = np.linalg.solve(normal, design.T @ (weights * logs[rows, gene]))[
            :num_types
        ]
    return np.maximum(found, 0)


def test_the_parts_of_the_types_are_those_of_a_ridge_regression(planted):
    _, logs, measured = planted
    found, is_measured = fit_common_types(logs, measured, TYPES, STUDIES)
    assert is_measured.all()
    np.testing.assert_allclose(found, naive_types(logs, measured, TYPES, STUDIES), atol=0.02)


def test_planted_types_are_found_whatever_their_studies(planted):
    of_type, logs, measured = planted
    found, _ = fit_common_types(logs, measured, TYPES, STUDIES)
    means = np.stack([logs[kind == TYPES].mean(axis=0) for kind in range(3)])

    def error(values: np.ndarray) -> float:
        """Of the differences between types: a part that all of them share may be that of the studies."""
        return float(
            np.abs((values - values.mean(axis=0)) - (of_type - of_type.mean(axis=0))).mean()
        )

    assert error(found) < 0.6 * error(means)


def test_a_repeated_profile_has_the_weight_of_one(planted):
    _, logs, measured = planted
    # of each pair of type and study all profiles alike often
    rows = np.array([0, 0, 0, *range(1, 7), 7, 7, 8, 8])
    once, _ = fit_common_types(logs, measured, TYPES, STUDIES)
    often, _ = fit_common_types(logs[rows], measured[rows], TYPES[rows], STUDIES[rows])
    np.testing.assert_allclose(often, once)


def test_a_gene_that_no_study_of_a_type_measures_is_as_in_the_other_types(planted):
    _, logs, measured = planted
    measured[TYPES == 2, 0] = False
    measured[:, 1] = False
    found, is_measured = fit_common_types(logs, measured, TYPES, STUDIES)
    assert found[2, 0] == pytest.approx(np.median(found[:2, 0]))
    assert is_measured.tolist() == [True, False] + [True] * 38
    assert (found[:, 1] == 0).all()


@pytest.mark.parametrize(
    ("species", "markers"),
    [
        (
            "human",
            "B cell MS4A1, plasma cell MZB1, NK cell GNLY, monocyte S100A8, macrophage C1QB, mast cell TPSAB1, "
            "endothelial cell VWF, lymphatic endothelial cell CCL21, pericyte RGS5, smooth muscle cell ACTG2, "
            "fibroblast DCN, erythroid cell HBB, megakaryocyte PF4, hepatocyte ALB, neuron SNAP25, cardiomyocyte MYL7, "
            "Schwann cell MPZ, keratinocyte KRT5, melanocyte PMEL, neutrophil CSF3R, mesothelial cell MSLN, "
            "plasmacytoid dendritic cell LILRA4, cDC1 CLEC9A, microglia P2RY12, skeletal muscle cell ACTA1",
        ),
        (
            "mouse",
            "B cell Ms4a1, plasma cell Jchain, NK cell Gzma, neutrophil S100a8, mast cell Cma1, endothelial cell Cdh5, "
            "pericyte Rgs5, smooth muscle cell Acta2, fibroblast Col3a1, megakaryocyte Pf4, hepatocyte Alb, "
            "neuron Snap25, Schwann cell Mpz, adipocyte Adipoq, keratinocyte Krt5, mesothelial cell Msln, "
            "plasmacytoid dendritic cell Siglech, germ cell Prm1, osteoblast Bglap, chondrocyte Col2a1",
        ),
    ],
)
def test_the_markers_of_a_common_type_are_highest_in_it(species, markers):
    profiles = collection().common_types(species).profiles
    pairs = dict(pair.rsplit(" ", 1) for pair in markers.split(", "))
    assert {kind: profiles[gene].idxmax() for kind, gene in pairs.items()} == {
        kind: kind for kind in pairs
    }


@pytest.mark.parametrize(("species", "gene"), [("human", "CD3D"), ("mouse", "Cd3d")])
def test_all_t_cells_express_cd3(species, gene):
    expression = collection().common_types(species).profiles[gene]
    is_t_cell = expression.index.str.fullmatch(r"(CD[48] )?T cell|thymocyte")
    assert is_t_cell.any()
    assert (
        expression[is_t_cell].min()
        > 2 * expression[~is_t_cell & (expression.index != "NK cell")].max()
    )


@pytest.mark.parametrize("species", ["human", "mouse"])
def test_common_types_are_a_tissue_of_their_own(species):
    common = collection().common_types(species)
    assert common.title == f"common types ({species})"
    assert collection().tissue(common.name) is common
    assert common.profiles.index.is_unique
    assert np.allclose(common.profiles.sum(axis=1), 1e6)
    assert {"epithelial cell", "neuron"} <= {*common.others} <= {*common.profiles.index}
    assert not {"fibroblast", "endothelial cell", "B cell"} & {*common.others}
    assert set(common.studies["species"]) == {species}
    assert (common.studies["orthologs_of"] == "").all()


def test_types_of_few_studies_join_a_broader_one():
    assert "regulatory T cell" not in collection().common_types("human").profiles.index
    mouse = collection().common_types("mouse").profiles.index
    assert not {"regulatory T cell", "CD4 T cell", "CD8 T cell", "cDC1"} & {*mouse}
    assert {"T cell", "dendritic cell"} <= {*mouse}


def added(name: str) -> set[str]:
    tissue = collection().tissue(name)
    return {*tissue.profiles.index[tissue.sources.count(tissue.sources[0]) :]}


def test_tissues_get_the_common_types_that_they_lack():
    assert {"CD4 T cell", "CD8 T cell", "mast cell", "endothelial cell", "Schwann cell"} <= added(
        "pancreas"
    )
    assert "fibroblast" not in added("pancreas")  # it has stellate cells
    assert "hepatocyte" not in added("pancreas")
    # it has narrower ones
    assert not {"endothelial cell", "fibroblast", "smooth muscle cell"} & added("mouse lung")
    assert "mesothelial cell" in added("mouse lung")
    assert {"pericyte", "endothelial cell"} <= added("mouse brain")


def test_leukocytes_of_a_tissue_are_complemented():
    own = {*collection().terms("human_adult.Lung_HCA")}
    assert "CL:0000451" not in own
    # its dendritic cells are narrower
    assert any("CL:0000451" in packaged_ontology().ancestors(term) for term in own)
    assert {"dendritic cell", "macrophage"} <= added("lung")
    assert not {"monocyte", "mast cell"} & added("lung")  # it has these by their own terms


def test_blood_gets_no_common_types_and_spleen_the_stroma_alone():
    common = {*collection().common_types("human").profiles.index} | {
        *collection().common_types("mouse").profiles.index
    }
    stroma = {
        "endothelial cell",
        "pericyte",
        "smooth muscle cell",
        "fibroblast",
        "mesothelial cell",
    }
    assert not added("mouse blood")
    assert not stroma & added("blood")
    assert stroma <= added("spleen") <= common
    ids = dict(
        zip(
            collection().tissue("spleen").profiles.index,
            collection().tissue("spleen").terms,
            strict=True,
        )
    )
    assert not any(
        BLOOD_CELL in packaged_ontology().ancestors(ids[name]) for name in added("spleen")
    )


@pytest.mark.parametrize(
    ("name", "title", "markers"),
    [
        (
            "mouse heart",
            "heart (adult mouse, by orthologs)",
            {"Myh6": "atrial cardiomyocyte", "Pln": "cardiomyocyte"},
        ),
        (
            "mouse skin",
            "skin (adult mouse, by orthologs)",
            {"Krt14": "keratinocyte", "Pmel": "melanocyte"},
        ),
        (
            "brain",
            "brain (adult human, by orthologs)",
            {"PLP1": "oligodendrocyte", "AQP4": "astrocyte"},
        ),
    ],
)
def test_tissues_by_orthologs_have_the_profiles_of_the_other_species(name, title, markers):
    tissue = collection().tissue(name)
    assert tissue.title == title
    for gene, kind in markers.items():
        assert kind in tissue.profiles[gene].idxmax()


def test_profiles_by_orthologs_keep_the_quotients_of_genes():
    """The quotients of two genes in a type are those of their orthologs, as only the sum of all genes differs."""
    own = collection().profiles("human_adult.Heart_HCA")
    other = collection().profiles("orthologs.Heart_HCA")
    assert own.index.tolist() == other.index.tolist()
    for gene, second in (("MYH7", "TTN"), ("DCN", "VWF")):
        quotient = own[gene] / own[second]
        np.testing.assert_allclose(
            other[gene.capitalize()] / other[second.capitalize()], quotient, rtol=1e-3
        )
