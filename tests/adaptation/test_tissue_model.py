"""Cells annotated without a model: the tissue, the labels, unknown cells, and what is refused."""

import json
import re
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from support.logs import said
from support.opened import opened
from support.tissues import cells_of_profiles, common_and_specific, joined_profiles, malignant

import scperformer as scp
from scperformer.adaptation.record import Record
from scperformer.adaptation.tissue_model import MIN_OF_KIND
from scperformer.adaptation.which_tissue import GIVEN, UNDETERMINED, rank_tissues, tissue_text
from scperformer.base.errors import InputError
from scperformer.cells.profiles import simulated_counts
from scperformer.config.options import TissueOptions
from scperformer.model.tissues import collection

PBMC = Path(__file__).parents[2] / "data" / "pbmc3k.h5ad"
OPTIONS = TissueOptions(inputs=["cells.h5ad"])
TYPES = {
    "B": "B cell",
    "CD14+ Mono": "monocyte",
    "FCGR3A+ Mono": "monocyte",
    "NK": "NK cell",
    "CD8 T": "CD8 T cell|MAIT",
}


@pytest.fixture(autouse=True)
def _no_model(monkeypatch):
    monkeypatch.delenv("SCPERFORMER_MODEL")


@pytest.fixture
def pbmc() -> ad.AnnData:
    cells = ad.read_h5ad(PBMC)
    return cells[np.random.default_rng(0).choice(cells.n_obs, 400, replace=False)].copy()


def simulated(tissue: str, num: int = 20, seed: int = 1) -> ad.AnnData:
    profiles = collection().profiles(collection().tissues().set_index("name").loc[tissue, "set"])
    counts = simulated_counts(sparse.csr_matrix(profiles.to_numpy() / 1e6), num, seed)
    return ad.AnnData(
        counts,
        obs=pd.DataFrame({"type": np.repeat(profiles.index, num)}).set_index(
            pd.Index([f"cell{i}" for i in range(counts.shape[0])])
        ),
        var=pd.DataFrame(index=profiles.columns),
    )


def test_blood_of_another_study_gets_its_types(pbmc, capsys):
    scp.annotate(pbmc)
    facts = pbmc.uns["scperformer"]
    assert facts["tissue"]["name"] == "blood"
    assert "spleen" in facts["tissue"]["next"]
    assert "blood" in capsys.readouterr().out
    truth = pbmc.obs["cell_type"].astype(str)
    label = pbmc.obs["scperformer_label"].astype(str)
    for own, name in TYPES.items():
        assert label[truth == own].str.contains(name).mean() > 0.8, own
    assert (pbmc.obs["scperformer_call"] == "unknown").mean() < 0.1
    assert 0.5 < facts["profiles"]["expected_lowest"] < facts["profiles"]["expected_highest"] <= 1
    assert pbmc.obs["scperformer_ontology_term_id"].astype(str).str.match(r"CL:\d{7}|unknown").all()


def test_a_call_depends_on_the_cell_and_what_the_file_states(pbmc):
    """Without the gaps between fine types, which a part of the file need not show."""
    whole = pbmc.copy()
    scp.annotate(whole, options={"relabel": "false"})
    some = pbmc[:90].copy()
    scp.annotate(some, full_sample=pbmc, options={"tissue": "blood"})
    assert np.array_equal(
        some.obs["scperformer_label"].astype(str), whole.obs["scperformer_label"].astype(str)[:90]
    )
    assert np.array_equal(some.obsm["scperformer_proba"], whole.obsm["scperformer_proba"].iloc[:90])


@pytest.mark.slow
def test_cells_of_other_kinds_are_unknown_and_the_others_keep_their_labels():
    cells = simulated("pancreas", 30)
    other = simulated("testis", 9, seed=2)  # fewer cells than a second tissue has
    other = other[other.obs["type"].isin(["round spermatid", "macrophage"])].copy()
    other.obs_names = [f"other{i}" for i in range(other.n_obs)]
    both = ad.concat([cells, other])[:, ::3].copy()
    scp.annotate(both)
    assert both.uns["scperformer"]["tissue"]["name"] == "pancreas"
    unknown = (both.obs["scperformer_call"] == "unknown").to_numpy()
    # which occur in any tissue
    is_known = (both.obs["type"][cells.n_obs :] == "macrophage").to_numpy()
    assert unknown[cells.n_obs :][~is_known].all()
    assert not unknown[cells.n_obs :][is_known].any()
    assert unknown[: cells.n_obs].mean() < 0.05
    label = both.obs["scperformer_label"].astype(str)[: cells.n_obs]
    assert (label == both.obs["type"][: cells.n_obs]).mean() > 0.95


