"""The table of the accuracy under usual conditions: which conditions, their scores, the model card, refusals."""

import numpy as np
import pytest
import scanpy as sc
from scipy import sparse
from support.words import as_options

import scperformer
from scperformer.base.errors import InputError
from scperformer.cli.compose import make_config
from scperformer.model.folder import CARD, load_reference_cells, read_model
from scperformer.model.reference_cells import ReferenceCells
from scperformer.training import adapted
from scperformer.training.adapted import fit_to_condition
from scperformer.training.condition import Condition, depth_share

FAST = ["experiment=linear", "logger=none", "data.min_genes=0", "card=full"]


@pytest.fixture
def many_genes() -> ReferenceCells:
    """40 cells x 1,100 genes of counts; the variance of each gene is another multiple of its mean."""
    rng = np.random.default_rng(0)
    dispersion = rng.uniform(0.2, 5, 1100)
    counts = rng.negative_binomial(dispersion, dispersion / (dispersion + 3), (40, 1100))
    counts[:, 7] = 0
    return ReferenceCells(sparse.csr_matrix(counts, dtype=np.float32), np.arange(40) % 2, are_counts=True)


def test_which_conditions_are_usual(many_genes):
    found = adapted.usual_conditions(many_genes, seed=3)
    sizes = {name: int(condition.measured.sum()) for name, condition in found.items()}
    assert sizes == {
        "all genes": 1100,
        "half of the depth": 1100,
        "a tenth of the depth": 1100,
        "1,000 genes at random": 1000,
        "the 1,000 most variable genes": 1000,
        "the 300 most variable genes": 300,
    }
    shares = [depth_share(many_genes, condition) for condition in found.values()]
    assert shares == pytest.approx([1, 0.5, 0.1, 1, 1, 1])
    ratios = [column.var() / column.mean() if column.any() else 0 for column in many_genes.values.toarray().T]
    least = sorted(ratios)[-300]
    assert found["the 300 most variable genes"].measured.tolist() == [ratio >= least for ratio in ratios]
    assert not found["the 1,000 most variable genes"].measured[7]


def test_random_genes_depend_on_the_seed_alone(many_genes):
    first, again, other = (
        adapted.usual_conditions(many_genes, seed)["1,000 genes at random"].measured for seed in (3, 3, 4)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_panels_that_a_model_has_no_genes_for_are_left_out(many_genes):
    few = ReferenceCells(many_genes.values[:, :300], many_genes.labels, are_counts=True)
    assert list(adapted.usual_conditions(few, seed=0)) == [
        "all genes",
        "half of the depth",
        "a tenth of the depth",
    ]


def test_the_table_has_the_scores_of_adapted_models(counts_adata, tmp_path, monkeypatch):
    monkeypatch.setattr(adapted, "NUM_RANDOM", 60)
    monkeypatch.setattr(adapted, "NUM_VARIABLE", (5,))
    # Shallow cells, some 50 counts each: with more, a tenth of them still tells the labels apart.
    counts = np.random.default_rng(0).binomial(counts_adata.X.toarray().astype(int), 0.1)
    counts_adata.X = sparse.csr_matrix(counts, dtype=np.float32)
    path = scperformer.train(counts_adata, "cell_type", output=tmp_path / "m", options=as_options(FAST)).path
    saved = read_model(path)
    names = (
        "all genes",
        "half of the depth",
        "a tenth of the depth",
        "60 genes at random",
        "the 5 most variable genes",
    )
    rows = {row["condition"]: row for row in saved.metrics["conditions"]}
    assert tuple(rows) == names
    scores = {name: {score: row[score] for score in ("accuracy", "macro_f1")} for name, row in rows.items()}
    own = saved.metrics["out_of_fold"]
    assert scores["all genes"] == {"accuracy": own["accuracy"], "macro_f1": own["macro_f1"]}
    # As `predict` would adapt the model that was written: to a file with a tenth of its counts.
    model, reference_cells = scperformer.load_model(path), load_reference_cells(saved, path)
    depth = np.median(counts_adata[:, saved.genes].X.toarray().sum(axis=1))
    tenth = Condition(np.ones(len(saved.genes), dtype=bool), 2 ** (round(2 * np.log2(depth)) / 2) / 10)
    theirs = fit_to_condition(model, reference_cells, tenth).metrics["out_of_fold"]
    assert scores["a tenth of the depth"] == {"accuracy": theirs["accuracy"], "macro_f1": theirs["macro_f1"]}
    # 30 genes of each label are five times as high: five genes, or a tenth of the molecules, show that much worse.
    assert rows["a tenth of the depth"]["accuracy"] < own["accuracy"] - 0.1
    assert rows["the 5 most variable genes"]["accuracy"] < own["accuracy"] - 0.1
    card = (path / CARD).read_text()
    for name, row in rows.items():
        assert f"| {name} | {row['num_genes']} | {row['accuracy']:.3f} | {row['macro_f1']:.3f} |\n" in card


def test_without_the_option_there_is_no_table(counts_adata, tmp_path):
    path = scperformer.train(counts_adata, "cell_type", output=tmp_path / "m", options=as_options(FAST[:-1])).path
    assert "conditions" not in read_model(path).metrics
    assert "depth" not in (path / CARD).read_text()


def test_a_reference_without_counts_is_refused_before_training(counts_adata, tmp_path):
    sc.pp.normalize_total(counts_adata, target_sum=1e4)
    sc.pp.log1p(counts_adata)
    counts_adata.X.data = counts_adata.X.data.round(1)
    with pytest.raises(InputError, match=r"card=full and a reference without counts; .*leave card=full"):
        scperformer.train(counts_adata, "cell_type", output=tmp_path / "m", options=as_options(FAST))
    assert list(tmp_path.iterdir()) == []


def test_simulated_cells_are_refused():
    with pytest.raises(InputError, match="card=full; expected short with keep_cells=0"):
        make_config("train", ["inputs=[a.h5ad]", "label_key=x", "keep_cells=0", *FAST])
