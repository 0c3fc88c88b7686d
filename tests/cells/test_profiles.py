"""References of profiles and bulk samples, alone and beside real cells: recognised, simulated from, trained on."""

from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from support.logs import said
from support.refusal import refusal

import scperformer
from scperformer.cells import profiles
from scperformer.cells.opened import OpenedCells
from scperformer.cells.profiles import add_profiles, added_profiles, has_profiles, simulate_cells
from scperformer.cli.compose import make_config
from scperformer.model.folder import read_model

OPTIONS = {"experiment": "linear", "data.min_genes": 1, "logger": "none"}
PATH = Path("a.h5ad")


def options(**given):
    given = {"inputs": "[a.h5ad]", "label_key": "cell_type"} | given
    return make_config("train", [f"{name}={value}" for name, value in given.items()])


@pytest.fixture
def means(counts_adata) -> ad.AnnData:
    """The mean counts per million of the cells of each label."""
    table = counts_adata.to_df().groupby(counts_adata.obs["cell_type"].to_numpy()).mean()
    table = table.div(table.sum(axis=1), axis=0) * 1e6
    obs = pd.DataFrame({"cell_type": table.index}, index=[f"row{i}" for i in range(len(table))])
    return ad.AnnData(table.to_numpy(np.float32), obs=obs, var=counts_adata.var[[]])


@pytest.fixture
def bulk() -> ad.AnnData:
    """Sorted bulk as in celldex: log2(TPM + 1), 8 samples of each of 3 labels, some of the genes left out."""
    rng = np.random.default_rng(0)
    labels = np.repeat(["B cells", "NK cells", "Monocytes"], 8)
    tpm = np.tile(rng.lognormal(0, 2, 1500), (24, 1))
    for number, label in enumerate(dict.fromkeys(labels)):
        tpm[np.ix_(labels == label, range(100 * number, 100 * number + 100))] *= 20
    tpm *= rng.lognormal(0, 0.2, tpm.shape)
    tpm *= 1e6 / tpm.sum(axis=1, keepdims=True)
    obs = pd.DataFrame({"label.main": labels}, index=[f"GSM{i}" for i in range(24)])
    var = pd.DataFrame(index=[f"GENE{i}" for i in range(1500)])
    return ad.AnnData(np.log2(1 + tpm), obs=obs, var=var)[:, :1300].copy()


def accuracy(cells: ad.AnnData, model: Path) -> float:
    """The accuracy of a model on labelled cells."""
    found = cells.copy()
    scperformer.annotate(found, scperformer.load_model(model))
    return (found.obs["scperformer_label"] == found.obs["cell_type"]).mean()


def test_simulated_cells_have_the_means_of_their_profile(means, monkeypatch):
    monkeypatch.setattr(profiles, "CELLS_PER_LABEL", 2000)
    cells = simulate_cells(OpenedCells(means, options(), PATH)).adata
    assert cells.obs["cell_type"].value_counts().tolist() == [2000] * 3
    counts = cells.X.toarray()
    assert (counts == counts.astype(int)).all()
    assert np.median(counts.sum(1)) == pytest.approx(profiles.DEPTH, rel=0.05)
    shares = counts / counts.sum(1, keepdims=True)
    for row, label in enumerate(means.obs["cell_type"]):
        own = shares[(cells.obs["cell_type"] == label).to_numpy()]
        error = own.std(0) / 2000**0.5
        off = np.abs(own.mean(0) - means.X[row] / 1e6)
        # dividing by the total of a cell lowers large shares by a few per cent
        assert (off < 5 * error + 0.04 * means.X[row] / 1e6).all()


def test_bulk_samples_are_recognised_with_their_logarithm_to_base_2(bulk):
    cfg = options(label_key="label.main")
    assert has_profiles(OpenedCells(bulk, cfg, PATH))
    cells = simulate_cells(OpenedCells(bulk, cfg, PATH)).adata
    assert cells.obs["label.main"].value_counts().tolist() == [152] * 3  # 19 of each sample
    for label in ("B cells", "Monocytes"):
        samples = np.exp2(bulk.X[(bulk.obs["label.main"] == label).to_numpy()]) - 1
        expected = (samples / samples.sum(1, keepdims=True)).mean(0)
        own = cells.X[(cells.obs["label.main"] == label).to_numpy()]
        found = np.asarray((own / own.sum(1)).mean(0)).ravel()
        assert np.corrcoef(np.log1p(1e4 * expected), np.log1p(1e4 * found))[0, 1] > 0.99