def test_few_cells_keep_their_labels(pbmc):
    few = pbmc[
        [
            *np.flatnonzero(pbmc.obs["cell_type"] == "B")[:2],
            *np.flatnonzero(pbmc.obs["cell_type"] == "NK")[:1],
        ]
    ].copy()
    scp.annotate(few)
    # which fit three leukocytes alike
    assert few.uns["scperformer"]["tissue"]["name"] in ("blood", "spleen")
    assert few.obs["scperformer_call"].astype(str).str.contains("B cell").tolist()[:2] == [
        True,
        True,
    ]
    assert few.obs["scperformer_call"].astype(str).tolist()[2].endswith("NK cell")


@pytest.mark.slow
def test_types_that_occur_everywhere_are_named_without_a_tissue(capsys):
    """Of lung, from which common types are not made alone; epithelial cells are named by their tissue only."""
    types, _ = common_and_specific("lung")
    epithelium = collection().common_types("human").profiles.loc[["epithelial cell"]]
    cells = cells_of_profiles(joined_profiles(types, epithelium), 8)[:, ::3].copy()
    scp.annotate(cells)
    facts = cells.uns["scperformer"]
    assert (facts["tissue"]["name"], facts["tissue"]["how"]) == ("common types", UNDETERMINED)
    assert np.isnan(
        [facts["profiles"]["expected_lowest"], facts["profiles"]["expected_highest"]]
    ).all()
    out = capsys.readouterr().out
    assert "not determined, as no type is specific to one: common types (human)" in out
    assert "xpected accuracy 0" not in out
    called = cells.obs.groupby("cell_type", observed=True)["scperformer_call"].agg(
        lambda calls: calls.mode()[0]
    )
    expected = {
        "fibroblast": "fibroblast",
        "B cell": "B cell",
        "mast cell": "mast cell",
        "vascular endothelial cell": "endothelial cell",
        "alveolar macrophage": "macrophage",
        "epithelial cell": "unknown",
    }
    assert called[list(expected)].to_dict() == expected
    is_other = cells.obs["cell_type"] == "epithelial cell"
    assert (cells.obs["scperformer_label"][is_other] == "epithelial cell").all()
    assert (cells.obs["scperformer_call"][~is_other] != "unknown").mean() > 0.95


@pytest.mark.slow
@pytest.mark.parametrize("num", [8, 12])
def test_cells_of_other_types_are_named_by_their_kind(num):
    """Ten or more; the few of a part of the sample are named as in the whole sample."""
    types, _ = common_and_specific("lung")
    other = collection().common_types("human").profiles.loc[["intestinal epithelial cell"]]
    nums = [8] * len(types) + [num, 12]
    cells = cells_of_profiles(joined_profiles(types, other, malignant(other)), nums)[:, ::3].copy()
    some = cells[-num - 14 :].copy()
    whole = scp.annotate(cells.copy(), options={"tissue": "common types"})
    named = [] if num < MIN_OF_KIND else ["epithelial cell"]
    assert list(whole.uns["scperformer"]["profiles"]["kinds"]) == named
    call = whole.obs["scperformer_call"].astype(str).to_numpy()
    is_other = np.arange(len(call))[-num - 12 : -12]
    assert (call[is_other] == (*named, "unknown")[0]).mean() > 0.9
    assert (call[-12:] == "unknown").mean() > 0.9
    scp.annotate(some, full_sample=cells, options={"tissue": "common types"})
    assert some.obs["scperformer_call"].astype(str).tolist() == call[-num - 14 :].tolist()


def test_normal_cells_of_a_tumour_are_named_and_its_own_are_unknown(caplog):
    common, specific = common_and_specific("lung")
    profiles = joined_profiles(common, specific, malignant(specific.loc[["AT2 cell"]]))
    cells = cells_of_profiles(profiles, [8] * (len(profiles) - 1) + [84])[:, ::3].copy()
    scp.annotate(cells)
    assert cells.uns["scperformer"]["tissue"]["name"] == "lung"
    call, truth = cells.obs["scperformer_call"].astype(str), cells.obs["cell_type"]
    is_malignant = truth == "malignant cell"
    assert (call[is_malignant] == "unknown").mean() > 0.9
    assert (call == truth)[~is_malignant].mean() > 0.9
    assert said(caplog, "annotation_of", f"{(call == 'unknown').mean():.0%}", "lung")


