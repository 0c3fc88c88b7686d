"""Training from files: what is written, which cells take part, and runs that were cut off."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from scipy.sparse import csr_matrix
from support import forked
from support.forked import Forked
from support.logs import said
from support.refusal import refusal
from support.words import as_options

import scperformer
from scperformer.cells.opened import OpenedCells
from scperformer.cells.reference import make_reference
from scperformer.cli.compose import make_config
from scperformer.cli.train import TrainConfig
from scperformer.cli.train import run as run_train
from scperformer.fits.folds import evidence_folds
from scperformer.model.arrays import ReferenceCells
from scperformer.model.content import to_json
from scperformer.model.folder import load_reference_cells, read_model
from scperformer.model.saved_model import SavedModel
from scperformer.training.run_folder import training_run

FAST = ["model=tiny", "trainer.max_epochs=1", "logger=csv", "data.min_genes=0"]


def config(path, *overrides):
    return make_config("train", [f"inputs=['{path}']", "label_key=cell_type", *FAST, *overrides])


def trained(cells, output: Path, *words: str, **options) -> Path:
    """Train on cells in memory or a file; return the model folder."""
    return scperformer.train(
        cells, "cell_type", output=output, options=as_options(words), **options
    ).path


@pytest.fixture
def folders(counts_adata, write, tmp_path) -> tuple[Path, Path, TrainConfig]:
    """The folders of a model and its run, and the options."""
    terms = {"B cell": "CL:0000236", "T cell": "CL:0000084", "Monocyte": "CL:0000576"}
    counts_adata.obs["cell_type_ontology_term_id"] = counts_adata.obs["cell_type"].map(terms)
    cfg = config(write(counts_adata, "reference.h5ad"), f"output='{tmp_path / 'model'}'", "seed=3")
    return run_train(cfg), tmp_path / "model.run", cfg


def test_the_folder_of_a_model_says_everything(folders, counts_adata, tmp_path):
    saved = read_model(folders[0])
    assert saved.labels == ["B cell", "Monocyte", "T cell"]
    assert saved.ontology_term_ids == ["CL:0000236", "CL:0000576", "CL:0000084"]
    assert saved.tree.parents == {"B cell": "lymphocyte", "T cell": "lymphocyte"}
    assert (saved.tree.terms, saved.provenance.ontology) == (
        {"lymphocyte": "CL:0000542"},
        "2026-03-26",
    )
    assert saved.provenance.reference == "reference.h5ad"
    assert saved.provenance.cells_per_label == {"B cell": 40, "Monocyte": 40, "T cell": 40}
    assert saved.provenance.seed == 3
    assert str(tmp_path) not in (folders[0] / "bundle.json").read_text()
    logged = np.log1p(counts_adata.X.toarray() / counts_adata.X.sum(1) * 1e4)
    columns = [counts_adata.var_names.get_loc(gene) for gene in saved.genes]
    np.testing.assert_allclose(saved.gene_means, np.asarray(logged)[:, columns].mean(0), rtol=1e-4)


def test_the_folder_of_a_run_has_options_provenance_and_metrics(folders):
    output, run, cfg = folders
    saved = read_model(output)
    assert (run / "csv" / "version_0" / "metrics.csv").is_file()
    assert not (run / "checkpoints").exists()
    assert yaml.safe_load((run / "config.yaml").read_text()) == asdict(cfg)
    origin = json.loads((run / "provenance.json").read_text())
    assert origin == to_json(saved.provenance)
    assert len(origin["reference_sha256"]) == 64
    assert {"scperformer", "torch", "python"} <= set(origin["versions"])
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics == json.loads(json.dumps(to_json(saved.metrics)))
    assert (
        set(metrics["baseline"]) == set(metrics["model"]) == {"accuracy", "macro_f1", "weighted_f1"}
    )
    assert set(metrics["encoder_alone"]) == set(metrics["model"])  # both branches are on
    assert (run / "metrics.csv").read_bytes() == (output / "metrics.csv").read_bytes()
    [epoch] = pd.read_csv(run / "metrics.csv").to_dict("records")
    # as written: six digits
    assert epoch["val_macro_f1"] == pytest.approx(metrics["model"]["macro_f1"], abs=1e-6)


def test_the_users_own_file_is_recorded_through_preprocess(counts_adata, write, tmp_path, command):
    """Also through a second preparation; without the folders of an absolute path."""
    write(counts_adata, "reference.h5ad")
    digest = hashlib.sha256((tmp_path / "reference.h5ad").read_bytes()).hexdigest()
    for source, output in (("reference.h5ad", "once.h5ad"), ("once.h5ad", "twice.h5ad")):
        assert command("preprocess", source, f"output={output}", "data.min_genes=0").code == 0
    (tmp_path / "folder").mkdir()
    (tmp_path / "once.h5ad").rename(tmp_path / "folder/once.h5ad")
    for path, named in (
        ("twice.h5ad", "reference.h5ad"),
        (str(tmp_path / "folder/once.h5ad"), "reference.h5ad"),
        (str(tmp_path / "reference.h5ad"), "reference.h5ad"),
    ):
        output = run_train(
            config(path, f"output='{tmp_path / 'model'}'", "experiment=linear", "overwrite=true")
        )
        made = read_model(output).provenance
        assert (made.reference, made.reference_path, made.reference_sha256) == (
            named,
            named,
            digest,
        )
        assert (
            f"- Trained on `{named}` (SHA-256 `{digest}`)" in (output / "MODEL_CARD.md").read_text()
        )


def test_labels_that_vanish_are_named(counts_adata, caplog):
    """Not only their number of cells: those that the filters drop, and those that only test cells have."""
    counts_adata.obs["cell_type"] = counts_adata.obs["cell_type"].astype(object)
    counts_adata.obs.iloc[:5, 0] = ["empty"] * 2 + ["held out"] * 3
    counts_adata.obs["split"] = ["train"] * 2 + ["test"] * 10 + ["train"] * 54 + ["val"] * 54
    counts_adata.X = counts_adata.X.multiply(np.arange(120)[:, None] > 1).tocsr()
    cfg = config("x", "data.split=column", "data.split_key=split", "data.min_genes=50")
    with caplog.at_level("INFO", logger="scperformer"):
        reference = make_reference([OpenedCells(counts_adata, cfg, "x")])
    assert set(reference.label_names) == {"B cell", "T cell", "Monocyte"}
    assert said(caplog, "test_cells", "'held out' (3)")
    assert said(caplog, "make_reference", "data.min_genes=50", "'empty' (2)")


QUICK = ["experiment=linear", "logger=none", "data.min_genes=0", "studies=false"]


def forms_of_a_file(cells: ad.AnnData) -> dict[str, ad.AnnData]:
    """Return the same cells in other forms; some genes are expressed in cells without a label alone."""
    other = cells.copy()
    forms = {
        "float64, by columns": ad.AnnData(other.X.astype(np.float64).tocsc(), cells.obs, cells.var)
    }
    other.raw = cells.copy()
    other.X = other.X.log1p()
    forms["raw"] = other
    unlabelled = cells[:6].copy()
    unlabelled.obs_names = [f"unlabelled{i}" for i in range(6)]
    unlabelled.obs["cell_type"] = ["", "unknown", np.nan] * 2
    unlabelled.X = (unlabelled.X + csr_matrix(np.eye(6, 200, 180, dtype=np.float32) * 50)).tocsr()
    forms["without labels"] = ad.concat([cells, unlabelled])
    return forms


@pytest.mark.parametrize("place", ["in memory", "on disk", "backed", "second of two files"])
def test_the_form_of_a_file_does_not_change_the_model(counts_adata, write, tmp_path, place, caplog):
    """The weights are those of the clean twin, bit for bit."""
    caplog.set_level("INFO", logger="scperformer")
    is_shared = np.arange(200) < 180
    counts_adata.X = csr_matrix(counts_adata.X.multiply(is_shared), dtype=np.float32)
    counts_adata.X.eliminate_zeros()
    first = write(counts_adata[::2].copy(), "first.h5ad")
    options = [*QUICK, *(["data.in_memory=false"] if place == "on disk" else [])]

    def weights(name: str, cells: ad.AnnData) -> bytes:
        # the genes of all but the clean one are in another order
        if place == "second of two files":
            cells = cells[1::2] if name == "clean" else cells[1::2, ::-1]
        path = write(cells.copy(), f"{name}.h5ad")
        source = ad.read_h5ad(path, backed="r") if place == "backed" else path
        source = [first, path] if place == "second of two files" else source
        return (
            trained(source, tmp_path / f"{name}.model", *options) / "model.safetensors"
        ).read_bytes()

    clean = weights("clean", counts_adata)
    for name, cells in forms_of_a_file(counts_adata).items():
        assert not said(caplog, "unlabelled")
        assert weights(name, cells) == clean, name
    num = 3 if place == "second of two files" else 6
    assert said(caplog, "unlabelled", num, 120 + num)
    made = read_model(tmp_path / "without labels.model").provenance
    assert (made.cells_without_label, made.num_cells) == (num, 120)
    assert read_model(tmp_path / "clean.model").provenance.cells_without_label is None


def test_labels_that_are_not_held_out_are_named(counts_adata, tmp_path, caplog):
    """Labels of a single donor, of donors in one fold, and of one cell are no errors of the model: they are not called.

    Small donors have no accuracy of their own.
    """
    cells = ad.concat([counts_adata] * 3, index_unique="-")
    rng = np.random.default_rng(0)
    cells.X.data = rng.poisson(cells.X.data).astype(np.float32)
    donors = np.concatenate([rng.choice(6, 300), 6 + np.arange(60) // 6]).astype(str)
    labels = cells.obs["cell_type"].astype(str).to_numpy(object)
    labels[np.flatnonzero(donors == "2")[:15]] = "of one donor"
    labels[350] = "of one cell"
    cells.obs["cell_type"] = labels
    cells.obs["donor"] = donors
    with caplog.at_level("INFO", logger="scperformer"):
        saved = read_model(trained(cells, tmp_path / "model", *QUICK, batch_key="donor"))
    assert said(caplog, "_calibration", "'of one cell' (1)", "'of one donor' (15)")
    fold = saved.metrics.out_of_fold
    assert fold.accuracy > 0.9  # each of the 16 others would be an error
    accuracy = dict(zip(saved.provenance.batches.names, fold.batches.accuracy, strict=True))
    assert accuracy["2"] > 0.9
    assert {donor for donor, value in accuracy.items() if value is None} == set(
        map(str, range(6, 16))
    )


def test_torch_is_as_it_was_after_training(counts_adata, tmp_path, torch_unchanged):
    with torch_unchanged():
        trained(counts_adata, tmp_path / "m", *FAST)
    with torch_unchanged(), refusal("diverged"):
        trained(counts_adata, tmp_path / "n", *FAST, "optim.lr=1e12")


@pytest.mark.parametrize(("branch", "other"), [("linear", "encoder"), ("encoder", "linear")])
def test_a_branch_that_is_off_has_no_scale(counts_adata, write, tmp_path, branch, other):
    output = run_train(
        config(write(counts_adata), f"output='{tmp_path / 'm'}'", f"model.{branch}=false")
    )
    assert set(read_model(output).scales) == {other}
    assert read_model(output).metrics.encoder_alone is None
    assert (output / "metrics.csv").exists() == (branch == "linear")  # no epochs, no table
    annotated = scperformer.annotate(counts_adata, scperformer.load_model(output))
    assert set(annotated.uns["scperformer"]["model"]["scales"]) == {other}


def kept_of(adata: ad.AnnData, folder: Path, *overrides: str) -> tuple[ReferenceCells, SavedModel]:
    path = trained(adata, folder, *FAST, "model.encoder=false", *overrides)
    saved = read_model(path)
    return load_reference_cells(saved, path), saved


def counts_by_cell(adata: ad.AnnData, genes: list[str]) -> dict[bytes, str]:
    """The label of each cell, by its counts in the order of a model's genes."""
    rows = adata[:, genes].X.toarray().astype(np.float32)
    return {row.tobytes(): label for row, label in zip(rows, adata.obs["cell_type"], strict=True)}


