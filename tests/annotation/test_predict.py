"""Prediction: calls that depend on the cell alone, everything in its place, and the user's file unchanged."""

import json
import re
import shutil
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from support.logs import said
from support.refusal import refusal
from support.twins import CASES
from support.words import as_options

import scperformer
from scperformer.adaptation.load import load_model
from scperformer.annotation import predict
from scperformer.attention.registry import MECHANISMS
from scperformer.base.errors import InputError
from scperformer.cells.opened import OpenedCells
from scperformer.cells.query import find_query
from scperformer.cli.predict import PredictConfig
from scperformer.cli.predict import run as run_predict
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.io import gene_matching, rows
from scperformer.model import inference
from scperformer.model.inference import (
    NetworkOutput,
    branch_logits,
    choose_precision,
    predict_cells,
    torch_state_kept,
)
from scperformer.model.minibatches import Cells
from scperformer.model.network import CellTypeModel
from scperformer.tasks.predict import outputs_of


@pytest.fixture(scope="module")
def model(tiny_model):
    return load_model(tiny_model)


@pytest.fixture
def cells(counts_adata, model):
    logged = np.log1p(counts_adata.X.toarray() / counts_adata.X.sum(1) * 1e4).astype(np.float32)
    columns = [counts_adata.var_names.get_loc(gene) for gene in model.saved.genes]
    return Cells(sparse.csr_matrix(logged[:, columns]), model.tokens)


def test_calls_do_not_depend_on_order_other_cells_or_threads(model, cells, torch_unchanged):
    whole = predict_cells(model.network, cells, batch_size=16)[0]
    order = np.random.default_rng(0).permutation(len(cells))
    shuffled = predict_cells(model.network, Cells(cells.x[order], model.tokens), batch_size=16)[0]
    np.testing.assert_array_equal(shuffled, whole[order])
    few = predict_cells(model.network, Cells(cells.x[:5], model.tokens), batch_size=16)[0]
    np.testing.assert_array_equal(few, whole[:5])
    with torch_state_kept(threads=2):
        np.testing.assert_array_equal(predict_cells(model.network, cells, batch_size=16)[0], whole)


@pytest.mark.parametrize(
    ("unexpressed", "precision"),
    [
        ("skip", "32-true"),
        pytest.param("full", "32-true", marks=pytest.mark.slow),
        pytest.param("skip", "bf16-mixed", marks=pytest.mark.slow),
    ],
)
# The options of each mechanism are slow tests.
@pytest.mark.parametrize(
    "case",
    [case if case in MECHANISMS else pytest.param(case, marks=pytest.mark.slow) for case in CASES],
)
def test_with_every_mechanism_a_cell_gets_the_same_bits_whatever_the_other_cells(
    cells, case, unexpressed, precision
):
    """With random weights, cells of very different lengths, and several threads."""
    rng = np.random.default_rng(0)
    x = cells.x[:30].toarray()
    x *= rng.random((len(x), 1)) ** 2 > rng.random(x.shape)
    tokens = TokensConfig(unexpressed=unexpressed)
    torch.manual_seed(0)
    network = CellTypeModel(
        x.shape[1],
        3,
        tokens=tokens,
        model=ModelConfig(linear=False),
        attention=CASES[case],
        head=HeadConfig(),
    ).eval()
    network.require_length(x.shape[1] + 1)
    some = Cells(sparse.csr_matrix(x, dtype=np.float32), tokens)
    whole = predict_cells(network, some, batch_size=64, precision=precision)
    order = rng.permutation(len(some))[:12]
    with torch_state_kept(threads=3):
        shuffled = predict_cells(
            network, Cells(some.x[order], tokens), batch_size=3, precision=precision
        )
    np.testing.assert_array_equal(shuffled[0], whole[0][order])
    np.testing.assert_array_equal(shuffled[1], whole[1][order])
    assert len(np.unique(whole[0], axis=0)) > 25


def test_bfloat16_on_a_cpu_is_close_and_does_not_depend_on_other_cells(model, cells):
    exact = predict_cells(model.network, cells, batch_size=64)[0]
    mixed = predict_cells(model.network, cells, batch_size=64, precision="bf16-mixed")[0]
    assert 0 < np.abs(mixed - exact).max() < 0.02  # 8 bits
    few = predict_cells(
        model.network, Cells(cells.x[7:12], model.tokens), batch_size=64, precision="bf16-mixed"
    )[0]
    np.testing.assert_array_equal(few, mixed[7:12])


