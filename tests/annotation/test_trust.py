"""Novelty, flags and sets of labels in annotated cells: how often they are right, their evidence, and its absence."""

import logging
import math
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from support.logs import said
from support.words import as_options

import scperformer
from scperformer.adaptation.load import load_model
from scperformer.annotation.remarks import shallow_cells
from scperformer.io import rows
from scperformer.labels.tree import LabelTree
from scperformer.model.arrays import HeldOut
from scperformer.model.folder import CARD

QUICK = ["experiment=linear", "logger=none"]
LABELS = np.array(["B cell", "T cell", "T/NK"])


def simulated(num_cells: int, seed: int, labels: tuple[int, ...] = (0, 1, 2)) -> ad.AnnData:
    """Poisson counts of 300 genes: each label has 40 genes of its own; the novel label 3 has those of two labels."""
    rng = np.random.default_rng(seed)
    codes = np.array(labels)[np.arange(num_cells) % len(labels)]
    mean = np.full((num_cells, 300), 1.0)
    for label in labels:
        genes = range(40 * label, 40 * label + 40) if label < 3 else range(80)
        mean[np.ix_(codes == label, genes)] = 1.6 if label < 3 else 3.0
    names = [LABELS[code] if code < 3 else "novel" for code in codes]
    return ad.AnnData(
        sparse.csr_matrix(rng.poisson(mean), dtype=np.float32),
        obs=pd.DataFrame(
            {"cell_type": names}, index=[f"seed{seed}cell{i}" for i in range(num_cells)]
        ),
        var=pd.DataFrame(index=[f"GENE{i}" for i in range(300)]),
    )