def with_log_values(adata: ad.AnnData) -> ad.AnnData:
    logged = adata.copy()
    x = adata.X.toarray()
    logged.X = csr_matrix(np.log1p(x / x.sum(axis=1, keepdims=True) * 1e4).astype(np.float32))
    return logged


@pytest.mark.parametrize("stored", ["counts", "log values"])
def test_a_model_keeps_the_counts_of_its_reference(counts_adata, tmp_path, stored):
    counts_adata = counts_adata[:, np.asarray((counts_adata.X == 1).sum(0) > 0).ravel()].copy()
    adata = counts_adata if stored == "counts" else with_log_values(counts_adata)
    kept, saved = kept_of(adata, tmp_path / "m")
    assert kept.are_counts
    assert kept.values.shape == (120, len(saved.genes))
    known = counts_by_cell(counts_adata, saved.genes)
    found = {
        row.tobytes(): saved.labels[label]
        for row, label in zip(kept.values.toarray(), kept.labels, strict=True)
    }
    assert found == known


def test_a_part_of_the_cells_is_drawn_within_labels(counts_adata, tmp_path):
    adata = counts_adata[np.r_[0:90, 90:120:3]].copy()  # 30 of each label, and ten B cells
    known, draws = counts_by_cell(adata, list(adata.var_names)), []
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        kept, saved = kept_of(adata, tmp_path / name, "keep_cells=30", f"seed={seed}")
        names = [saved.labels[label] for label in kept.labels]
        assert {label: names.count(label) for label in saved.labels} == {
            "B cell": 12,
            "Monocyte": 9,
            "T cell": 9,
        }
        rows = kept.values[:, [saved.genes.index(gene) for gene in adata.var_names]].toarray()
        assert [known[row.tobytes()] for row in rows] == names
        draws.append({row.tobytes() for row in rows})
    assert draws[0] == draws[1] != draws[2]
    assert all(len(draw) == 30 for draw in draws)