@pytest.mark.parametrize(
    ("num_wrong", "chosen"),
    [
        ({"bf16-mixed": 1}, "bf16-mixed"),
        ({"bf16-mixed": 2, "tf32": 1}, "tf32"),
        ({"bf16-mixed": 2, "tf32": 2}, "32-true"),
    ],
)
def test_a_gpu_gets_the_fastest_precision_with_the_labels_of_float32(
    num_wrong, chosen, cells, monkeypatch
):
    tokens = TokensConfig(unexpressed="skip")
    sizes = {
        "tokens": tokens,
        "model": ModelConfig(),
        "attention": {"name": "favor"},
        "head": HeadConfig(),
    }
    network = CellTypeModel(cells.x.shape[1], 2, **sizes)
    many = Cells(sparse.vstack([cells.x] * 9, format="csr"), tokens)

    def labels_of(_network, some, _batch_size, _device, precision="32-true"):
        assert len(some) == 1000
        label = np.arange(len(some)) < num_wrong.get(precision, 0)
        return NetworkOutput(np.eye(2)[label.astype(int)], np.empty(0), np.empty(0))

    monkeypatch.setattr(inference, "predict_cells", labels_of)
    assert choose_precision(network, many, 64, "cuda") == chosen
    assert choose_precision(network, many, 64, "cpu") == "32-true"
    assert choose_precision(network, cells, 64, "cuda") == "32-true"  # few cells


def test_probabilities_are_the_softmax_of_the_logits(model, cells):
    predictions = predict_cells(model.network, cells, batch_size=64)
    with torch.no_grad():
        logits = model.network(cells.batch([7]))[0].numpy()[0].astype(np.float64)
    expected = np.exp(logits - logits.max())
    np.testing.assert_allclose(predictions[0][7], expected / expected.sum(), atol=1e-5)
    np.testing.assert_allclose(predictions[0].sum(1), 1, atol=1e-5)


def test_every_entry_is_written_and_the_rest_is_unchanged(counts_adata, tiny_model, write):
    counts_adata.layers["spliced"] = counts_adata.X * 2
    counts_adata.obsm["X_mine"] = np.arange(240.0).reshape(120, 2)
    counts_adata.uns["mine"] = {"a": 1}
    path = write(counts_adata)
    (output,) = run_predict(PredictConfig(inputs=[str(path)], model_path=str(tiny_model)))
    assert output == path.with_name("sample.annotated.h5ad")
    before = ad.read_h5ad(path)
    after = ad.read_h5ad(output)

    np.testing.assert_array_equal(after.X.toarray(), before.X.toarray())
    np.testing.assert_array_equal(
        after.layers["spliced"].toarray(), before.layers["spliced"].toarray()
    )
    np.testing.assert_array_equal(after.obsm["X_mine"], before.obsm["X_mine"])
    assert after.uns["mine"] == {"a": 1}
    assert list(after.obs_names) == list(before.obs_names)
    assert list(after.obs["cell_type"]) == list(before.obs["cell_type"])

    labels = list(after.uns["scperformer"]["model"]["labels"])
    proba = after.obsm["scperformer_proba"]
    assert list(proba.columns) == labels
    assert list(after.obs["scperformer_label"]) == [labels[i] for i in proba.to_numpy().argmax(1)]
    ordered = np.sort(proba.to_numpy(), axis=1)
    np.testing.assert_allclose(after.obs["scperformer_confidence"], ordered[:, -1], atol=1e-6)
    np.testing.assert_allclose(
        after.obsm["scperformer_details"]["margin"], ordered[:, -1] - ordered[:, -2], atol=1e-6
    )
    assert list(after.obs["scperformer_call"]) == list(after.obs["scperformer_label"])
    assert set(after.obs["scperformer_ontology_term_id"]) == {"unknown"}
    assert set(after.obsm["scperformer_details"]["baseline_label"]) <= set(labels)
    assert after.obsm["X_scperformer"].shape == (120, 32)
    record = after.uns["scperformer"]
    assert record["input"]["source"] == "X"
    assert record["input"]["kind"] == "counts"
    assert record["genes"]["num_shared"] == record["genes"]["num_model"]
    assert len(record["model"]["hash"]) == 64
    assert record["model"]["scales"] == load_model(tiny_model).saved.scales
    assert set(record["model"]["scales"]) == {"linear", "encoder"}


