"""Training and validation cells: shares, groups, columns, and no leaks from one side to the other."""

import numpy as np
import pandas as pd
import pytest
from support.refusal import refusal

from scperformer.cells.opened import OpenedCells
from scperformer.cells.reference import make_reference
from scperformer.cells.splits import (
    group_split,
    split_cells,
    split_values,
    stratified_sample,
    stratified_split,
)
from scperformer.cli.compose import make_config
from scperformer.cli.train import run as run_train
from scperformer.config.training import DataConfig
from scperformer.fits import evidence
from scperformer.model.folder import read_model
from scperformer.model.minibatches import Cells
from scperformer.training import strategies

FAST = [
    "label_key=cell_type",
    "model=tiny",
    "trainer.max_epochs=1",
    "logger=none",
    "data.min_genes=0",
]


def config(path, *overrides):
    return make_config("train", [f"inputs=['{path}']", *FAST, *overrides])


LABELS = np.random.default_rng(0).permutation(np.repeat([0, 1, 2, 3], [600, 35, 5, 2]))


@pytest.mark.parametrize(
    ("fraction", "expected"), [(0.1, [60, 4, 1, 1]), (0.2, [120, 7, 1, 1]), (0.99, [594, 34, 4, 1])]
)
def test_split_takes_the_share_of_each_label(fraction, expected):
    # 0.1 x 35 = 3.5 is rounded to even; at least one cell, never all
    train, val = stratified_split(LABELS, fraction, seed=0)
    assert sorted([*train, *val]) == list(range(len(LABELS)))
    assert np.bincount(LABELS[val]).tolist() == expected


def test_only_cells_of_labels_are_not_held_out():
    split = split_cells(np.array([0, 1, 1, 1, 2]), ["x", "y", "z"], None, DataConfig(), seed=0)
    assert (split.record["num_train_cells"], split.val[0] in (1, 2, 3)) == (4, True)
    with refusal("empty-split"):
        split_cells(np.arange(5), list("abcde"), None, DataConfig(), seed=0)


def test_rows_are_sampled_in_proportion():
    labels = np.repeat([0, 1, 2], [8000, 1999, 1])
    rows = stratified_sample(labels, 1000, seed=0)
    assert np.bincount(labels[rows]).tolist() == [800, 200, 1]
    assert np.array_equal(rows, stratified_sample(labels, 1000, seed=0))
    assert not np.array_equal(rows, stratified_sample(labels, 1000, seed=1))


GROUPS = np.random.default_rng(1).integers(0, 12, 2000)
OF_GROUP = np.random.default_rng(2).integers(0, 4, 2000)


@pytest.mark.parametrize("seed", range(3))
def test_a_group_that_alone_has_a_label_stays_in_training(seed):
    labels = OF_GROUP.copy()
    labels[np.flatnonzero(GROUPS == 3)[:2]] = 4  # a label that only group 3 has
    # a label of groups 5 and 6, which must not both be held out
    labels[np.flatnonzero(GROUPS == 5)[0]] = 5
    labels[np.flatnonzero(GROUPS == 6)[0]] = 5
    chosen = group_split(GROUPS, labels, 0.5, seed)
    assert set(labels[~np.isin(GROUPS, chosen)]) == {0, 1, 2, 3, 4, 5}
    assert 3 not in chosen


def test_groups_that_cannot_be_split_are_refused():
    options = DataConfig(split="group", split_key="donor")
    with refusal("one-group"):
        split_cells(np.array([0, 1]), ["x", "y"], np.array(["d", "d"]), options, seed=0)
    with refusal("only-group-of-label"):
        split_cells(np.array([0, 1]), ["x", "y"], np.array(["a", "b"]), options, seed=0)
    split = split_cells(
        np.array([0, 1, 0, 1]), ["x", "y"], np.array(["a", "a", "b", "b"]), options, seed=0
    )
    assert split.notes[0].endswith("(50.0% of the cells).")
    assert (split.record["num_groups"], len(split.record["val_groups"])) == (2, 1)


@pytest.fixture
def sides(counts_adata):
    """A reference whose test cells have a gene and a label that no other cells have."""
    side = np.array(["train", "train", "val", "test"])[np.random.default_rng(0).integers(0, 4, 120)]
    counts_adata.obs["side"] = side
    counts_adata.obs["cell_type"] = np.where(
        side == "test", "Secret", counts_adata.obs["cell_type"].astype(str)
    )
    dense = counts_adata.X.toarray()
    dense[:, 0] = np.where(side == "test", 100, 0)
    counts_adata.X = type(counts_adata.X)(dense)
    return counts_adata


BY_COLUMN = ("data.split=column", "data.split_key=side")


def test_test_cells_are_removed_before_anything_is_computed(sides):
    reference = make_reference([OpenedCells(sides, config("x", *BY_COLUMN), "x")])
    side = sides.obs["side"].to_numpy()
    rest = side[side != "test"]
    assert reference.x.shape[0] == len(rest)
    assert (rest[reference.split.train] == "train").all()
    assert (rest[reference.split.val] == "val").all()
    assert len(reference.split.train) + len(reference.split.val) == len(rest)
    assert reference.label_names == ["B cell", "Monocyte", "T cell"]
    assert "GENE0" not in reference.genes  # only test cells express it