@pytest.mark.parametrize("split_seed", [None, 5])
def test_the_split_has_a_seed_of_its_own(counts_adata, monkeypatch, tmp_path, split_seed):
    """Validation cells, and the folds of a model without them."""
    seeds = []

    def dealt(labels, seed, batches):
        seeds.append(seed)
        return evidence_folds(labels, seed, batches)

    monkeypatch.setattr("scperformer.training.strategies.evidence_folds", dealt)
    own = [] if split_seed is None else [f"data.split_seed={split_seed}"]
    options = [config("x", f"seed={seed}", *own) for seed in (0, 1)]
    splits = [
        make_reference([OpenedCells(counts_adata, each)]).split.val.tolist() for each in options
    ]
    assert (splits[0] == splits[1]) is (split_seed is not None)
    for seed in (0, 1):
        kept_of(counts_adata, tmp_path / str(seed), f"seed={seed}", *own)
    assert seeds == ([0, 1] if split_seed is None else [5, 5])


def test_a_default_model_is_a_performer_and_says_what_to_expect(counts_adata, tmp_path, caplog):
    with caplog.at_level("INFO", logger="scperformer"):
        path = trained(counts_adata, tmp_path / "m", *FAST[1:], "trainer.max_steps=30")
    saved = read_model(path)
    assert (saved.config.model["depth"], saved.config.head["name"]) == (2, "weighted")
    assert saved.metrics.best_epoch == 0
    assert said(caplog, "train_readouts", "2 heads", "16 features", "2 layers", "cpu")
    fold = saved.metrics.out_of_fold
    assert fold.num_cells == saved.metrics.num_val_cells == 120
    assert set(fold.branches) == set(saved.scales) == {"linear", "encoder"}
    assert fold.loss < min(branch["loss"] for branch in fold.branches.values()) + 0.01
    assert f"accuracy {fold.accuracy:.3f}" in (path / "MODEL_CARD.md").read_text()
    assert not (path / "metrics.csv").exists()