def test_counts_and_their_logarithm_give_the_same_labels(counts_adata, tiny_model, write):
    logged = counts_adata.copy()
    logged.X = sparse.csr_matrix(np.log1p(counts_adata.X.toarray() / counts_adata.X.sum(1) * 1e4))
    paths = [str(write(counts_adata, "counts.h5ad")), str(write(logged, "logged.h5ad"))]
    outputs = run_predict(PredictConfig(inputs=paths, model_path=str(tiny_model)))
    first, second = (ad.read_h5ad(output) for output in outputs)
    assert second.uns["scperformer"]["input"]["kind"] == "log1p"
    np.testing.assert_allclose(
        first.obsm["scperformer_proba"].to_numpy(),
        second.obsm["scperformer_proba"].to_numpy(),
        atol=1e-4,
    )


def test_a_shuffled_gene_order_and_extra_genes_change_nothing(counts_adata, model):
    order = np.random.default_rng(1).permutation(counts_adata.n_vars)
    plain = scperformer.annotate(counts_adata.copy(), model)
    shuffled = scperformer.annotate(counts_adata[:, order].copy(), model)
    np.testing.assert_array_equal(
        plain.obsm["scperformer_proba"], shuffled.obsm["scperformer_proba"]
    )


def test_other_names_of_the_same_genes_change_nothing_and_are_noted(counts_adata, model):
    plain = scperformer.annotate(counts_adata.copy(), model)
    assert plain.uns["scperformer"]["genes"]["informative_share"] == 1
    counts_adata.var_names = counts_adata.var_names.str.lower()
    scperformer.annotate(counts_adata, model)
    np.testing.assert_array_equal(
        plain.obsm["scperformer_proba"], counts_adata.obsm["scperformer_proba"]
    )
    notes = list(counts_adata.uns["scperformer"]["genes"]["notes"])
    assert notes == [gene_matching.LOWER, "200 names were matched in upper case"]


def test_a_cell_without_counts_is_unknown(counts_adata, model):
    x = counts_adata.X.tolil()
    x[3] = 0
    counts_adata.X = x.tocsr()
    scperformer.annotate(counts_adata, model)
    assert list(np.flatnonzero(counts_adata.obs["scperformer_call"] == "unknown")) == [3]


def test_annotate_refuses_to_replace_an_annotation(counts_adata, model):
    scperformer.annotate(counts_adata, model)
    with refusal("annotation-exists"):
        scperformer.annotate(counts_adata, model)
    first = counts_adata.obsm["scperformer_proba"].copy()
    scperformer.annotate(counts_adata, model, overwrite=True)
    np.testing.assert_array_equal(counts_adata.obsm["scperformer_proba"], first)
    scperformer.annotate(counts_adata, model, key_added="second")
    assert list(counts_adata.obs["second_label"]) == list(counts_adata.obs["scperformer_label"])


def test_options_of_predict_are_overrides_of_annotate(counts_adata, model, write, tiny_model):
    path = write(counts_adata)
    plain = scperformer.annotate(counts_adata.copy(), model).obs["scperformer_confidence"]
    least = float(np.median(plain)) + 2e-6
    options = ["source=layers/counts", f"min_confidence={least}", "batch_size=7", "key_added=mine"]
    counts_adata.layers["counts"] = counts_adata.X
    counts_adata.X = np.full(counts_adata.shape, np.nan, dtype=np.float32)
    scperformer.annotate(counts_adata, model, options=as_options(options))
    cfg = PredictConfig(
        inputs=[str(path)], model_path=str(tiny_model), key_added="mine", min_confidence=least
    )
    expected = ad.read_h5ad(run_predict(cfg)[0])
    columns = [name for name in expected.obs if name.startswith("mine_")]
    assert len(columns) == 8
    assert 0.3 < (counts_adata.obs["mine_call"] == "unknown").mean() < 0.7
    pd.testing.assert_frame_equal(counts_adata.obs[columns], expected.obs[columns])
    assert counts_adata.uns["mine"]["input"]["source"] == "layers/counts"


