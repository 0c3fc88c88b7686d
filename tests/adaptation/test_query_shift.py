"""A file of another study: the encoder weighs less and gene effects are taken out, in calls, records, explanations."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.special import softmax
from support.logs import said
from support.opened import opened
from support.refusal import refusal
from support.words import as_options

import scperformer
from scperformer.adaptation.fitted import Model
from scperformer.adaptation.load import load_model
from scperformer.adaptation.offsets import Offsets
from scperformer.cells.query import find_query
from scperformer.io import rows as stored_rows
from scperformer.model.inference import branch_logits
from scperformer.model.linear import linear_logits
from scperformer.model.minibatches import Cells
from scperformer.model.network import CellTypeModel
from scperformer.trust.batch_effect import correct_batch_effect

DATA = Path(__file__).parents[2] / "data"
QUICK = [
    "trainer.max_steps=60",
    "data.min_genes=0",
    "data.min_cells=0",
    "logger=none",
    "ontology=none",
]


def made_cells(num_cells: int, seed: int, spread: float = 0.0) -> ad.AnnData:
    """Poisson counts of 300 genes, of 3 labels with 40 genes of their own; genes are times lognormal factors."""
    rng = np.random.default_rng(seed)
    codes = np.arange(num_cells) % 3
    mean = np.full((num_cells, 300), 1.0)
    for label in range(3):
        mean[np.ix_(codes == label, range(40 * label, 40 * label + 40))] = 1.35
    mean *= np.exp(np.random.default_rng(9).normal(0, spread, 300))
    return ad.AnnData(
        sparse.csr_matrix(rng.poisson(mean), dtype=np.float32),
        obs=pd.DataFrame(
            {"cell_type": np.array(["a", "b", "c"])[codes]},
            index=[f"cell{i}" for i in range(num_cells)],
        ),
        var=pd.DataFrame(index=[f"GENE{i}" for i in range(300)]),
    )


def without_offsets(model: Model, shift: dict[str, Any]) -> CellTypeModel:
    """A copy of the network of a model that subtracts the recorded offsets of a query."""
    network = deepcopy(model.network)
    Offsets(shift["logit_offsets"], shift["sum_offsets"], shift["label_overlap"]).subtract_in(
        network
    )
    return network


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("model") / "m"
    return scperformer.train(
        made_cells(300, 1), "cell_type", output=output, options=as_options(QUICK)
    ).path


@pytest.mark.parametrize(
    ("spread", "weight"), [(0.0, 1.0), (0.4, 0.5)], ids=["like the reference", "another study"]
)
def test_the_encoder_weighs_less_in_another_study(folder, spread, weight, tmp_path):
    model = load_model(folder)
    assert model.saved.scales["encoder"] > 0
    cells = made_cells(240, 2, spread)
    done = scperformer.annotate(cells.copy(), model)
    record = done.uns["scperformer"]
    assert record["shift"]["encoder_weight"] == weight
    scales = {
        "linear": model.saved.scales["linear"],
        "encoder": weight * model.saved.scales["encoder"],
    }
    assert record["model"]["scales"] == pytest.approx(scales)
    x = find_query(opened(cells), model.saved).all_cells()
    factors = record["shift"].get("gene_factors")
    assert (factors is None) == (weight == 1)
    of_reference = x if factors is None else correct_batch_effect(x, factors)
    network = model.network if weight == 1 else without_offsets(model, record["shift"])
    linear, encoder = branch_logits(network, Cells(of_reference, model.tokens), 64)
    expected = softmax(linear + weight * encoder, axis=1)
    np.testing.assert_allclose(done.obsm["scperformer_proba"].to_numpy(), expected, atol=1e-5)
    np.testing.assert_array_equal(scperformer.embed(cells, model), done.obsm["X_scperformer"])
    some = done[done.obs["scperformer_label"] != "a"].copy()  # would have other gene effects
    # refuses cells to which it would give other labels
    scperformer.explain(some, model, output=tmp_path / "why")
    unshifted = scperformer.annotate(cells.copy(), model, options={"shift": "false"})
    linear, encoder = branch_logits(model.network, Cells(x, model.tokens), 64)
    np.testing.assert_allclose(linear_logits(model.saved, x), linear, atol=1e-5)
    np.testing.assert_allclose(
        unshifted.obsm["scperformer_proba"], softmax(linear + encoder, axis=1), atol=1e-5
    )


def test_gene_effects_of_another_study_are_taken_out_before_cells_are_called(folder):
    model = load_model(folder)
    cells = made_cells(240, 2)
    truth = cells.obs["cell_type"].to_numpy()
    # what the cells of one label have more of
    times = np.where(np.arange(300) // 40 == 2, 3.0, 1.0)
    cells.X = sparse.csr_matrix(cells.X.multiply(times), dtype=np.float32)
    found = scperformer.annotate(cells.copy(), model)
    factors = found.uns["scperformer"]["shift"]["gene_factors"]
    assert np.corrcoef(np.log(factors), np.log(times))[0, 1] > 0.95
    plain = scperformer.annotate(cells.copy(), model, options={"shift": "false"})
    labels, plain_labels = (each.obs["scperformer_label"].to_numpy() for each in (found, plain))
    assert (plain_labels == "c").mean() > 0.5
    assert (labels == "c").mean() == pytest.approx(1 / 3, abs=0.1)
    assert (labels == truth).mean() > (plain_labels == truth).mean() + 0.05
    panel = scperformer.annotate(cells[:, 20:].copy(), model, options={"adapt": "true"})
    assert panel.uns["scperformer"]["shift"]["gene_factors"].shape == (280,)
    whole = scperformer.annotate(cells[:, 20:].copy(), model, options={"adapt": "false"})
    # without the kept cells, nothing is compared
    assert "gene_factors" not in whole.uns["scperformer"]["shift"]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("gene_factors", np.ones(9)),
        ("gene_factors", "a"),
        ("logit_offsets", np.ones((1, 4), np.float32)),
        ("sum_offsets", np.array([[np.nan]], np.float32)),
    ],
    ids=["number of factors", "text", "number of offsets", "no number"],
)
def test_explain_refuses_what_predict_did_not_write_about_a_study(folder, name, values, tmp_path):
    model = load_model(folder)
    done = scperformer.annotate(made_cells(240, 2, 0.4), model)
    done.uns["scperformer"]["shift"][name] = values
    with refusal("damaged-annotation"):
        scperformer.explain(done, model, output=tmp_path / "why")


def test_a_model_knows_how_far_its_batches_are_from_each_other(tmp_path):
    """Cells of a third batch are like the reference if its two batches differ as much."""
    parts = {"d1": made_cells(150, 1), "d2": made_cells(150, 2, 0.4)}
    cells = ad.concat(parts, label="donor", index_unique="-")
    model = scperformer.train(
        cells,
        "cell_type",
        output=tmp_path / "batches",
        batch_key="donor",
        options=as_options(QUICK),
    ).load()
    saved = model.saved
    assert saved.provenance.batches.names == ["d1", "d2"]
    assert saved.batch_scores.batch_effect == pytest.approx(0.4, abs=0.1)
    assert len(saved.batch_scores.accuracy) == 2
    assert "d1" in (tmp_path / "batches" / "MODEL_CARD.md").read_text()
    new = made_cells(240, 3, 0.2)
    found = scperformer.annotate(new.copy(), model).uns["scperformer"]["shift"]
    assert found["kind"] == "like the reference"
    assert found["expected_lowest"] == pytest.approx(min(saved.batch_scores.accuracy), abs=0.1)
    assert found["expected_lowest"] < found["expected_highest"]
    adapted = scperformer.annotate(new[:, :200].copy(), model, options={"adapt": "true"}).uns[
        "scperformer"
    ]["shift"]
    assert adapted["reference_batch_effect"] > 0.2


@pytest.mark.parametrize(
    "genes",
    [slice(None), pytest.param(slice(20, None), marks=pytest.mark.slow)],
    ids=["as it is", "adapted"],
)
def test_a_part_of_a_sample_is_annotated_as_in_the_whole(folder, tmp_path, genes):
    model = load_model(folder)
    whole = made_cells(240, 2, 0.4)[:, genes].copy()
    part = whole[whole.obs["cell_type"] == "a"].copy()
    annotated = scperformer.annotate(whole.copy(), model)
    expected = annotated[part.obs_names].copy()
    assert annotated.uns["scperformer"]["shift"]["kind"] == "another protocol or condition"
    assert annotated.uns["scperformer"]["coverage"]["adapted"] == (part.n_vars < 300)
    alone = scperformer.annotate(part.copy(), model)
    assert not np.array_equal(alone.obsm["scperformer_proba"], expected.obsm["scperformer_proba"])
    found = [scperformer.annotate(part.copy(), model, full_sample=whole)]
    for name, cells in {
        "whole.h5ad": whole,
        "annotated.h5ad": annotated,
        "part.h5ad": part,
    }.items():
        cells.write_h5ad(tmp_path / name)
    for name in ("whole.h5ad", "annotated.h5ad"):
        options = {"full_sample": tmp_path / name, "output": tmp_path / f"by_{name}"}
        found.append(ad.read_h5ad(scperformer.annotate(tmp_path / "part.h5ad", model, **options)))
        assert found[-1].uns["scperformer"]["coverage"]["of"] == name
    ours = [
        name for name in expected.obs if name.startswith("scperformer_") and "doublet" not in name
    ]
    for cells in found:
        pd.testing.assert_frame_equal(cells.obs[ours], expected.obs[ours], check_categorical=False)
        for name in ("scperformer_proba", "X_scperformer"):
            np.testing.assert_array_equal(
                np.asarray(cells.obsm[name]), np.asarray(expected.obsm[name])
            )
    np.testing.assert_array_equal(
        scperformer.embed(part, model, full_sample=whole), expected.obsm["X_scperformer"]
    )
    # refuses cells to which it would give other labels
    scperformer.explain(found[0], model, output=tmp_path / "why")


def test_a_whole_sample_of_other_genes_or_values_is_refused(folder, tmp_path):
    model = load_model(folder)
    cells = made_cells(60, 2)
    cells.write_h5ad(tmp_path / "whole.h5ad")
    of_whole = {"full_sample": tmp_path / "whole.h5ad"}
    with refusal("other-genes"):
        scperformer.annotate(cells[:, 20:].copy(), model, **of_whole)
    logged = cells[:20].copy()
    logged.X = sparse.csr_matrix(
        np.log1p(logged.X.toarray() / logged.X.sum(1) * 1e4), dtype=np.float32
    )
    with refusal("other-values"):
        scperformer.annotate(logged, model, **of_whole)
    with refusal("no-file"):
        scperformer.annotate(cells, model, full_sample="none.h5ad")
    with refusal("full-sample-type"):
        scperformer.annotate(tmp_path / "whole.h5ad", model, full_sample=cells)


@pytest.fixture(scope="module")
def mixed() -> ad.AnnData:
    """Cells like the reference, cells with more of the genes of label c, and ten further cells."""
    parts = {"like": made_cells(240, 2), "other": made_cells(240, 3), "small": made_cells(10, 4)}
    parts["other"].X = sparse.csr_matrix(parts["other"].X.multiply(TIMES), dtype=np.float32)
    return ad.concat(parts, label="run", index_unique="-")


TIMES = np.where(np.arange(300) // 40 == 2, 3.0, 1.0)


@pytest.mark.slow
def test_each_batch_is_corrected_apart(folder, mixed, tmp_path, monkeypatch):
    model = load_model(folder)
    plain = scperformer.annotate(mixed.copy(), model)
    assert "batches" not in plain.uns["scperformer"]
    found = scperformer.annotate(mixed.copy(), model, batch_key="run")
    record = found.uns["scperformer"]
    batches = record["batches"]
    assert batches["key"] == "run"
    assert batches["name"].tolist() == ["like", "other", "small"]
    assert batches["num_cells"].tolist() == [240, 240, 10]
    whole = record["shift"]["gene_factors"]
    np.testing.assert_array_equal(
        batches["gene_factors"], [np.ones(300), batches["gene_factors"][1], whole]
    )
    logs = np.log(batches["gene_factors"][1])
    assert np.corrcoef(logs, np.log(TIMES))[0, 1] > 0.95
    assert logs.std() > 1.3 * np.log(whole).std()  # the whole file is half like the reference
    assert batches["kind"].tolist() == [
        "like the reference",
        *2 * ["another protocol or condition"],
    ]
    assert batches["factor"][0] == 1
    assert batches["factor"][2] == record["shift"]["factor"] <= batches["factor"][1]

    x = find_query(opened(mixed), model.saved).all_cells()
    offsets = {
        name: record["shift"][name] for name in ("logit_offsets", "sum_offsets", "label_overlap")
    }
    for number, name in enumerate(batches["name"]):
        rows = np.flatnonzero(mixed.obs["run"] == name)
        corrected = correct_batch_effect(x[rows], batches["gene_factors"][number])
        network = without_offsets(
            model, {key: values[1 + number :] for key, values in offsets.items()}
        )
        linear, encoder = branch_logits(network, Cells(corrected, model.tokens), 64)
        expected = softmax(linear + record["shift"]["encoder_weight"] * encoder, axis=1)
        np.testing.assert_allclose(
            found.obsm["scperformer_proba"].to_numpy()[rows], expected, atol=1e-5
        )
        held_out = model.saved.held_out
        scores = held_out.novelty_of(x[rows]) / batches["factor"][number]
        shares = [(held_out.scores < score).sum() / (len(held_out.scores) + 1) for score in scores]
        np.testing.assert_allclose(
            found.obs["scperformer_novelty"].to_numpy()[rows], shares, rtol=1e-6
        )

    def right(annotated: ad.AnnData) -> float:
        return float(
            (annotated.obs["scperformer_label"] == mixed.obs["cell_type"].to_numpy()).mean()
        )

    assert right(found) > right(plain)

    mixed.write_h5ad(tmp_path / "mixed.h5ad")
    monkeypatch.setattr(stored_rows, "BLOCK_VALUES", 10_000)  # of 100,000
    output = scperformer.annotate(
        tmp_path / "mixed.h5ad", model, output=tmp_path / "o.h5ad", batch_key="run"
    )
    streamed = ad.read_h5ad(output)
    ours = [name for name in found.obs if name.startswith("scperformer_")]
    pd.testing.assert_frame_equal(streamed.obs[ours], found.obs[ours], check_categorical=False)
    np.testing.assert_array_equal(
        scperformer.embed(mixed, model, batch_key="run"), found.obsm["X_scperformer"]
    )
    # refuses cells to which it would give other labels
    scperformer.explain(streamed, model, output=tmp_path / "why")
    part = mixed[mixed.obs["cell_type"] == "a"].copy()
    of_part = scperformer.annotate(part, model, full_sample=mixed, batch_key="run")
    expected = found[part.obs_names].obsm["scperformer_proba"]
    np.testing.assert_array_equal(of_part.obsm["scperformer_proba"].to_numpy(), expected.to_numpy())


@pytest.mark.slow
def test_a_batch_as_far_as_another_tissue_is_corrected_if_its_cells_then_resemble_the_labels(
    tmp_path, caplog
):
    """Donors of a pancreas, of which one has genes times large factors, as by full-length reads; and blood."""
    pancreas = ad.read_h5ad(DATA / "baron_pancreas.h5ad")
    common = pancreas.obs["cell_type"].value_counts()
    pancreas = pancreas[pancreas.obs["cell_type"].isin(common.index[common > 17])]
    donors = {name: pancreas[pancreas.obs["donor"] == name].copy() for name in ("human2", "human4")}
    reference = pancreas[~pancreas.obs["donor"].isin(list(donors))].copy()
    model = scperformer.train(
        reference, "cell_type", output=tmp_path / "m", options=as_options(QUICK)
    ).load()
    rng = np.random.default_rng(0)
    times = np.exp(rng.normal(0, 2.5, pancreas.n_vars))
    donors["human4"].X = sparse.csr_matrix(
        rng.poisson(sparse.csr_matrix(donors["human4"].X).toarray() * times), dtype=np.float32
    )
    with caplog.at_level("INFO"):
        found = scperformer.annotate(
            ad.concat(donors, label="run", index_unique="-"), model, batch_key="run"
        )
    assert found.uns["scperformer"]["shift"]["kind"] == "another protocol or condition"
    batches = found.uns["scperformer"]["batches"]
    assert batches["kind"].tolist() == 2 * ["another protocol or condition"]
    assert batches["factor"].tolist()[1] == 6
    assert said(caplog, "of_batches", "human4", "another tissue")
    assert not said(caplog, "of_batches", "human2", "another tissue")
    cells = found.obs[found.obs["run"] == "human4"]
    assert (cells["scperformer_label"] == cells["cell_type"]).mean() > 0.85
    assert (cells["scperformer_call"] == "unknown").mean() < 0.05
    donors["human4"] = ad.read_h5ad(DATA / "pbmc3k.h5ad")[:1200:10]
    mixed = scperformer.annotate(
        ad.concat(donors, label="run", index_unique="-"), model, batch_key="run"
    )
    assert mixed.uns["scperformer"]["shift"]["kind"] == "another protocol or condition"
    assert mixed.uns["scperformer"]["batches"]["kind"].tolist()[1] == "another tissue"


def test_batches_are_suggested_or_refused(folder, mixed, caplog):
    model = load_model(folder)
    cells = mixed[:480].copy()
    cells.obs["donor"] = cells.obs["run"].astype(str)
    with caplog.at_level("INFO"):
        scperformer.annotate(cells.copy(), model)
    assert said(caplog, "adapted", "obs['donor']", "batch_key=donor")
    with refusal("option-range"):
        scperformer.annotate(cells.copy(), model, batch_key="donor", options={"shift": "false"})
    done = scperformer.annotate(cells.copy(), model, batch_key="donor")
    done.uns["scperformer"]["batches"]["gene_factors"] = np.ones((2, 9))
    with refusal("damaged-annotation"):
        scperformer.explain(done, model, output="why")


@pytest.mark.slow
def test_batches_of_a_query_for_several_studies(mixed, tmp_path):
    parts = {"one": made_cells(150, 1), "two": made_cells(150, 5, 0.3)}
    both = ad.concat(parts, label="study", index_unique="-")
    options = as_options([*QUICK, "studies=true"])
    joint = scperformer.train(
        both, "cell_type", output=tmp_path / "s", batch_key="study", options=options
    ).load()
    found = scperformer.annotate(mixed.copy(), joint, batch_key="run")
    plain = scperformer.annotate(mixed.copy(), joint)
    assert found.uns["scperformer"]["batches"]["gene_factors"].shape == (3, 300)
    assert not np.array_equal(found.obsm["scperformer_proba"], plain.obsm["scperformer_proba"])
