"""Training from files: what is written, which cells take part, and runs that were cut off."""

import json
import os
import signal
import subprocess
import sys
import time

import anndata as ad
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import scperformer
from scperformer.bundle import load_bundle
from scperformer.compose import make_config
from scperformer.errors import InputError
from scperformer.reference import make_reference
from scperformer.runs import open_run, run_options
from scperformer.training import run_train

FAST = ["model=tiny", "trainer.max_epochs=1", "logger=csv", "data.min_genes=0"]


def config(path, *overrides):
    return make_config("train", [f"inputs=['{path}']", "label_key=cell_type", *FAST, *overrides])


def test_model_folder_says_everything(counts_adata, write, tmp_path):
    counts_adata.obs["cell_type_ontology_term_id"] = counts_adata.obs["cell_type"].map(
        {"B cell": "CL:0000236", "T cell": "CL:0000084", "Monocyte": "CL:0000576"}
    )
    path = write(counts_adata, "reference.h5ad")
    output = run_train(config(path, f"output='{tmp_path / 'model'}'", "seed=3"))
    bundle = load_bundle(output)
    assert bundle.labels == ["B cell", "Monocyte", "T cell"]
    assert bundle.ontology_term_ids == ["CL:0000236", "CL:0000576", "CL:0000084"]
    assert bundle.provenance["reference"] == "reference.h5ad"
    assert bundle.provenance["cells_per_label"] == {"B cell": 40, "Monocyte": 40, "T cell": 40}
    assert bundle.provenance["seed"] == 3
    assert str(tmp_path) not in (output / "bundle.json").read_text()
    logged = np.log1p(counts_adata.X.toarray() / counts_adata.X.sum(1) * 1e4)
    columns = [counts_adata.var_names.get_loc(gene) for gene in bundle.genes]
    np.testing.assert_allclose(bundle.gene_means, np.asarray(logged)[:, columns].mean(0), rtol=1e-4)
    assert (tmp_path / "model.run" / "csv" / "version_0" / "metrics.csv").is_file()
    assert not (tmp_path / "model.run" / "checkpoints").exists()


def test_baseline_in_the_model_is_logistic_regression_on_the_whole_reference(counts_adata, write, tmp_path):
    output = run_train(config(write(counts_adata), f"output='{tmp_path / 'model'}'"))
    bundle = load_bundle(output)
    cfg = config("x")
    reference = make_reference(counts_adata, cfg, "x")
    theirs = LogisticRegression(max_iter=1000).fit(reference.x, reference.labels)
    np.testing.assert_allclose(bundle.weights["baseline.weight"], theirs.coef_.T, atol=1e-5)


def test_unlabelled_cells_are_left_out_and_said(counts_adata, caplog):
    labels = counts_adata.obs["cell_type"].astype(object)
    labels.iloc[:6] = None
    counts_adata.obs["cell_type"] = labels
    reference = make_reference(counts_adata, config("x"), "x")
    assert reference.x.shape[0] == 114
    assert "6 cells are left out: 6 without a label" in caplog.text


def test_a_rare_label_is_refused_or_dropped_as_asked(counts_adata):
    labels = counts_adata.obs["cell_type"].astype(str)
    labels.iloc[0] = "Platelet"
    counts_adata.obs["cell_type"] = labels
    with pytest.raises(InputError, match=r"'Platelet' \(1\).*data\.rare_labels=drop"):
        make_reference(counts_adata, config("x"), "x")
    reference = make_reference(counts_adata, config("x", "data.rare_labels=drop"), "x")
    assert reference.x.shape[0] == 119
    assert "Platelet" not in reference.label_names


def test_labels_follow_their_cells(counts_adata):
    # The filters drop cells: the labels of those that stay must still be theirs.
    x = counts_adata.X.tolil()
    x[[0, 5, 50]] = 0
    counts_adata.X = x.tocsr()
    reference = make_reference(counts_adata, config("x", "data.min_genes=10"), "x")
    names = np.array(reference.label_names)[reference.labels]
    assert list(names) == list(np.delete(counts_adata.obs["cell_type"].to_numpy(str), [0, 5, 50]))