@pytest.mark.slow
def test_no_fit_sees_a_test_cell(sides, write, tmp_path, monkeypatch):
    """Every fit equals that of a file without the test cells, bit for bit."""
    seen = []
    fit = evidence.fit_branches
    evaluate = strategies.CalibratedBySplit.evaluate

    def watched_fit(x, *more):
        seen.append(x.shape[0])
        return fit(x, *more)

    def watched_evaluate(training, fitted):
        seen.append((len(training.train), len(training.val)))
        return evaluate(training, fitted)

    for place in (evidence, strategies):
        monkeypatch.setattr(place, "fit_branches", watched_fit)
    monkeypatch.setattr(strategies.CalibratedBySplit, "evaluate", watched_evaluate)
    whole = run_train(config(write(sides), *BY_COLUMN, f"output='{tmp_path / 'whole'}'"))
    num = {name: int((sides.obs["side"] == name).sum()) for name in ("train", "val", "test")}
    allowed = {num["train"], num["train"] + num["val"], (num["train"], num["val"])}
    assert set(seen) <= allowed
    assert (num["train"], num["val"]) in seen
    without = write(sides[sides.obs["side"] != "test"].copy(), "without.h5ad")
    other = run_train(config(without, *BY_COLUMN, f"output='{tmp_path / 'without'}'"))
    ours, theirs = read_model(whole), read_model(other)
    assert ours.weights.keys() == theirs.weights.keys()
    assert all(np.array_equal(ours.weights[name], theirs.weights[name]) for name in ours.weights)
    np.testing.assert_array_equal(ours.gene_means, theirs.gene_means)
    assert ours.provenance.num_cells == num["train"] + num["val"]
    assert "Secret" not in (whole / "bundle.json").read_text()


@pytest.mark.parametrize(
    ("column", "value", "code", "named"),
    [
        ("side", "valid", "bad-split", "'valid'"),
        ("cell_type", "New", "label-without-training-cells", "'New'"),
        ("side", "train", "empty-split", "'train'"),
    ],
)
def test_a_column_that_makes_no_split_is_refused(sides, column, value, code, named):
    sides.obs[column] = np.where(sides.obs["side"] == "val", value, sides.obs[column])
    with refusal(code, "side", *([] if code == "empty-split" else [named])):
        make_reference([OpenedCells(sides, config("x", *BY_COLUMN), "x")])


def test_only_labelled_cells_need_a_value():
    obs = pd.DataFrame({"side": ["train ", None, "", "nonsense", "val"]})
    options = DataConfig(split="column", split_key="side")
    labelled = np.array([True, False, False, False, True])
    assert split_values(obs, options, labelled, "x").tolist()[::4] == ["train", "val"]
    with refusal("missing-values"):
        split_values(obs, options, np.array([True, True, True, False, True]), "x")
    with refusal("no-column"):
        split_values(obs, DataConfig(split="group", split_key="donor"), labelled, "x")


@pytest.fixture
def rare(counts_adata):
    """A reference with eight batches and two labels of one cell each, one with an ontology id."""
    labels = counts_adata.obs["cell_type"].astype(str)
    labels.iloc[:2] = ["Platelet", "Mast cell"]
    counts_adata.obs["cell_type"] = labels
    counts_adata.obs["cell_type_ontology_term_id"] = labels.map({"Platelet": "CL:0000233"}).fillna(
        "CL:0000000"
    )
    counts_adata.obs["batch id"] = np.arange(120) // 3 % 8
    return counts_adata


@pytest.mark.parametrize("least", [1, 2])
def test_labels_of_one_cell_are_kept_or_left_out(least, rare):
    reference = make_reference(
        [OpenedCells(rare, config("x", f"data.min_cells_per_label={least}"), "x")]
    )
    single = {"Platelet": 1, "Mast cell": 1}
    counts = {"B cell": 39, "T cell": 39, "Monocyte": 40} | (single if least == 1 else {})
    assert dict(zip(reference.label_names, reference.counts, strict=True)) == counts
    assert reference.rare.get("labels", {}) == ({} if least == 1 else single)
    if least == 2:
        note = "2 labels have fewer than 2 cells: 'Mast cell' (1), 'Platelet' (1); their 2 cells are left out."
        assert reference.notes == [note]
    terms = dict(zip(reference.label_names, reference.terms.ids, strict=True))
    assert terms.get("Platelet", "CL:0000233") == "CL:0000233"


def test_the_network_trains_on_the_split_and_the_card_describes_it(
    rare, write, tmp_path, monkeypatch
):
    seen = []
    monkeypatch.setattr(
        strategies, "Cells", lambda x, *rest: seen.append(x.shape[0]) or Cells(x, *rest)
    )
    options = [
        "data.split=group",
        "data.split_key='batch id'",
        f"output='{tmp_path / 'model'}'",
        "model=tiny",
    ]
    folder = run_train(config(write(rare), *options))
    made, card = read_model(folder).provenance, (folder / "MODEL_CARD.md").read_text()
    assert made.rare_labels == {}
    assert "| not tested |" in card
    split = made.split
    assert (split["how"], split["key"], split["num_groups"]) == ("group", "batch id", 8)
    assert split["num_train_cells"] + split["num_val_cells"] == 120
    assert seen[:2] == [split["num_train_cells"], split["num_val_cells"]]
    [group] = split["val_groups"]
    assert (
        f"1 of 8 values of obs['batch id'] are held out whole: '{group}' (12.5% of the cells)."
        in card
    )
    assert all(note in card for note in made.notes)
