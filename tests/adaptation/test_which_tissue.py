"""The tissue of a file: by specific types, by leukocytes, by its mean, not determined, or refused."""

from pathlib import Path

import anndata as ad
import numpy as np
import pytest
from support.opened import opened
from support.refusal import refusal
from support.tissues import (
    cells_of_profiles,
    cells_of_tissue,
    common_and_specific,
    joined_profiles,
    malignant,
)

from scperformer.adaptation import which_tissue
from scperformer.adaptation.record import TissueRecord, texts
from scperformer.adaptation.which_tissue import (
    BLOOD,
    MEAN,
    MIN_SECOND,
    SPECIFIC,
    UNDETERMINED,
    Ranking,
    close_tissues,
    is_undetermined,
    rank_tissues,
    require_tissue,
    tissue_text,
)
from scperformer.config.options import TissueOptions
from scperformer.model.tissues import collection

OPTIONS = TissueOptions(inputs=["cells.h5ad"])
DATA = Path(__file__).parents[2] / "data"


def ranked(cells: ad.AnnData) -> Ranking:
    return rank_tissues(opened(cells))


def shallow(cells: ad.AnnData, share: float = 0.1) -> ad.AnnData:
    """Cells with a share of their counts, as nuclei have."""
    counts = np.random.default_rng(0).binomial(cells.X.data.astype(int), share)
    cells.X.data = counts.astype(np.float32)
    return cells


@pytest.fixture(scope="module")
def pancreas() -> ad.AnnData:
    """319 cells of another study than the profiles."""
    return ad.read_h5ad(DATA / "baron_pancreas.h5ad")


@pytest.fixture(scope="module")
def of_pancreas(pancreas) -> Ranking:
    return ranked(pancreas)


@pytest.fixture(scope="module")
def of_leukocytes(pbmc3k) -> Ranking:
    return ranked(pbmc3k)


@pytest.fixture(scope="module")
def liver_and_intestine():
    """Epithelial cells of liver and large intestine, so many of each type, among common cells."""

    def make(of_liver: int, of_intestine: int, of_common: int) -> ad.AnnData:
        common, liver = common_and_specific("liver")
        _, intestine = common_and_specific("large intestine")
        profiles = joined_profiles(liver, intestine, common)
        nums = [of_liver] * len(liver) + [of_intestine] * len(intestine) + [of_common] * len(common)
        return cells_of_profiles(profiles, nums)

    return make


@pytest.fixture(scope="module")
def of_both(liver_and_intestine) -> Ranking:
    return ranked(liver_and_intestine(12, 15, 8))


def test_specific_types_name_the_tissue_of_another_study(pancreas, of_pancreas):
    found = of_pancreas
    assert (found.names[0], found.how, found.is_found, found.num_cells) == (
        "pancreas",
        SPECIFIC,
        True,
        319,
    )
    assert found.names[1] == "fetal pancreas"
    num_endocrine = (
        pancreas.obs["cell_type"].isin(["alpha", "beta", "delta", "gamma", "epsilon"]).sum()
    )
    assert found.types.keys() == {"alpha cell", "beta cell", "delta cell"}
    assert 0.8 * num_endocrine < sum(found.types.values()) <= num_endocrine
    text = tissue_text(found.record)
    assert text.startswith("pancreas (adult human), by ")
    assert f"alpha cell ({found.types['alpha cell']} of 319 cells)" in text


