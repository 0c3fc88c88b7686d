"""Adapted models: when they are made, the same bits however cells are called, what is recorded, and refusals."""

import math
from dataclasses import replace
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from support.logs import said
from support.refusal import refusal
from support.words import as_options

import scperformer
from scperformer.adaptation.fitted import FittedModel, Model
from scperformer.adaptation.load import load_model
from scperformer.cli.adapt import AdaptConfig
from scperformer.cli.adapt import run as run_adapt
from scperformer.cli.predict import PredictConfig
from scperformer.cli.predict import run as run_predict
from scperformer.io import rows
from scperformer.model.arrays import CELLS_FILE
from scperformer.model.content import to_json
from scperformer.model.folder import read_model, write_model

NUM_GENES = 400
LABELS = ("B cell", "Monocyte", "T cell")
PANEL = slice(90, 170)  # the weak genes of every label, and 20 genes without signal
QUICK = ["logger=none", "data.min_genes=0"]
FEW_STEPS = ["trainer.max_steps=60"]  # a tenth: the accuracy of the encoder is no matter here


def simulated(num_cells: int, seed: int, depth: float = 1.0) -> ad.AnnData:
    """Poisson counts of 400 genes: each of 3 labels has 30 genes eight times, and 20 others twice, as strong.

    Without the strong genes about nine of ten cells can be told apart.
    """
    rng, labels = np.random.default_rng(seed), np.arange(num_cells) % 3
    mean = np.tile(np.random.default_rng(0).gamma(2.0, 0.5, size=NUM_GENES), (num_cells, 1))
    for label in range(3):
        mean[np.ix_(labels == label, range(30 * label, 30 * label + 30))] *= 8
        mean[np.ix_(labels == label, range(90 + 20 * label, 110 + 20 * label))] *= 2
    counts = rng.poisson(mean * depth * rng.uniform(0.7, 1.4, (num_cells, 1)))
    return ad.AnnData(
        sparse.csr_matrix(counts, dtype=np.float32),
        obs=pd.DataFrame(
            {"cell_type": np.array(LABELS)[labels]},
            index=[f"seed{seed}cell{i}" for i in range(num_cells)],
        ),
        var=pd.DataFrame(index=[f"GENE{i}" for i in range(NUM_GENES)]),
    )


def trained(folder: Path, *overrides: str) -> Path:
    return scperformer.train(
        simulated(240, seed=1),
        "cell_type",
        output=folder,
        options=as_options([*QUICK, *FEW_STEPS, *overrides]),
    ).path


@pytest.fixture(scope="module")
def linear(tmp_path_factory) -> Path:
    """A model without an encoder, which is fitted in a moment."""
    return trained(tmp_path_factory.mktemp("linear") / "linear", "model.encoder=false")


@pytest.fixture(scope="module")
def default(tmp_path_factory) -> Path:
    """A model as `train` makes it by default."""
    return trained(tmp_path_factory.mktemp("default") / "default")


@pytest.fixture
def sample() -> ad.AnnData:
    """120 other cells with all genes, as deep as the reference."""
    return simulated(120, seed=2)


@pytest.fixture
def panel(sample) -> ad.AnnData:
    """The same cells with the genes of the panel alone."""
    return sample[:, PANEL].copy()


def annotated(adata: ad.AnnData, model: Path | Model, *overrides: str) -> ad.AnnData:
    loaded = model if isinstance(model, Model) else load_model(model)
    return scperformer.annotate(adata.copy(), loaded, options=as_options(list(overrides)))


def thinned(adata: ad.AnnData) -> ad.AnnData:
    """The same cells with a third of their counts."""
    thin = adata.copy()
    thin.X.data = (
        np.random.default_rng(0).binomial(thin.X.data.astype(int), 1 / 3).astype(np.float32)
    )
    thin.X.eliminate_zeros()
    return thin


def accuracy(adata: ad.AnnData) -> float:
    return float(
        (adata.obs["scperformer_label"].astype(str) == adata.obs["cell_type"].astype(str)).mean()
    )


def coverage(adata: ad.AnnData) -> dict:
    return adata.uns["scperformer"]["coverage"]


def same_bits(one: ad.AnnData, other: ad.AnnData) -> bool:
    """Whether the cells of `one` have the same annotation in `other`, which may hold more cells."""
    other = other[one.obs_names]
    # Doublet scores depend on the median counts of all cells, and need the stored cells of the reference.
    columns = [
        name for name in one.obs if name.startswith("scperformer_") and "doublet" not in name
    ]
    return (
        np.array_equal(
            one.obsm["scperformer_proba"].to_numpy(), other.obsm["scperformer_proba"].to_numpy()
        )
        and np.array_equal(one.obsm["X_scperformer"], other.obsm["X_scperformer"])
        and one.obs[columns].astype(str).equals(other.obs[columns].astype(str))
    )