def write_checkpoint(folder: Path) -> None:
    """Write a checkpoint without content."""
    (folder / "checkpoints").mkdir(exist_ok=True)
    torch.save({}, folder / "checkpoints" / "last.ckpt")


def interrupted(cfg: TrainConfig, output: Path, data: str = "checksum") -> Path:
    """Open a run and interrupt it after a checkpoint; return its folder."""
    with suppress(KeyboardInterrupt), training_run(cfg, output, [], init_hash=data) as this:
        if not (this.folder / "checkpoints").exists():
            write_checkpoint(this.folder)
        raise KeyboardInterrupt
    return this.folder


@pytest.mark.parametrize("name", ["last.ckpt", "best.ckpt"])
def test_a_checkpoint_that_cannot_be_continued_is_refused(name, tmp_path, caplog):
    output = tmp_path / "model"
    path = interrupted(config("x"), output) / "checkpoints" / "last.ckpt"
    path.with_name(name).write_bytes(path.read_bytes()[:100])
    with refusal("earlier-run", name):
        interrupted(config("x", "resume=true"), output)
    assert path.is_file()
    anew = training_run(
        config("x", "resume=true", "overwrite=true"), output, [], init_hash="checksum"
    )
    with caplog.at_level("INFO", logger="scperformer"), anew:
        assert not path.exists()
    assert said(caplog, "resumes", name)