def foreign(num_cells: int) -> ad.AnnData:
    """Cells of a tissue in which half of the genes are not expressed, and the others as unevenly as in no label."""
    rng = np.random.default_rng(5)
    mean = rng.lognormal(0, 2, size=300) * (np.arange(300) % 2)
    counts = sparse.csr_matrix(rng.poisson(mean, size=(num_cells, 300)), dtype=np.float32)
    return ad.AnnData(counts, var=pd.DataFrame(index=[f"GENE{i}" for i in range(300)]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("model") / "m"
    options = [*QUICK, "data.min_genes=0", "ontology=none"]
    return scperformer.train(
        simulated(600, 1), "cell_type", output=output, options=as_options(options)
    ).path


@pytest.fixture(scope="module")
def sample() -> ad.AnnData:
    return simulated(600, seed=2)


def annotated(adata: ad.AnnData, folder: Path, *overrides: str) -> ad.AnnData:
    return scperformer.annotate(
        adata.copy(), load_model(folder), options=as_options(list(overrides))
    )


def test_known_cells_are_seldom_flagged_and_novel_cells_mostly(folder, sample):
    known = annotated(sample, folder)
    novelty = known.obs["scperformer_novelty"].to_numpy()
    unknown = (known.obs["scperformer_call"] == "unknown").to_numpy()
    # .05 is stated; the standard deviation with 600 held-out and 600 new cells is .013
    assert 0.02 < unknown.mean() < 0.09
    assert novelty[unknown].min() > novelty[~unknown].max()
    mixed = annotated(simulated(360, 3, labels=(0, 1, 2, 3)), folder).obs
    is_novel = mixed["cell_type"] == "novel"
    assert (mixed["scperformer_call"] == "unknown")[is_novel].mean() > 0.8
    assert (mixed["scperformer_call"] == "unknown")[~is_novel].mean() < 0.09
    many = annotated(sample, folder, "unknown_fpr=0.3").obs["scperformer_call"]
    # The threshold is a little too high: it is of folds, which know four fifths of the cells.
    assert (many == "unknown").mean() == pytest.approx(0.3, abs=0.1)


def test_sets_contain_the_true_label_as_often_as_stated(folder, sample):
    done = annotated(sample, folder, "alpha=0.1")
    sets = [text.split("|") for text in done.obs["scperformer_set"].astype(str)]
    inside = np.mean(
        [label in labels for label, labels in zip(done.obs["cell_type"], sets, strict=True)]
    )
    # the standard deviation with 540 held-out and 600 new cells is .018
    assert inside == pytest.approx(0.9, abs=0.05)
    sizes = [len(labels) for labels in sets]
    np.testing.assert_array_equal(done.obs["scperformer_set_size"], sizes)
    facts = done.uns["scperformer"]["sets"]
    assert facts["alpha"] == 0.1
    assert facts["mean_size"] == pytest.approx(np.mean(sizes))
    called = done.obs["scperformer_label"].astype(str)
    assert called.tolist() == [labels[0] for labels in sets]  # the most probable label is the first


def test_nothing_depends_on_blocks_or_other_cells(folder, sample, write, command, monkeypatch):
    path = write(sample)
    options = [f"model_path={folder}", "alpha=0.2", "overwrite=true"]
    assert command("predict", path, *options, "output=whole.h5ad").code == 0
    whole = ad.read_h5ad("whole.h5ad")
    monkeypatch.setattr(rows, "BLOCK_VALUES", 50 * 300)
    assert command("predict", path, *options, "output=parts.h5ad").code == 0
    columns = [name for name in whole.obs if name.startswith("scperformer_")]
    assert "scperformer_set" in columns
    pd.testing.assert_frame_equal(ad.read_h5ad("parts.h5ad").obs[columns], whole.obs[columns])
    # the median counts of a label are of all its cells
    columns = [name for name in columns if "doublet" not in name]
    some = (
        annotated(sample[[5, 99, 300]].copy(), folder, "alpha=0.2", "adapt=false")
        .obs[columns]
        .astype(str)
    )
    pd.testing.assert_frame_equal(some, whole.obs.loc[some.index, columns].astype(str))


def test_tables_have_the_columns(folder, sample, write, command):
    path = write(sample[:50].copy())
    assert (
        command("predict", path, f"model_path={folder}", "alpha=0.2", "output=calls.csv").code == 0
    )
    table = pd.read_csv("calls.csv")
    whole = annotated(sample[:50].copy(), folder, "alpha=0.2")
    for name in ("set", "set_size", "call"):
        assert table[f"scperformer_{name}"].tolist() == whole.obs[f"scperformer_{name}"].tolist()
    np.testing.assert_allclose(
        table["scperformer_margin"], whole.obsm["scperformer_details"]["margin"], rtol=1e-6
    )


def test_a_file_of_unknown_cells_is_warned_of(folder, sample, caplog):
    with caplog.at_level(logging.WARNING, "scperformer"):
        found = annotated(foreign(60), folder)
    share = (found.obs["scperformer_call"] == "unknown").mean()
    assert len(said(caplog, "annotation_of", f"{share:.0%}", 3, "counts in X").splitlines()) == 1
    caplog.clear()
    usual = annotated(sample, folder).uns["scperformer"]["fit"]
    assert not said(caplog, "annotation_of")
    assert usual["mean_confidence"] == pytest.approx(usual["held_out_confidence"], abs=0.05)


def test_confidences_far_below_those_of_held_out_cells_are_warned_of(folder, sample, caplog):
    """Each cell is the mean of a cell of each label."""
    mixed = sample[:40].copy()
    mixed.X = np.round((sample[:40].X + sample[40:80].X[::-1] + sample[80:120].X).toarray() / 3)
    with caplog.at_level(logging.WARNING, "scperformer"):
        fit = annotated(mixed, folder, "shift=false", "unknown_fpr=0").uns["scperformer"]["fit"]
    assert fit["mean_confidence"] < fit["held_out_confidence"] - 0.15
    means = [f"{fit[name]:.2f}" for name in ("mean_confidence", "held_out_confidence")]
    assert said(caplog, "annotation_of", *means)


def test_a_model_adapted_to_a_panel_has_evidence_of_its_own(folder, sample):
    done = annotated(sample[:, :150].copy(), folder, "adapt=true", "alpha=0.1")
    assert done.uns["scperformer"]["coverage"]["adapted"]
    assert 0.015 < (done.obs["scperformer_call"] == "unknown").mean() < 0.1
    right = done.obs["scperformer_label"].astype(str) == done.obs["cell_type"]
    held_out = done.uns["scperformer"]["calibration"]
    assert done.obs["scperformer_confidence"].mean() == pytest.approx(right.mean(), abs=0.08)
    assert held_out["error"] != pytest.approx(load_model(folder).saved.metrics.calibration.error)


def test_shallow_cells_are_told_how_often_families_are_right():
    proba = np.array([[0.6, 0.35, 0.05], [0.4, 0.55, 0.05], [0.02, 0.03, 0.95], [0.45, 0.2, 0.35]])
    held_out = HeldOut(np.log(proba), np.array([0, 0, 2, 2]), np.zeros(4), {})
    tree = LabelTree(["T1", "T2", "B"], {"T1": "T", "T2": "T"})
    text = shallow_cells(held_out, tree, 0.05)
    assert text.startswith(
        "5% of the depth of the reference; of out-of-fold cells, 50% of the labels"
    )
    assert text.endswith("100% of such calls")  # two of the family T, one B; the last has none


def test_a_model_of_calls_promises_no_accuracy(sample, tmp_path, caplog):
    called = simulated(600, 1)
    called.obs = called.obs.rename(columns={"cell_type": "scperformer_call"})
    options = as_options([*QUICK, "data.min_genes=0", "ontology=none"])
    model = scperformer.train(called, "scperformer_call", output=tmp_path / "m", options=options)
    assert said(caplog, "are_calls", "scperformer_call")
    card = (model.path / CARD).read_text(encoding="utf-8")
    assert "abels are calls of scperformer" in card
    assert "Expected on cells like these" not in card
    record = scperformer.annotate(sample.copy(), model).uns["scperformer"]
    assert math.isnan(record["shift"]["expected_highest"])
    assert any("calls of scperformer" in value for value in record["remarks"]["value"])