def test_a_panel_without_the_informative_genes_is_refused_or_adapted_to(linear, panel):
    with refusal("few-genes"):
        annotated(panel, linear, "adapt=false")
    done = annotated(panel, linear)  # adapt=auto
    assert coverage(done)["adapted"]
    assert coverage(done)["num_genes"] == 80
    # a third by chance; more if the strong genes had a part in it
    assert 0.75 < accuracy(done) < 0.97
    # Both are shares of some hundred cells, with standard errors of .03.
    assert coverage(done)["expected_accuracy"] == pytest.approx(accuracy(done), abs=0.1)
    assert coverage(done)["accuracy_with_all_genes"] > 0.98


def test_the_baseline_is_logistic_regression_on_the_measured_genes(linear, panel, tmp_path):
    """scikit-learn's, on the cells of the reference with these genes alone, normalised over them."""
    reference, theirs = simulated(240, seed=1), LogisticRegression(max_iter=1000)
    train, query = (
        np.log1p(x / x.sum(axis=1, keepdims=True) * 1e4)
        for x in (reference.X[:, PANEL].toarray(), panel.X.toarray())
    )
    expected = theirs.fit(train, reference.obs["cell_type"]).predict(query)
    model = scperformer.load_model(
        scperformer.adapt(linear, panel, output=tmp_path / "adapted").path
    )
    columns = [panel.var_names.get_loc(gene) for gene in model.saved.genes]
    ours = np.array(model.saved.labels)[
        model.baseline.predict(sparse.csr_matrix(query[:, columns], dtype=np.float32))
    ]
    assert (ours == expected).mean() > 0.97  # it stops at a larger gradient


def test_a_file_like_the_reference_is_not_adapted_to(linear):
    like = simulated(120, seed=2)
    done = annotated(like, linear, "shift=false")
    assert same_bits(done, annotated(like, linear, "adapt=false", "shift=false"))
    found, full = coverage(done), read_model(linear).metrics.out_of_fold.accuracy
    assert (found["adapted"], found["depth_share"]) == (False, 1.0)
    assert found["expected_accuracy"] == found["accuracy_with_all_genes"] == full
    assert coverage(annotated(like, linear, "adapt=true"))["adapted"]  # the control


def test_a_deeper_file_is_brought_to_the_depth_of_the_reference(caplog):
    """Sums of five cells of one type, as of metacells or a newer chemistry."""
    cells = ad.read_h5ad(Path(__file__).parents[2] / "data" / "pbmc3k.h5ad")
    rng = np.random.default_rng(0)
    labels = cells.obs["cell_type"].to_numpy(str)
    drawn = rng.choice(labels, 100)
    rows = [rng.choice(np.flatnonzero(labels == label), 5) for label in drawn]
    x = sparse.csr_matrix(
        np.vstack([cells.X[of_sum].sum(axis=0) for of_sum in rows]), dtype=np.float32
    )
    obs = pd.DataFrame({"cell_type": drawn}, index=[f"sum{number}" for number in range(100)])
    deep = ad.AnnData(x, obs=obs, var=cells.var)
    caplog.set_level("INFO")
    done = annotated(deep, "pbmc3k")
    found = coverage(done)
    assert (found["adapted"], found["depth_share"]) == (False, pytest.approx(5, rel=0.3))
    assert said(caplog, "fitted._log", f"{found['depth_share']:.1f}")
    assert accuracy(done) >= 0.95
    assert accuracy(annotated(deep, "pbmc3k", "adapt=false")) < 0.9  # the control
    # neither on other cells nor on their order
    again = annotated(deep[::-1].copy(), "pbmc3k", "batch_size=7")[::-1]
    np.testing.assert_allclose(
        again.obsm["scperformer_proba"], done.obsm["scperformer_proba"], atol=1e-6
    )


def test_an_encoder_with_layers_is_left_out(tiny_model, counts_adata):
    """It was trained for all genes."""
    model = load_model(tiny_model)
    done = annotated(counts_adata[:, 30:120].copy(), model, "adapt=true")
    assert set(model.saved.scales) == {"linear", "encoder"}
    record = done.uns["scperformer"]
    assert (record["coverage"]["adapted"], set(record["model"]["scales"])) == (True, {"linear"})
    assert done.obsm["X_scperformer"].shape == (120, 3)  # the logits
    assert accuracy(done) > 0.9