def test_cells_and_panels_are_no_profiles(counts_adata, means, bulk):
    cfg = options()
    assert has_profiles(OpenedCells(means, cfg, PATH))
    assert not has_profiles(OpenedCells(counts_adata, cfg, PATH))
    assert not has_profiles(OpenedCells(means, options(profiles="false"), PATH))
    assert has_profiles(OpenedCells(counts_adata, options(profiles="true"), PATH))
    bulk.obs["cell_type"] = bulk.obs["label.main"]
    assert has_profiles(OpenedCells(bulk, cfg, PATH))
    assert not has_profiles(OpenedCells(bulk[:, :500], cfg, PATH))


def test_many_rows_with_whole_counts_are_cells(bulk, counts_adata):
    """A panel of which each cell expresses most genes; and cells whose label is their name, or nearly so."""
    cfg = options()
    bulk.X = np.rint(np.exp2(bulk.X))
    bulk.obs["cell_type"] = bulk.obs["label.main"]
    assert has_profiles(OpenedCells(bulk, cfg, PATH))
    assert not has_profiles(OpenedCells(ad.concat([bulk] * 4), cfg, PATH))
    counts_adata.obs["cell_type"] = [f"cell {number // 2}" for number in range(counts_adata.n_obs)]
    counts_adata.X = counts_adata.X.multiply(np.arange(counts_adata.n_vars) % 4 == 0).tocsr()
    assert not has_profiles(OpenedCells(counts_adata, cfg, PATH))


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["B", "T", "NK"], True),
        (["AAACATACAACCAC-1", "AAACATTGAGCTAC-1", "AAACCGTGCTTCCG-1"], False),
        ("123", False),
    ],
)
def test_rows_of_a_file_without_labels_are_profiles_if_types_name_them(means, names, expected):
    cells = ad.AnnData(means.X, obs=pd.DataFrame(index=list(names)), var=means.var)
    assert has_profiles(OpenedCells(cells, options(), PATH)) == expected


@pytest.mark.parametrize("endings", [["", ".1"], ["_rep1", "_rep2"], ["", ""]], ids=str)
def test_numbered_samples_of_a_type_are_one_type(endings, means, command, tmp_path):
    """As R and pandas write names that occur twice; names that stay the same get no advice to be made unique."""
    names = [f"{name}{ending}" for ending in endings for name in means.obs["cell_type"]]
    means.to_df().iloc[np.arange(6) % 3].set_axis(names).T.to_csv(tmp_path / "bulk.csv")
    words = [f"{name}={value}" for name, value in OPTIONS.items()]
    done = command("train", "bulk.csv", "output=m", "orientation=genes_by_cells", *words)
    assert done.code == 0, done.err
    assert read_model(tmp_path / "m").labels == ["B cell", "Monocyte", "T cell"]
    assert ("'B cell" in done.err) == (endings != ["", ""])
    assert "nique" not in done.err


def test_a_model_of_profiles_annotates_cells(means, counts_adata, write, tmp_path):
    tables = {
        "profiles.csv": means.obs["cell_type"].tolist(),
        "twice.tsv": [*means.obs["cell_type"]] * 2,
    }
    paths = [write(means, "profiles.h5ad"), *(tmp_path / name for name in tables)]
    for path, names in zip(paths[1:], tables.values(), strict=True):
        table = means.to_df().iloc[np.arange(len(names)) % 3].set_axis(names)
        table.T.to_csv(path, sep="," if path.suffix == ".csv" else "\t")
    for path in paths:
        more = {} if path.suffix == ".h5ad" else {"orientation": "genes_by_cells"}
        model = scperformer.train(
            path, "cell_type", output=tmp_path / f"{path.name}.model", options=OPTIONS | more
        )
        assert accuracy(counts_adata, model.path) > 0.9
    card = (tmp_path / "profiles.h5ad.model" / "MODEL_CARD.md").read_text()
    assert "3 of 3 labels are simulated from profiles" in card
    assert profiles.SIMULATED_NOTE in card