def test_training_in_memory_gives_a_model_that_annotates(counts_adata, tmp_path):
    half = np.arange(120) % 2 == 0
    path = scperformer.train(counts_adata[half].copy(), "cell_type", output=tmp_path / "m", overrides=FAST)
    sample = counts_adata[~half].copy()
    scperformer.annotate(sample, scperformer.load_model(path))
    right = sample.obs["scperformer_label"].astype(str) == sample.obs["cell_type"].astype(str)
    assert right.mean() > 0.9  # the labels differ fivefold in 30 genes; a third would be right by chance


def test_unfinished_runs_are_neither_lost_nor_mixed(tmp_path):
    cfg, output = config("x"), tmp_path / "model"
    folder = open_run(cfg, output, "checksum")
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last.ckpt").write_bytes(b"state")
    with pytest.raises(InputError, match=r"an unfinished run in .*resume=true"):
        open_run(cfg, output, "checksum")
    cfg.resume = True
    assert open_run(cfg, output, "checksum") == folder
    assert (folder / "checkpoints" / "last.ckpt").is_file()
    with pytest.raises(InputError, match="another reference"):
        open_run(cfg, output, "other")
    cfg.seed = 7
    with pytest.raises(InputError, match="other options"):
        open_run(cfg, output, "checksum")
    cfg.overwrite = True
    open_run(cfg, output, "checksum")
    assert not (folder / "checkpoints").exists()


def test_options_that_change_nothing_do_not_stop_a_resume():
    one, two = config("a.h5ad"), config("b/a.h5ad", "output=elsewhere", "trainer.progress_bar=false", "resume=true")
    assert run_options(one, "sum") == run_options(two, "sum")
    assert run_options(one, "sum") != run_options(config("a.h5ad", "optim.lr=0.1"), "sum")


def command(*words):
    return [sys.executable, "-m", "scperformer", "train", *words]


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_model(counts_adata, write, tmp_path):
    path = write(counts_adata, "reference.h5ad")
    # Without the wide branch every epoch gets better, so that the model is a late epoch's.
    more = ["model.wide=false", "trainer.batch_size=8", "trainer.max_epochs=12", "seed=1"]
    options = [str(path), "label_key=cell_type", *FAST, *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command(*options, f"output={tmp_path}/whole"), check=True, env=environment)
    process = subprocess.Popen(command(*options, f"output={tmp_path}/cut"), env=environment)
    last = tmp_path / "cut.run" / "checkpoints" / "last.ckpt"
    while not last.is_file():
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "cut").exists()
    subprocess.run(command(*options, f"output={tmp_path}/cut", "resume=true"), check=True, env=environment)
    whole, cut = load_bundle(tmp_path / "whole"), load_bundle(tmp_path / "cut")
    assert whole.metrics["best_epoch"] > 1
    assert whole.weights.keys() == cut.weights.keys()
    assert all(np.array_equal(whole.weights[name], cut.weights[name]) for name in whole.weights)


@pytest.mark.slow
def test_two_processes_train_one_model(counts_adata, write, tmp_path):
    path = write(counts_adata, "reference.h5ad")
    options = [
        str(path),
        "label_key=cell_type",
        *FAST,
        "trainer=ddp",
        "trainer.accelerator=cpu",
        "trainer.max_epochs=2",
    ]
    done = subprocess.run(
        command(*options, f"output={tmp_path}/model"),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("written:") == 1
    info = json.loads((tmp_path / "model" / "bundle.json").read_text())
    assert info["metrics"]["model"]["accuracy"] > 0.8
    adata = ad.read_h5ad(path)
    scperformer.annotate(adata, scperformer.load_model(tmp_path / "model"))
    assert "scperformer_label" in adata.obs


def test_training_that_diverged_gives_no_model(counts_adata, write, tmp_path):
    with pytest.raises(InputError, match=r"diverged.*lower optim\.lr"):
        run_train(config(write(counts_adata), f"output='{tmp_path / 'model'}'", "optim.lr=1e12"))
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_run_says_so_and_does_not_look_like_success(counts_adata, write, tmp_path, number, code):
    options = [
        str(write(counts_adata)),
        "label_key=cell_type",
        *FAST,
        "trainer.max_epochs=2000",
        "trainer.patience=2000",
    ]
    words = command(*options, f"output={tmp_path}/model")
    process = subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE, text=True)
    last = tmp_path / "model.run" / "checkpoints" / "last.ckpt"
    while not last.is_file():
        assert process.poll() is None, "the run ended before it could be stopped"
        time.sleep(0.01)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    assert "resume=true continues it" in errors
    assert not (tmp_path / "model").exists()
    assert last.is_file()