def test_unfinished_runs_are_neither_lost_nor_mixed(tmp_path, caplog):
    cfg, output = config("x"), tmp_path / "model"
    checkpoint = interrupted(cfg, output) / "checkpoints" / "last.ckpt"
    with refusal("earlier-run"):
        interrupted(cfg, output)
    cfg.resume = True
    before = checkpoint.read_bytes()
    interrupted(cfg, output)
    assert checkpoint.read_bytes() == before
    with refusal("earlier-run"):
        interrupted(cfg, output, "other")
    cfg.seed = 7
    with refusal("earlier-run"):
        interrupted(cfg, output)
    cfg.optim.lr, cfg.trainer.batch_size, cfg.head.hidden, cfg.data.min_genes = 0.5, 1, [3], 9
    with refusal("earlier-run"):
        interrupted(cfg, output, "other")
    cfg.overwrite = True
    with (
        caplog.at_level("INFO", logger="scperformer"),
        training_run(cfg, output, [], init_hash="checksum"),
    ):
        assert not checkpoint.exists()
    assert said(caplog, "resumes", "seed=7", 0)


def test_resuming_a_finished_run_is_done(counts_adata, write, tmp_path, caplog):
    path, output = write(counts_adata), tmp_path / "model"
    words = [f"output='{output}'", "experiment=linear"]
    run_train(config(path, *words))
    made = (output / "bundle.json").read_bytes()
    with caplog.at_level("INFO", logger="scperformer"):
        assert run_train(config(path, *words, "resume=true")) == output
    assert said(caplog, "training_run", output)
    assert (output / "bundle.json").read_bytes() == made
    with refusal("output-exists"):
        run_train(config(path, *words, "resume=true", "seed=1"))


@pytest.mark.parametrize("name", ["thesis.txt", ".scperformer.json"])
def test_a_folder_of_the_users_in_the_place_of_the_run_folder_stays(
    name, counts_adata, write, tmp_path
):
    theirs = tmp_path / "m1.run" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text("years of work")
    with refusal("run-folder"):
        run_train(
            config(write(counts_adata), f"output={tmp_path}/m1", "resume=true", "overwrite=true")
        )
    assert theirs.read_text() == "years of work"
    assert not (tmp_path / "m1").exists()


def test_a_file_of_the_users_in_a_run_folder_of_ours_stays(counts_adata, write, tmp_path):
    path = write(counts_adata)
    run_train(config(path, f"output={tmp_path}/m1"))
    (tmp_path / "m1.run" / "notes.txt").write_text("x")
    with refusal("run-folder"):
        run_train(config(path, f"output={tmp_path}/m1", "overwrite=true"))
    assert (tmp_path / "m1.run" / "notes.txt").read_text() == "x"
    (tmp_path / "m1.run" / "notes.txt").unlink()
    run_train(config(path, f"output={tmp_path}/m1", "overwrite=true"))