def test_profiles_named_by_types_need_no_label_key(
    means, counts_adata, write, command, refused, tmp_path
):
    named = ad.AnnData(
        means.X, obs=pd.DataFrame(index=means.obs["cell_type"].to_list()), var=means.var
    )
    words = [f"{name}={value}" for name, value in OPTIONS.items()]
    path = write(named, "profiles.h5ad")
    made = command("train", path, "output=a.model", *words)
    assert (made.code, read_model(tmp_path / "a.model").labels) == (
        0,
        ["B cell", "Monocyte", "T cell"],
    ), made.err
    models = [
        scperformer.train(named, output=tmp_path / "b.model", options=OPTIONS).path,
        tmp_path / "a.model",
    ]
    assert all(accuracy(counts_adata, model) > 0.9 for model in models)
    for name, adata in (("cells", counts_adata), ("with_obs", means)):
        more = ("profiles=true",) if adata is means else ()
        for others in ((), (path,)):
            text = refused("train", write(adata, f"{name}.h5ad"), *others, *words, *more)
            assert f"no label_key for {name}.h5ad; expected cell_type" in text.replace(
                f"{tmp_path}/", ""
            )


def test_options_about_the_values_are_those_of_the_profiles(means, counts_adata, tmp_path):
    means.layers["tpm"] = np.log2(1 + means.X)
    means.X = np.zeros_like(means.X)
    more = {"source": "layers/tpm", "input_kind": "log1p", "input_base": "2", "input_total": 1e6}
    model = scperformer.train(means, "cell_type", output=tmp_path / "model", options=OPTIONS | more)
    assert accuracy(counts_adata, model.path) > 0.9


def test_a_profile_without_expression_is_refused(means):
    means.X[1] = 0
    with refusal("empty-profile"):
        simulate_cells(OpenedCells(means, options(), PATH))


@pytest.fixture
def others(means) -> ad.AnnData:
    """The profiles as another chemistry measures them, with a factor of each gene and without the first ten genes."""
    factors = np.exp(np.random.default_rng(1).normal(0, 1, means.n_vars))
    return ad.AnnData((means.X * factors).astype(np.float32), obs=means.obs, var=means.var)[
        :, 10:
    ].copy()


def completed(counts_adata, others, **given):
    """Add profiles to the cells without monocytes; also the cells."""
    cells = counts_adata[counts_adata.obs["cell_type"] != "Monocyte"].copy()
    files = [
        OpenedCells(adata, options(**given), name)
        for adata, name in ((cells, PATH), (others, "p.h5ad"))
    ]
    made, added = add_profiles(files[0], files[1:])
    return (made.adata, added), cells


@pytest.mark.parametrize("shared", [True, False])
def test_labels_that_cells_lack_are_simulated_in_their_chemistry(
    counts_adata, means, others, shared, caplog
):
    others = others if shared else others[others.obs["cell_type"] == "Monocyte"].copy()
    (made, added), cells = completed(counts_adata, others)
    assert added == ["Monocyte"]
    assert made.n_obs == cells.n_obs + profiles.CELLS_PER_LABEL * others.n_obs
    assert list(made.var_names) == list(means.var_names[10:])
    totals = np.asarray(cells.X.sum(axis=1))
    real = np.log1p(1e4 * cells.X.toarray()[:, 10:] / totals)
    np.testing.assert_allclose(made.X[: cells.n_obs].toarray(), real, rtol=1e-5)
    is_new = (made.obs["cell_type"] == "Monocyte").to_numpy()
    new = np.expm1(made.X[is_new].toarray())
    depths = 1e4 / np.where(new > 0, new, np.inf).min(axis=1)  # one count
    assert np.median(depths) == pytest.approx(np.median(totals), rel=0.1)
    is_new = (counts_adata.obs["cell_type"] == "Monocyte").to_numpy()
    true = counts_adata.X[is_new].toarray() / np.asarray(counts_adata.X[is_new].sum(axis=1))
    off = np.log(new.mean(axis=0) / (1e4 * true.mean(axis=0)[10:]))
    if shared:  # the noise of 80 cells in the factors remains
        assert off.std() < 0.35
    else:
        assert off.std() > 0.8
        assert said(caplog, "_in_chemistry_of_cells", "WARNING")