@pytest.mark.parametrize(
    ("option", "match"),
    [
        ("min_confidence=2", r"min_confidence=2\.0; expected a share from 0 to 1"),
        ("colour=red", "option colour"),
        ("output=a.h5ad", r"output=a\.h5ad; expected no output.*leave it out"),
    ],
)
def test_wrong_overrides_of_annotate_change_nothing(counts_adata, model, option, match):
    before = list(counts_adata.obs)
    with pytest.raises(InputError, match=match):
        scperformer.annotate(counts_adata, model, options=as_options([option]))
    assert list(counts_adata.obs) == before


def test_slashes_in_labels_are_the_same_in_memory_and_in_a_file(
    counts_adata, tiny_model, write, tmp_path
):
    folder = shutil.copytree(tiny_model, tmp_path / "m")
    info = json.loads((folder / "bundle.json").read_text())
    info["labels"][0] = "B/plasma cell"
    (folder / "bundle.json").write_text(json.dumps(info))
    (output,) = run_predict(
        PredictConfig(inputs=[str(write(counts_adata))], model_path=str(folder))
    )
    for adata in (ad.read_h5ad(output), scperformer.annotate(counts_adata, load_model(folder))):
        assert list(adata.obsm["scperformer_proba"].columns) == [
            "B|plasma cell",
            "Monocyte",
            "T cell",
        ]
        assert list(adata.obs["scperformer_label"].cat.categories) == [
            "B/plasma cell",
            "Monocyte",
            "T cell",
        ]


def test_torch_is_as_it_was_after_loading_and_annotating(counts_adata, tiny_model, torch_unchanged):
    with torch_unchanged():
        model = load_model(tiny_model)
    with torch_unchanged():
        scperformer.annotate(counts_adata, model)
    with torch_unchanged(), refusal("few-genes"):
        scperformer.annotate(counts_adata[:, :3].copy(), model, overwrite=True)


def with_encoder_scale(model: Path, folder: Path, scale: float) -> Path:
    """A copy of a model with another scale of its encoder."""
    copy = shutil.copytree(model, folder / "m")
    info = json.loads((copy / "bundle.json").read_text())
    info["metrics"]["scales"]["encoder"] = scale
    (copy / "bundle.json").write_text(json.dumps(info))
    return copy


@pytest.mark.parametrize(("encoder", "is_silent"), [(0.02, False), (0.009, True)])
def test_loading_says_that_an_encoder_has_no_influence(
    tiny_model, tmp_path, caplog, encoder, is_silent
):
    folder = with_encoder_scale(tiny_model, tmp_path, encoder)
    with caplog.at_level("INFO", logger="scperformer"):
        load_model(folder)
    assert bool(said(caplog, "load_model", "encoder")) == is_silent


def test_an_encoder_without_influence_embeds_cells_nevertheless(counts_adata, tiny_model, tmp_path):
    expected = scperformer.embed(counts_adata, load_model(tiny_model))
    model = load_model(with_encoder_scale(tiny_model, tmp_path, 0.0))
    assert expected.shape == (counts_adata.n_obs, model.saved.config.model["dim"])
    np.testing.assert_array_equal(scperformer.embed(counts_adata, model), expected)
    np.testing.assert_array_equal(
        scperformer.annotate(counts_adata.copy(), model).obsm["X_scperformer"], expected
    )


def test_labels_that_depend_on_the_encoder_are_counted(
    counts_adata, model, write, monkeypatch, caplog
):
    """Of cells whose branches disagree: in blocks of 16 cells, in any order, and without a cell that has no counts."""
    rng = np.random.default_rng(0)
    noisy = counts_adata[rng.permutation(120)].copy()
    counts = rng.binomial(noisy.X.toarray().astype(int), 0.05)
    counts[0] = 0
    noisy.X = sparse.csr_matrix(counts, dtype=np.float32)
    path = str(write(noisy))
    model = load_model(model.path)
    torch.manual_seed(0)
    # after one epoch of training the encoder hardly counts
    torch.nn.init.normal_(model.network.head.labels.weight)
    cfg = PredictConfig(inputs=[path], adapt="false", shift="false")
    record = ad.read_h5ad(*run_predict(cfg, model)).uns["scperformer"]
    x = find_query(OpenedCells(noisy, cfg), model.saved).all_cells()
    linear, encoder = branch_logits(model.network, Cells(x, model.tokens), 64)
    differ = linear.argmax(1) != (linear + encoder).argmax(1)
    assert 3 < differ[1:].sum() < 110
    assert record["encoder"] == {"num_cells": 119, "num_decided": differ[1:].sum()}
    monkeypatch.setattr(rows, "BLOCK_VALUES", 16 * 200)
    with caplog.at_level("INFO", logger="scperformer"):
        again = scperformer.annotate(
            noisy[::-1].copy(), model, options=as_options(["adapt=false", "shift=false"])
        )
    assert again.uns["scperformer"]["encoder"] == record["encoder"]
    assert said(caplog, "facts_of_calls", "encoder", differ[1:].sum(), 119)