def test_a_wrong_label_key_costs_neither_the_model_nor_the_logs_of_an_earlier_run(
    counts_adata, write, tmp_path
):
    path = write(counts_adata)
    run_train(config(path, f"output={tmp_path}/m1", "experiment=linear"))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with refusal("no-column"):
        run_train(
            config(
                path,
                f"output={tmp_path}/m1",
                "experiment=linear",
                "overwrite=true",
                "label_key=none",
            )
        )
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_a_run_that_leaves_nothing_gives_back_the_logs_of_an_earlier_one(tmp_path):
    """Also after a kill, as the next run finds them under their other name."""
    cfg = config("x", "overwrite=true")
    with training_run(cfg, tmp_path / "model", [], init_hash="checksum") as this:
        (this.folder / "metrics.json").write_text("earlier")
    with (
        pytest.raises(MemoryError),
        training_run(cfg, tmp_path / "model", [], init_hash="checksum"),
    ):
        raise MemoryError
    assert (tmp_path / "model.run" / "metrics.json").read_text() == "earlier"
    (tmp_path / "model.run").rename(tmp_path / ".scperformer-old-model.run")
    with (
        pytest.raises(MemoryError),
        training_run(cfg, tmp_path / "model", [], init_hash="checksum"),
    ):
        raise MemoryError
    assert [path.name for path in tmp_path.iterdir()] == ["model.run"]
    assert (tmp_path / "model.run" / "metrics.json").read_text() == "earlier"


def test_a_helping_process_leaves_the_run_folder_to_the_first(tmp_path, monkeypatch):
    options = ["trainer=ddp", "trainer.accelerator=cpu"]
    first = interrupted(config("x", *options), tmp_path / "model")
    monkeypatch.setenv("SLURM_PROCID", "1")
    run = training_run(config("x", *options), tmp_path / "model", [], init_hash="checksum")
    with warnings.catch_warnings(), run as helper:
        assert (helper.folder, helper.is_first) == (first, False)
    assert (first / "checkpoints" / "last.ckpt").is_file()
    # the control: a run of one process is not a helper, whatever the environment
    with refusal("earlier-run"):
        interrupted(config("x"), tmp_path / "model")


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_model(counts_adata, write, tmp_path):
    path = write(counts_adata, "reference.h5ad")
    # Without the linear branch every epoch gets better, so that the model is a late epoch's.
    more = ["model.linear=false", "trainer.batch_size=8", "trainer.max_epochs=12", "seed=1"]
    options = [str(path), "label_key=cell_type", *FAST, *more]
    whole, cut = (
        ["scperformer", "train", *options, f"output={tmp_path}/{name}"] for name in ("whole", "cut")
    )
    assert forked.run(*whole, cwd=tmp_path).returncode == 0
    process = Forked(*cut, cwd=tmp_path)
    last = tmp_path / "cut.run" / "checkpoints" / "last.ckpt"
    while not last.is_file():
        assert process.is_running(), "the run ended before it could be killed"
        time.sleep(0.01)
    process.send_signal(signal.SIGSTOP)
    second = forked.run(*cut, "resume=true", cwd=tmp_path)
    assert (second.returncode, last.is_file()) == (2, True)
    assert f"cut.run, which process {process.pid} on" in second.stderr
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (tmp_path / "cut").exists()
    assert forked.run(*cut, "resume=true", cwd=tmp_path).returncode == 0
    whole, cut = read_model(tmp_path / "whole"), read_model(tmp_path / "cut")
    assert whole.metrics.best_epoch > 1
    assert whole.weights.keys() == cut.weights.keys()
    assert all(np.array_equal(whole.weights[name], cut.weights[name]) for name in whole.weights)


@pytest.mark.slow
def test_two_processes_train_one_model(counts_adata, write, tmp_path):
    path = write(counts_adata, "reference.h5ad")
    options = [str(path), "label_key=cell_type", *FAST, "trainer.max_epochs=2", "resume=true"]
    words = [sys.executable, "-m", "scperformer", "train", *options, f"output={tmp_path}/model"]
    words += ["trainer=ddp", "trainer.accelerator=cpu"]
    more = {"env": {**os.environ, "OMP_NUM_THREADS": "1"}, "capture_output": True, "text": True}
    done = subprocess.run(words, check=False, **more)
    assert done.returncode == 0, done.stderr
    errors = done.stderr
    for line in ("written:", "training on 108 cells", "epoch 2/2: training loss"):
        assert errors.count(line) == 1, errors
    assert "distributed" not in errors
    info = json.loads((tmp_path / "model" / "bundle.json").read_text())
    assert info["metrics"]["model"]["accuracy"] > 0.8
    adata = ad.read_h5ad(path)
    scperformer.annotate(adata, scperformer.load_model(tmp_path / "model"))
    assert "scperformer_label" in adata.obs