def test_a_performer_that_decides_no_label_is_neither_computed_nor_fitted_again(
    linear, sample, panel, tmp_path, monkeypatch
):
    monkeypatch.setattr("scperformer.fits.scales.MIN_GAIN", np.inf)
    model = load_model(trained(tmp_path / "silent"))
    assert model.saved.scales["encoder"] == 0
    # for those who compare branches
    assert any(name.startswith("model.encoder.") for name in model.saved.weights)
    assert model.network.encoder is None
    for cells in (sample, panel):
        silent, alone = (annotated(cells, each, "adapt=true") for each in (model, linear))
        assert same_bits(silent, alone)
        assert set(silent.uns["scperformer"]["model"]["scales"]) == {"linear"}


def test_genes_that_the_model_does_not_know_do_not_count(linear, panel):
    """Cells are normalised over the genes of the adapted model, as its own cells are."""
    others = (
        np.random.default_rng(0).poisson(20.0, size=(panel.n_obs, 60))
        * np.arange(panel.n_obs)[:, None]
    )
    more = ad.AnnData(sparse.csr_matrix(others, dtype=np.float32), obs=panel.obs)
    more.var_names = [f"NEW{i}" for i in range(60)]
    both = annotated(ad.concat([panel, more], axis=1, merge="same"), linear, "adapt=true")
    wanted = annotated(panel, linear, "adapt=true")
    assert coverage(both)["key"] == coverage(wanted)["key"]
    # The totals over all genes are divided out again, in double precision but from float32 logarithms.
    found = both.obsm["scperformer_proba"].to_numpy()
    np.testing.assert_allclose(found, wanted.obsm["scperformer_proba"].to_numpy(), atol=1e-3)


def files_of(adata: ad.AnnData, write) -> dict[str, str]:
    """The cells as one file, in another order, half of them, and beside as many others."""
    order = np.random.default_rng(0).permutation(adata.n_obs)
    others = simulated(adata.n_obs, seed=5)[:, adata.var_names]
    cells = {
        "whole": adata,
        "shuffled": adata[order],
        "half": adata[::2],
        "beside": ad.concat([others, adata]),
    }
    return {name: str(write(part.copy(), f"{name}.h5ad")) for name, part in cells.items()}


@pytest.mark.parametrize("kind", ["linear", pytest.param("default", marks=pytest.mark.slow)])
def test_calls_depend_on_the_cell_and_the_condition_alone(
    kind, request, panel, write, monkeypatch, torch_unchanged
):
    """Not on other cells, their order, blocks, batches, threads or the state of random numbers."""
    model, files = str(request.getfixturevalue(kind)), files_of(panel, write)

    def predict(name: str, **options) -> ad.AnnData:
        cfg = PredictConfig(
            inputs=[files[name]], model_path=model, adapt="true", overwrite=True, **options
        )
        [output] = run_predict(cfg)
        return ad.read_h5ad(output)

    whole = predict("whole")
    found = [predict("half"), predict("beside", batch_size=3)]
    torch.manual_seed(123)
    np.random.seed(123)
    monkeypatch.setattr(rows, "MAX_BLOCK_CELLS", 17)
    with torch_unchanged():
        found.append(predict("shuffled", threads=2))
    assert len({coverage(done)["key"] for done in (whole, *found)}) == 1
    assert same_bits(found[0], whole)
    assert all(same_bits(whole, done) for done in found[1:])
    # the control: beside shallow cells, which change the depth of the file
    default_output = annotated(ad.concat([panel[:10], thinned(panel)[10:]]), model, "adapt=true")
    assert coverage(default_output)["key"] != coverage(whole)["key"]
    assert not same_bits(whole[:10], default_output)


def test_adapted_models_are_kept_in_a_folder_and_taken_from_there(
    default, panel, write, tmp_path, monkeypatch
):
    path, folder = str(write(panel)), tmp_path / "adapted"
    (first,) = run_predict(
        PredictConfig(inputs=[path], model_path=str(default), adapted_folder=str(folder))
    )
    one = ad.read_h5ad(first)
    assert same_bits(one, annotated(panel, default))
    [reference_cells] = folder.iterdir()
    assert reference_cells.name.endswith(f"-{coverage(one)['key']}-{scperformer.__version__}")
    before = {
        file.name: (file.read_bytes(), file.stat().st_mtime_ns)
        for file in reference_cells.iterdir()
    }
    assert CELLS_FILE not in before
    monkeypatch.setattr(FittedModel, "refit", None)  # not made again
    again = ad.read_h5ad(
        run_predict(
            PredictConfig(
                inputs=[path], model_path=str(default), adapted_folder=str(folder), overwrite=True
            )
        )[0]
    )
    assert same_bits(one, again)
    assert before == {
        file.name: (file.read_bytes(), file.stat().st_mtime_ns)
        for file in reference_cells.iterdir()
    }
    for done in (one, again):
        assert done.uns["scperformer"]["model"]["hash"] == read_model(default).hash
        assert coverage(done) == coverage(one)