@pytest.mark.slow
def test_cells_of_two_tissues_are_named_by_the_types_of_both(capsys):
    common, liver = common_and_specific("liver")
    _, intestine = common_and_specific("large intestine")
    cells = cells_of_profiles(joined_profiles(liver, intestine, common), 8)[:, ::3].copy()
    found = scp.annotate(cells.copy())
    assert found.uns["scperformer"]["tissue"]["name"] == "liver + large intestine"
    assert "liver (adult human) + large intestine (adult human), by " in capsys.readouterr().out
    called = found.obs.groupby("cell_type", observed=True)["scperformer_call"].agg(
        lambda calls: calls.mode()[0]
    )
    named = ["cholangiocyte", "hepatocyte, CPT1A high", "goblet cell", "enterocyte", "Kupffer cell"]
    assert called[named].tolist() == named
    given = scp.annotate(cells, options={"tissue": "liver+large_intestine"})
    tissue = Record.from_uns(given.uns["scperformer"], "scperformer").tissue
    assert (tissue.name, tissue.how) == ("liver + large intestine", GIVEN)
    assert tissue_text(tissue) == "liver (adult human) + large intestine (adult human), as given"
    assert given.obs["scperformer_label"].equals(found.obs["scperformer_label"])


ORGANS = Path(__file__).parents[3] / "shared" / "data" / "organs"


@pytest.mark.slow
@pytest.mark.skipif(not ORGANS.is_dir(), reason="needs the files of many organs")
@pytest.mark.parametrize(
    ("name", "tissue"),
    [
        ("mouse_kidney_tm", "mouse kidney"),
        ("mouse_diaphragm_tm", "mouse skeletal muscle"),
        ("mouse_fat_tm", "mouse common types"),
        ("mouse_preimplantation_deng", None),
    ],
)
def test_the_tissues_of_files_of_many_organs(name, tissue):
    found = rank_tissues(opened(ad.read_h5ad(ORGANS / f"{name}.h5ad")))
    assert (found.names[0] if found.is_found else None) == tissue


def test_cells_of_no_tissue_are_refused(pbmc, refused):
    other = pbmc.copy()
    other.var_names = np.random.default_rng(0).permutation(other.var_names)
    other.write_h5ad("cells.h5ad")
    assert re.search(r"resemble no tissue .*tissue=NAME", refused("predict", "cells.h5ad"))


def test_the_tissue_is_given_and_a_fit_is_kept(pbmc, command, tmp_path):
    pbmc[:150].write_h5ad("cells.h5ad")
    words = ["predict", "cells.h5ad", "tissue=Fetal_Spleen", "adapted_folder=fits"]
    first = command(*words)
    assert first.code == 0, first.err
    assert "as given" in first.err
    [fit] = Path("fits").iterdir()
    assert f"the fit is kept in {fit}" in first.err
    again = command(*words, "output=again.h5ad")
    one, other = (ad.read_h5ad(name) for name in ("cells.annotated.h5ad", "again.h5ad"))
    assert again.code == 0
    assert np.array_equal(one.obsm["scperformer_proba"], other.obsm["scperformer_proba"])
    assert json.loads(one.uns["scperformer"]["config_json"])["tissue"] == "Fetal_Spleen"
    resumed = command(*words, "resume=true")
    assert "1 of 1 files are finished" in resumed.err


@pytest.mark.slow
def test_fits_of_symbols_in_capitals_are_kept_apart(command):
    cells = simulated("mouse kidney", 8)
    cells = cells[:, ~cells.var_names.str.upper().duplicated()][:, ::4].copy()
    cells.write_h5ad("title.h5ad")
    cells.var_names = cells.var_names.str.upper()
    cells.write_h5ad("capitals.h5ad")
    ran = command("predict", "title.h5ad", "capitals.h5ad", "adapted_folder=fits", "output_dir=out")
    assert ran.code == 0, ran.err
    assert len(list(Path("fits").iterdir())) == 2
    one, other = (ad.read_h5ad(f"out/{name}.annotated.h5ad") for name in ("title", "capitals"))
    assert np.array_equal(
        one.obs["scperformer_label"].astype(str), other.obs["scperformer_label"].astype(str)
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tissue=pancrea"], "no tissue 'pancrea'"),
        (["adapt=false"], "adapt=false and the profiles of blood"),
        (
            ["tissue=blood", "model_path=pbmc3k"],
            "tissue=blood and model_path=pbmc3k; expected one of them",
        ),
    ],
)
def test_what_does_not_fit_is_refused(pbmc, refused, words, message):
    pbmc[:300].write_h5ad("cells.h5ad")
    assert message in refused("predict", "cells.h5ad", *words)


@pytest.mark.parametrize(
    "names", [[f"ENSDARG{i:011}" for i in range(300)], [f"si:dkey-{i}g2.1" for i in range(300)]]
)
def test_cells_of_another_species_are_refused_without_the_advice_to_call_them_mouse(names):
    cells = ad.AnnData(np.random.default_rng(0).poisson(1, (50, 300)).astype(np.float32))
    cells.var_names = names
    with pytest.raises(
        InputError, match=r"expected genes of human or mouse: .* for another species, train"
    ) as error:
        rank_tissues(opened(cells))
    assert not error.value.fixes