def test_a_profile_is_corrected_by_the_most_similar_ones():
    rng = np.random.default_rng(0)
    base = rng.lognormal(0, 1, (2, 400))  # two families of types
    family = np.array([0, 1, 0, 1, 0])
    true = base[family] * rng.lognormal(0, 0.3, (5, 400))
    true /= true.sum(axis=1, keepdims=True)
    factors = np.exp(rng.normal(0, 1, (2, 400)))  # of each family: a rule for all would fit neither
    measured = true * factors[family]
    measured /= measured.sum(axis=1, keepdims=True)
    labels = pd.Series(["new", "c", "a", "d", "b"])
    means = 1e4 * true[[2, 4, 1, 3]]
    corrected = profiles._in_chemistry_of_cells(
        csr_matrix(measured), labels, np.array(list("abcd")), means, "p"
    )
    pseudo = (0.02 + 20 / 300) / 1e4  # of 150 cells for each profile
    of_a_and_b = np.log(
        (measured[[2, 4]].mean(axis=0) + pseudo) / (true[[2, 4]].mean(axis=0) + pseudo)
    )
    expected = measured[0] / np.exp(np.clip(of_a_and_b, -2.5, 2.5))
    np.testing.assert_allclose(corrected.toarray()[0], expected, rtol=1e-6)
    of_all = np.log((measured[1:].mean(axis=0) + pseudo) / (true[1:].mean(axis=0) + pseudo))
    assert np.abs(np.log(measured[0] / np.exp(of_all) / expected)).mean() > 0.3  # a control


def test_labels_with_the_same_ontology_id_are_one_label(counts_adata, others):
    others.obs["cell_type"] = ["lymphocyte of B lineage", "monocyte", "T-lymphocyte"]
    terms = {"B cell": "CL:0000236", "T cell": "CL:0000084", "Monocyte": "CL:0000576"}
    counts_adata.obs["cell_type_ontology_term_id"] = counts_adata.obs["cell_type"].map(terms)
    others.obs["cell_type_ontology_term_id"] = ["CL:0000236", "CL:0000576", "CL:0000084"]
    (made, added), _ = completed(counts_adata, others)
    assert added == ["monocyte"]
    assert set(made.obs["cell_type"]) == {"B cell", "T cell", "monocyte"}


def test_simulated_cells_do_not_decide_splits_and_batches(counts_adata, others):
    counts_adata.obs["side"] = np.resize(["train", "val", "test"], counts_adata.n_obs)
    counts_adata.obs["donor"] = "d1"
    given = {"data.split": "column", "data.split_key": "side", "batch_key": "donor"}
    (made, _), cells = completed(counts_adata, others, **given)
    assert made.n_obs == (cells.obs["side"] != "test").sum() + 3 * profiles.CELLS_PER_LABEL
    new = made.obs[-3 * profiles.CELLS_PER_LABEL :]
    assert set(new["side"]) == {"train"}
    assert set(new["donor"]) == {"simulated"}


def test_a_model_of_cells_and_profiles(counts_adata, others, write, tmp_path):
    cells = counts_adata[counts_adata.obs["cell_type"] != "Monocyte"].copy()
    files = [write(cells, "cells.h5ad"), write(others, "profiles.h5ad")]
    model = scperformer.train(files, "cell_type", output=tmp_path / "model", options=OPTIONS)
    made = read_model(model.path).provenance
    assert made.input.startswith(
        "all cells of 1 of 3 labels are simulated from profiles (Monocyte)"
    )
    assert made.reference == "cells.h5ad, profiles.h5ad"
    assert accuracy(counts_adata, model.path) > 0.9
    more = OPTIONS | {"studies": "true", "data.min_cells": 0}
    separate = scperformer.train(files, "cell_type", output=tmp_path / "studies", options=more)
    assert [study.name for study in read_model(separate.path).studies] == [
        "cells.h5ad",
        "profiles.h5ad",
    ]


def test_profiles_complete_one_file_of_cells_alone(counts_adata, means, write, tmp_path):
    paths = {
        name: str(write(adata, f"{name}.h5ad"))
        for name, adata in (("c", counts_adata), ("p", means))
    }
    paths |= {"d": str(write(counts_adata, "d.h5ad")), "q": str(tmp_path / "q.zarr")}
    means.write_zarr(paths["q"])
    for files, expected in (("cp", "p"), ("pcq", "pq"), ("cd", ""), ("cdp", ""), ("pq", "")):
        cfg = options(inputs=f"[{','.join(paths[name] for name in files)}]")
        assert added_profiles(cfg) == [Path(paths[name]) for name in expected]


def test_profiles_that_complete_nothing_are_refused(counts_adata, means, others):
    with refusal("no-new-label"):
        add_profiles(OpenedCells(counts_adata, options()), [OpenedCells(means, options())])
    with refusal("few-genes"):
        completed(counts_adata, others[:, :40].copy())