def answers(num_cells: int, lead: float, num_types: int = 1) -> str | None:
    """The tissue of 80 cells: some lead with one of its types, and half as many with one of another tissue."""

    def part(name: str, num: int) -> which_tissue._Part:
        correlations = np.full((80, 1 + num_types), 0.2)
        cells = np.arange(num)
        correlations[cells, 1 + cells % num_types] += which_tissue.LEAD + lead
        types = np.array(
            ["T cell", *(f"{name} {number}" for number in range(num_types))], dtype=object
        )
        is_specific = np.arange(1 + num_types) > 0
        return which_tissue._Part(
            name, types, types, is_specific, ~is_specific, correlations, np.zeros(1 + num_types)
        )

    found = which_tissue._by_specific_types(
        part("common", 0), [part("testis", num_cells), part("ovary", num_cells // 2)]
    )
    return None if found is None else found.names[0]


@pytest.mark.parametrize(
    ("num_cells", "lead", "num_types", "tissue"),
    [
        (12, 0.07, 1, None),  # evidence .0105 by erythrocytes that look like spermatids
        (12, 0.07, 3, "testis"),
        (12, 0.09, 1, "testis"),
        (2, 0.6, 2, None),
        (4, 0.3, 2, "testis"),
    ],
)
def test_one_odd_type_or_two_cells_are_not_enough_for_a_tissue(num_cells, lead, num_types, tissue):
    assert answers(num_cells, lead, num_types) == tissue


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("liver", "another tissue fits better than liver (adult human): blood"),
        ("mouse blood", "of another species"),
    ],
)
def test_a_given_tissue_that_fits_less_is_remarked(pbmc3k, of_leukocytes, name, words, monkeypatch):
    monkeypatch.setattr(which_tissue, "rank_tissues", lambda _: of_leukocytes)
    assert words in which_tissue.given_tissue(opened(pbmc3k), name).instead


def test_a_given_tissue_that_fits_is_not_remarked(pbmc3k, of_leukocytes, monkeypatch):
    monkeypatch.setattr(which_tissue, "rank_tissues", lambda _: of_leukocytes)
    assert which_tissue.given_tissue(opened(pbmc3k), "spleen").instead is None


def test_leukocytes_alone_are_blood(of_leukocytes):
    found = of_leukocytes
    assert (found.names[:2], found.how, found.types) == (["blood", "spleen"], BLOOD, {})
    assert found.scores[0] > found.scores[1] > 2 * found.scores[2]


@pytest.mark.parametrize(
    "name", ["lung", "fetal heart", pytest.param("mouse lung", marks=pytest.mark.slow)]
)
def test_types_that_occur_everywhere_name_no_tissue(name):
    found = ranked(cells_of_profiles(common_and_specific(name)[0], 15))
    assert found.how == UNDETERMINED
    assert found.is_found
    assert is_undetermined(found.record)
    assert found.names[1] == name
    assert tissue_text(found.record).startswith(
        "not determined, as no type is specific to one: common types ("
    )


@pytest.mark.parametrize(
    ("name", "expected"), [("hepatocyte", {"liver"}), ("fibroblast", {"common types"})]
)
def test_the_mean_of_cells_of_one_type_is_compared(name, expected):
    """The profiles are those of all studies, not of one of the tissues."""
    found = ranked(cells_of_profiles(collection().common_types("human").profiles.loc[[name]], 50))
    assert {found.names[0]} == expected
    assert found.how == (UNDETERMINED if is_undetermined(found.record) else MEAN)
    assert found.scores[0] > 0.56


def test_monocytes_alone_are_blood(pbmc3k):
    found = ranked(pbmc3k[pbmc3k.obs["cell_type"] == "CD14+ Mono"].copy())
    assert (found.names[0], found.how, found.is_found) == ("blood", MEAN, True)


def test_three_cells_are_enough(pancreas):
    types = pancreas.obs["cell_type"]
    few = [np.flatnonzero(types == name)[0] for name in ("alpha", "beta", "acinar")]
    assert ranked(pancreas[few].copy()).names[0] == "pancreas"


@pytest.mark.parametrize("num", [200, 500, 1000])
def test_panels_are_enough(pancreas, num):
    genes = np.argsort(-np.log1p(pancreas.X).var(axis=0))[:num]
    found = ranked(pancreas[:, np.sort(genes)].copy())
    assert (found.names[0], found.how) == ("pancreas", SPECIFIC)
    assert found.scores[0] > 2 * found.scores[1]