@pytest.mark.slow
def test_refused_files_leave_a_file_with_the_reason(
    counts_adata, tiny_model, write, tmp_path, command
):
    write(counts_adata, "good.h5ad")
    (tmp_path / "bad.h5ad").write_text("no h5ad file")
    write(counts_adata[:, :3].copy(), "few.h5ad")
    out = tmp_path / "out"
    options = [f"model_path={tiny_model}", "keep_going=true"]
    words = ["predict", "bad.h5ad", "good.h5ad", "few.h5ad", "output_dir=out", *options]
    ran = command(*words)
    assert ran.code == 2
    assert sorted(path.name for path in out.iterdir()) == [
        "bad.failed.json",
        "few.failed.json",
        "good.annotated.h5ad",
    ]
    errors = [
        line.removeprefix("error: ") for line in ran.err.splitlines() if line.startswith("error: ")
    ]
    written = [json.loads((out / f"{name}.failed.json").read_text()) for name in ("bad", "few")]
    assert [(reason["sample"], reason["input"]) for reason in written] == [
        ("bad", "bad.h5ad"),
        ("few", "few.h5ad"),
    ]
    assert errors[:-1] == [f"{reason['input']}: {reason['error']}" for reason in written]
    assert "files annotated" not in ran.err  # one alone was
    evaluated = command(
        "evaluate", *sorted(out.iterdir()), "truth_key=cell_type", "output=evaluation"
    )
    assert evaluated.code == 0, evaluated.err
    assert "skipping failed samples" in evaluated.err
    write(counts_adata, "few.h5ad")
    again = command(*words, "overwrite=true", "keep_going=ok")
    assert again.code == 0
    assert "2 files annotated: 240 cells" in again.err
    assert sorted(path.name for path in out.iterdir()) == [
        *("bad.failed.json", "few.annotated.h5ad", "good.annotated.h5ad")
    ]
    assert (
        command("predict", "bad.h5ad", "output=out/alone.h5ad", *options, "keep_going=ok").code == 0
    )
    alone = json.loads((out / "alone.failed.json").read_text())
    assert alone == written[0] | {"sample": "alone"}


def test_a_bug_at_a_file_costs_this_file_only(
    tiny_model, counts_adata, tmp_path, command, monkeypatch
):
    for name in ("a.h5ad", "b.h5ad"):
        counts_adata[:20].write_h5ad(tmp_path / name)
    annotate_file = predict.annotate_file

    def at_fault(path, *arguments):
        return annotate_file(path, *arguments) if path == "b.h5ad" else {}["missing"]

    monkeypatch.setattr(predict, "annotate_file", at_fault)
    words = "predict", "a.h5ad", "b.h5ad", f"model_path={tiny_model}", "output_dir=out"
    assert command(*words).code == 1
    ran = command(*words, "keep_going=true")
    assert ran.code == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "a.failed.json",
        "b.annotated.h5ad",
    ]
    failed = json.loads((tmp_path / "out" / "a.failed.json").read_text())
    assert failed["code"] == "internal-error"
    assert "KeyError" in failed["error"]
    assert "test_predict.py" in ran.err


def test_annotations_beside_the_inputs_are_not_inputs_of_the_next_run(
    tiny_model, counts_adata, tmp_path, command
):
    for name in ("a.h5ad", "b.h5ad"):
        counts_adata[:20].write_h5ad(tmp_path / name)
    first = command("predict", "a.h5ad", "b.h5ad", f"model_path={tiny_model}")
    assert first.code == 0
    assert "warning: b.h5ad has the same content as a.h5ad" in first.err
    files = sorted(path.name for path in tmp_path.glob("*.h5ad"))
    assert files == ["a.annotated.h5ad", "a.h5ad", "b.annotated.h5ad", "b.h5ad"]
    refused = command("predict", *files, f"model_path={tiny_model}")
    assert refused.code == 2
    assert "a.annotated.h5ad exists; expected a new output" in refused.err
    again = command("predict", *files, f"model_path={tiny_model}", "overwrite=true")
    assert again.code == 0
    assert "skipping a.annotated.h5ad: output of an earlier run on a.h5ad" in again.err
    assert sorted(path.name for path in tmp_path.glob("*.h5ad")) == files