def test_training_that_diverged_gives_no_model(counts_adata, write, tmp_path):
    with refusal("diverged"):
        run_train(config(write(counts_adata), f"output='{tmp_path / 'model'}'", "optim.lr=1e12"))
    assert not (tmp_path / "model").exists()
    assert not (tmp_path / "model.run").exists()  # or resume=true would go on from what is broken


@pytest.mark.slow
def test_a_stopped_run_says_so_and_does_not_look_like_success(counts_adata, write, tmp_path):
    long = ["trainer.max_epochs=2000", "trainer.patience=2000"]
    options = [str(write(counts_adata)), "label_key=cell_type", *FAST, *long]
    process = Forked("scperformer", "train", *options, f"output={tmp_path}/model", cwd=tmp_path)
    last = tmp_path / "model.run" / "checkpoints" / "last.ckpt"
    while not last.is_file():
        assert process.is_running(), "the run ended before it could be stopped"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert "resume=true continues it" in errors
    assert not (tmp_path / "model").exists()
    assert last.is_file()


def test_unlabelled_cells_of_a_file_are_named_in_the_record(counts_adata, write, tmp_path):
    more = write(counts_adata[:, ::-1].copy(), "more.h5ad")  # genes in another order
    words = ["seed=1", "trainer.max_steps=10"]
    path = trained(counts_adata, tmp_path / "with.model", f"unlabelled=['{more}']", *words)
    alone = trained(counts_adata, tmp_path / "alone.model", *words)
    with_more, without = read_model(path), read_model(alone)
    assert with_more.provenance.unlabelled == ["more.h5ad"]
    assert str(tmp_path) not in (path / "bundle.json").read_text()
    name = "model.encoder.embedding.gene.weight"
    assert not np.array_equal(with_more.weights[name], without.weights[name])
    np.testing.assert_array_equal(
        with_more.weights["baseline.weight"], without.weights["baseline.weight"]
    )


def test_unlabelled_cells_with_other_genes_are_refused(counts_adata, write, tmp_path):
    few = write(counts_adata[:, :60].copy(), "few.h5ad")
    with refusal("few-genes"):
        trained(counts_adata, tmp_path / "a.model", f"unlabelled=['{few}']")
    assert not (tmp_path / "a.model").exists()


@pytest.mark.parametrize(
    "model", ["model=performer", pytest.param("model=tiny", marks=pytest.mark.slow)]
)
def test_a_model_for_one_panel(model, counts_adata, write, tmp_path):
    genes = list(counts_adata.var_names[:60])
    (tmp_path / "panel.txt").write_text("\n".join([*genes, "ABSENT"]))
    panel = f"genes_path='{tmp_path / 'panel.txt'}'"
    folder = trained(
        write(counts_adata), tmp_path / "model", *FAST, "trainer.max_steps=30", panel, model
    )
    saved = read_model(folder)
    assert saved.genes == genes
    assert saved.config.own_totals
    assert saved.provenance.options["genes_path"] == "panel.txt"
    assert str(tmp_path) not in (folder / "bundle.json").read_text()
    stored = load_reference_cells(saved, folder).values.toarray()
    np.testing.assert_array_equal(stored, counts_adata[:, genes].X.toarray())

    # Other genes of a file have no part in the calls, not even in the totals.
    loaded = scperformer.load_model(folder)
    samples = counts_adata.copy(), counts_adata[:, genes].copy()
    whole, alone = (scperformer.annotate(cells, loaded) for cells in samples)
    proba = [done.obsm["scperformer_proba"].to_numpy() for done in (whole, alone)]
    np.testing.assert_allclose(*proba, atol=1e-3)
    assert (
        alone.obs["scperformer_label"].astype(str) == alone.obs["cell_type"].astype(str)
    ).mean() > 0.9
    assert not alone.uns["scperformer"]["coverage"]["adapted"]
    # A part of a small panel is enough: the model has nothing else.
    scperformer.annotate(counts_adata[:, genes[:45]].copy(), loaded)