@pytest.mark.parametrize("name", ["fetal cerebrum", "fetal liver", "mouse embryonic brain"])
def test_shallow_cells_and_embryos(name):
    found = ranked(shallow(cells_of_tissue(name, 20)))
    assert (found.names[0], found.how) == (name, SPECIFIC)


@pytest.mark.parametrize("seed", [0, pytest.param(5, marks=pytest.mark.slow)])
def test_a_carcinoma_is_of_no_other_organ(seed):
    common, specific = common_and_specific("lung")
    profiles = joined_profiles(common, malignant(specific.loc[["AT2 cell"]], seed))
    found = ranked(cells_of_profiles(profiles, [3] * len(common) + [27 * len(common)]))
    assert not found.is_found or found.how == UNDETERMINED


def test_two_tissues_of_one_file_are_both_named(of_both):
    found = of_both
    assert (found.names[0], found.how) == ("liver + large intestine", SPECIFIC)
    assert not {"liver", "large intestine"} & {*found.names[1:]}
    assert {"hepatocyte, CPT1A high", "enterocyte"} <= found.types.keys()
    text = tissue_text(found.record)
    assert text.startswith("liver (adult human) + large intestine (adult human), by ")
    assert f"cholangiocyte ({found.types['cholangiocyte']} of " in text


def test_each_cell_counts_for_one_of_two_tissues(liver_and_intestine, of_both):
    cells = liver_and_intestine(12, 15, 8)
    found = of_both
    num_common = 8 * len(common_and_specific("liver")[0])
    assert sum(found.types.values()) <= cells.n_obs - num_common
    assert found.types.get("cholangiocyte", 0) <= 20  # 12, and a few of the others


def test_a_second_tissue_has_enough_cells(liver_and_intestine, monkeypatch):
    assert 1 < len(common_and_specific("large intestine")[1]) < MIN_SECOND
    assert ranked(liver_and_intestine(4, 1, 2)).names[0] == "liver"
    monkeypatch.setattr(which_tissue, "MIN_SECOND", 200)
    assert ranked(liver_and_intestine(12, 15, 8)).names[0] == "liver"


def test_human_genes_are_of_human_tissues(of_pancreas):
    human = {*collection().tissues("human")["name"], "common types"}
    assert {*of_pancreas.names} <= human


@pytest.mark.parametrize("in_capitals", [True, False])
def test_symbols_in_one_case_that_human_lacks_are_of_the_mouse(in_capitals):
    cells = cells_of_tissue("mouse kidney")
    cells.var_names = cells.var_names.str.upper() if in_capitals else cells.var_names.str.lower()
    cells.var_names_make_unique()
    found = ranked(cells)
    assert (found.names[0], found.in_capitals) == ("mouse kidney", in_capitals)
    mouse = {*collection().tissues("mouse")["name"], "mouse common types"}
    assert {*found.names} <= mouse


@pytest.mark.parametrize("name", ["blood", "pancreas"])
def test_permuted_genes_are_of_no_tissue(name, pancreas, pbmc3k):
    cells = {"pancreas": pancreas, "blood": pbmc3k}[name].copy()
    cells.var_names = np.random.default_rng(0).permutation(cells.var_names)
    found = ranked(cells)
    assert not found.is_found
    with refusal("no-tissue"):
        require_tissue(found, "cells.h5ad")


def test_tissues_that_fit_nearly_as_well_are_named():
    def found(*scores: float) -> TissueRecord:
        near = {"next": texts(["spleen", "thymus"]), "next_scores": np.array(scores)}
        return TissueRecord(
            name="blood",
            title="blood (adult human)",
            in_capitals=False,
            how=BLOOD,
            score=0.5,
            **near,
        )

    assert close_tissues(found(0.48, 0.2)) == "spleen 96%"
    assert tissue_text(found(0.48, 0.47)).endswith("; spleen 96% and thymus 94% fit, too")
    assert tissue_text(found(0.3, 0.2)) == "blood (adult human), as nearly all cells are leukocytes"