def test_all_outputs_in_one_folder(tiny_model, counts_adata, tmp_path, command):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        counts_adata[:20].write_h5ad(tmp_path / folder / f"{folder}.h5ad")
    words = ["one/one.h5ad", "two/two.h5ad", f"model_path={tiny_model}"]
    assert command("predict", *words, "output=all of them/{sample}-calls.csv").code == 0
    assert sorted(path.name for path in (tmp_path / "all of them").iterdir()) == [
        "one-calls.csv",
        "two-calls.csv",
    ]
    two = command("predict", *words, "output_dir=all of them")
    assert re.search(
        r"2 files annotated: 40 cells, \d+ % unknown; next: scperformer report 'all of them'/",
        two.err,
    )
    (tmp_path / "two" / "one.h5ad").write_bytes((tmp_path / "one" / "one.h5ad").read_bytes())
    same = command(
        "predict", "one/one.h5ad", "two/one.h5ad", f"model_path={tiny_model}", "output_dir=more"
    )
    assert same.code == 2
    assert "two inputs give more/one.annotated.h5ad" in same.err
    assert not (tmp_path / "more").exists()


def test_files_of_cell_ranger_have_the_names_of_their_samples():
    """The layouts of count, aggr and multi."""
    name = "filtered_feature_bc_matrix"
    multi = f"m/outs/per_sample_outs/s3/count/sample_{name}.h5ad"
    places = [f"s1/outs/{name}.h5ad", f"runs/s2/outs/count/{name}.h5ad", multi, f"s4/{name}.h5ad"]
    outputs = outputs_of(places, None, "out", None)
    assert [str(output) for _, output in outputs] == [
        f"out/s{number}.annotated.h5ad" for number in range(1, 5)
    ]


def test_outputs_have_the_names_of_a_sample_sheet(tmp_path):
    sheet = tmp_path / "samples.tsv"
    sheet.write_text("sample\tpath\nfirst\ta/cells.h5ad\nsecond\tb/cells.h5ad\n", encoding="utf-8")
    places = [str(tmp_path / name / "cells.h5ad") for name in "ab"]
    outputs = outputs_of(places, "calls/{sample}.csv", None, str(sheet))
    assert [str(output) for _, output in outputs] == ["calls/first.csv", "calls/second.csv"]
    sheet.write_text("sample\tpath\n../first\ta/cells.h5ad\n", encoding="utf-8")
    with refusal("sample-name"):
        outputs_of(places, None, "out", str(sheet))


def test_columns_of_a_sample_sheet_are_added(tiny_model, counts_adata, tmp_path, caplog):
    counts_adata.obs["donor"] = "in the file"
    for name in ("one", "two"):
        counts_adata.write_h5ad(tmp_path / f"{name}.h5ad")
    sheet = tmp_path / "samples.csv"
    sheet.write_text(
        "sample;path;condition;donor\na;one.h5ad;ctrl;d1\nb;two.h5ad;stim;d2\n", encoding="utf-8"
    )
    options = {"model_path": str(tiny_model), "adapt": "false", "sample_sheet": str(sheet)}
    written = run_predict(
        PredictConfig(inputs=[str(tmp_path / f"{name}.h5ad") for name in ("one", "two")], **options)
    )
    annotated = [ad.read_h5ad(path) for path in written]
    assert [set(sample.obs["condition"]) for sample in annotated] == [{"ctrl"}, {"stim"}]
    # the columns of a file stay as they are
    assert set(annotated[0].obs["donor"]) == {"in the file"}
    assert said(caplog, "describe", tmp_path / "one.h5ad", "donor")
    assert list(annotated[0].uns["scperformer"]["sheet"]) == ["condition", "donor"]
    counts_adata.write_h5ad(tmp_path / "three.h5ad")
    with refusal("no-sheet-row"):
        run_predict(PredictConfig(inputs=[str(tmp_path / "three.h5ad")], **options))