def test_the_step_makes_the_model_that_predict_makes(default, panel, write, command, tmp_path):
    ran = command("adapt", default, write(panel, "panel.h5ad"))
    assert ran.code == 0, ran.err
    folder = tmp_path / "panel.adapted"
    assert (
        "written: panel.adapted; on reference cells with its 80 genes: accuracy 0."
        in ran.err.replace(f"{tmp_path}/", "")
    )
    wanted, done = annotated(panel, default, "adapt=true"), annotated(panel, folder)
    assert same_bits(done, wanted)
    saved = read_model(folder)
    assert saved.name == "panel"
    assert saved.genes == [gene for gene in read_model(default).genes if gene in panel.var_names]
    origin = saved.provenance.adapted_from
    assert (origin.hash, origin.num_genes) == (read_model(default).hash, NUM_GENES)
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    new = set(to_json(saved.provenance)) - set(to_json(read_model(default).provenance))
    assert {name for name in (*new, *to_json(saved.metrics)) if f"`{name}`" not in page} <= {
        "expected_macro_f1"
    }
    # Its own genes and depth: what was expected of it is expected of the file.
    expected = saved.provenance.expected_accuracy
    assert expected == coverage(wanted)["expected_accuracy"]
    assert (
        coverage(done)["expected_accuracy"] == coverage(done)["accuracy_with_all_genes"] == expected
    )
    assert math.isnan(coverage(annotated(thinned(panel), folder))["expected_accuracy"])


def test_a_list_of_genes_is_a_panel_of_the_depth_of_the_reference(linear, panel, tmp_path, caplog):
    genes = tmp_path / "panel.txt"
    genes.write_text("\n".join([*panel.var_names[::-1], *(f"NEW{i}" for i in range(5))]) + "\n")
    folder = run_adapt(
        AdaptConfig(inputs=[str(genes)], model_path=str(linear), output=str(tmp_path / "m"))
    )
    assert said(caplog, "find_panel", genes, 5, "model", "'NEW0'")
    saved = read_model(folder)
    assert (set(saved.genes), saved.provenance.depth) == (set(panel.var_names), None)
    wanted = annotated(panel, linear, "adapt=true")
    assert coverage(wanted)["depth_share"] == 1  # the file is as deep, too
    assert same_bits(annotated(panel, folder), wanted)


@pytest.fixture
def without(linear, tmp_path) -> Path:
    """The linear model without its kept cells."""
    write_model(replace(read_model(linear), has_reference_cells=False), tmp_path / "without")
    return tmp_path / "without"


def test_a_model_without_cells_is_used_as_it_is(without, linear, sample, panel):
    some = sample[:, 60:].copy()  # a third of the strong genes
    # the batch effect is known from stored cells only
    done = annotated(some, without, "shift=false")
    assert coverage(done)["adapted"] is False
    assert math.isnan(coverage(done)["expected_accuracy"])
    plain = annotated(some, linear, "adapt=false", "shift=false")
    np.testing.assert_array_equal(done.obsm["scperformer_proba"], plain.obsm["scperformer_proba"])
    with refusal("few-genes"):
        annotated(panel, without)


def test_without_kept_cells_adapting_is_refused(without, sample, write, refused):
    line = refused("predict", f"model_path={without}", "adapt=true", write(sample))
    assert f"a model that keeps no cells ({without}); expected kept cells: train it" in line


LISTS = {
    "unknown genes": (
        [*(f"GENE{i}" for i in range(60)), *(f"NEW{i}" for i in range(61))],
        "60 of the 121 genes",
    ),
    "too few genes": ([f"GENE{i}" for i in range(49)], "49 of the 49 genes"),
}


@pytest.mark.parametrize("case", LISTS)
def test_lists_of_genes_that_are_no_panel_of_the_model(case, linear, refused, tmp_path):
    genes, found = LISTS[case]
    (tmp_path / "genes.txt").write_text("\n".join(genes))
    line = refused("adapt", linear, "genes.txt")
    assert f"error: {found} of 'genes.txt' known to the model" in line
    assert "expected 50 genes or more, and at least half of them" in line
