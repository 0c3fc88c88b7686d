"""`bench`: what is run, kept and repeated; scores and cost of the models; the tables and the picture."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import accuracy_score, f1_score

from scperformer.base.outputs import write_json
from scperformer.lab import bench
from scperformer.lab.bench_table import draw, runs_table, summary_of, write_results

TINY = (
    "label_key=cell_type",
    "model=tiny",
    "model.linear=false",
    "trainer.max_epochs=1",
    "logger=none",
)


@pytest.fixture
def sample(counts_adata, write) -> Path:
    sides = np.resize(["train", "train", "val", "test"], counts_adata.n_obs)
    counts_adata.obs["side"] = np.random.default_rng(0).permutation(sides)
    return write(counts_adata)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "runs.csv").open() as file:
        return list(csv.DictReader(file))


def record(attention: str, seed: int, score: float, error: str = "", **more: float) -> dict:
    results = {
        "val_macro_f1": score,
        "baseline_macro_f1": 0.5,
        "cpu_seconds": 10.0 * (seed + 1),
        "peak_gib": 1.0,
    }
    options = {"label_key": "x", "attention": attention, "seed": str(seed)}
    return {"options": options, "results": {} if error else results | more, "error": error}


RECORDS = {
    "a": record("favor", 0, 0.2),
    "b": record("favor", 1, 0.4),
    "c": record("lsh", 0, 0.7),
    "d": record("rbf", 0, 0.9, error="=no | memory"),
}


def test_runs_that_differ_in_their_seed_are_summarised():
    summary = summary_of(runs_table(RECORDS), RECORDS["a"]["options"])
    assert summary.index.name == "attention"
    assert list(summary.index) == ["lsh", "favor"]  # the best first; the failed one is left out
    favor = summary.loc["favor"]
    assert favor["runs"] == 2
    assert favor["val_macro_f1"] == pytest.approx(0.3)
    assert favor["val_macro_f1_sd"] == pytest.approx(np.std([0.2, 0.4], ddof=1))
    assert favor["cpu_seconds"] == pytest.approx(15)


def test_the_score_of_test_cells_is_compared_if_all_runs_have_it():
    records = {
        "a": record("favor", 0, 0.2, test_macro_f1=0.6),
        "b": record("lsh", 0, 0.1, test_macro_f1=0.7),
    }
    options = records["a"]["options"]
    assert list(summary_of(runs_table(records), options)["test_macro_f1"]) == [0.7, 0.6]
    del records["b"]["results"]["test_macro_f1"]
    assert list(summary_of(runs_table(records), options)["val_macro_f1"]) == [0.2, 0.1]


def test_options_that_only_some_runs_have():
    records = {"a": record("favor", 0, 0.2), "b": record("softmax", 0, 0.1)}
    records["b"]["options"]["attention.max_length"] = "9999"
    names = dict.fromkeys([*records["a"]["options"], "attention.max_length"])
    assert list(summary_of(runs_table(records), names).index) == ["favor", "softmax, 9999"]


def test_the_files_of_a_bench(tmp_path, capsys):
    assert write_results(tmp_path, RECORDS) == 1
    assert [row["run"] for row in rows(tmp_path)] == list("abcd")
    assert rows(tmp_path)[3]["error"] == "'=no | memory"  # no formula
    assert list(pd.read_csv(tmp_path / "summary.csv")["attention"]) == ["lsh", "favor"]
    assert (tmp_path / "bench.png").read_bytes() == draw(
        summary_of(runs_table(RECORDS), RECORDS["a"]["options"])
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == ["d: =no | memory", f"4 runs, 1 failed: {tmp_path}/runs.csv"]


def test_a_folder_of_others_is_refused(refused, sample):
    sample.parent.joinpath("mine").mkdir()
    assert "'mine'" in refused("bench", sample, "label_key=cell_type", "output=mine")


@pytest.mark.parametrize(
    ("words", "message"),
    [(["sead=1,2"], "did you mean seed?"), (["--cfg", "job"], "--cfg job; expected --cfg hydra")],
)
def test_words_that_are_refused(refused, sample, words, message):
    assert message in refused("bench", sample, "label_key=cell_type", *words)


@pytest.mark.slow
def test_runs_with_a_result_are_kept(command, sample):
    def made() -> dict[str, float]:
        return {
            row["run"]: os.path.getmtime(f"bench/{row['run']}/run.json")
            for row in rows(Path("bench"))
        }

    ran = command("bench", sample, *TINY, "trainer.batch_size=0,8", "seed=0")
    assert ran.code == 2
    bad, good = sorted(rows(Path("bench")), key=lambda row: row["trainer.batch_size"])
    assert bad["error"].startswith("trainer.batch_size=0; expected ")
    assert (good["error"], good["seed"], good["run"].startswith("8_")) == ("", "0", True)
    assert ran.out.splitlines()[-1] == "2 runs, 1 failed: bench/runs.csv"
    before = made()
    # the bad one is there
    assert command("bench", sample, *TINY, "trainer.batch_size=8", "seed=0,1").code == 2
    after = made()
    assert {name: after[name] for name in before} == before
    assert len(after) == 3
    os.utime(sample)  # a new file
    assert command("bench", sample, *TINY, "trainer.batch_size=8", "seed=0").code == 2
    assert [name for name, when in made().items() if when != after[name]] == [good["run"]]


@pytest.mark.slow
def test_scores_of_test_cells_are_those_of_the_model(command, sample):
    ran = command("bench", sample, *TINY, "data.split=column", "data.split_key=side", "seed=3")
    assert ran.code == 0, ran.err
    [row] = rows(Path("bench"))
    import scperformer as scp

    cells = ad.read_h5ad(sample)
    cells = cells[cells.obs["side"] == "test"].copy()
    scp.annotate(cells, f"bench/{row['run']}/model", options={"adapt": "false"})
    truth, calls = cells.obs["cell_type"].astype(str), cells.obs["scperformer_label"].astype(str)
    assert float(row["test_accuracy"]) == pytest.approx(accuracy_score(truth, calls), rel=1e-5)
    macro = f1_score(truth, calls, average="macro", labels=truth.unique())
    assert float(row["test_macro_f1"]) == pytest.approx(macro, rel=1e-5)
    saved = json.loads(Path(f"bench/{row['run']}/model/bundle.json").read_text())
    assert float(row["val_macro_f1"]) == pytest.approx(
        saved["metrics"]["model"]["macro_f1"], rel=1e-5
    )
    assert saved["provenance"]["seed"] == 3
    assert float(row["seconds"]) > saved["metrics"]["seconds"]
    assert float(row["cpu_seconds"]) > 1
    assert 0.1 < float(row["peak_gib"]) < 4
    assert "gpu_seconds" not in row


KILLER = """
import os, signal
from dataclasses import dataclass
from scperformer import Attention, AttentionOptions

class Killer(Attention):
    @dataclass(kw_only=True)
    class Options(AttentionOptions):
        pass

    def forward(self, q, k, v, keep, positions=None):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_ends_no_other(command, sample, tmp_path):
    (tmp_path / "killer.py").write_text(KILLER)
    ran = command("--plugin", "killer.py", "bench", sample, *TINY, "attention=killer,favor")
    assert ran.code == 2
    errors = {row["attention"]: row["error"] for row in rows(Path("bench"))}
    assert errors == {"killer": bench.KILLED, "favor": ""}


@pytest.mark.slow
def test_a_signal_ends_the_training_too(sample, tmp_path):
    words = [
        sys.executable,
        "-m",
        "scperformer",
        "bench",
        str(sample),
        *TINY,
        "trainer.max_epochs=1000",
    ]
    process = subprocess.Popen(
        [*words, "trainer.patience=1000"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("epoch 1/"):
            break
    process.send_signal(signal.SIGTERM)
    errors = process.stderr.read()  # to the end of both processes
    assert process.wait() == 128 + signal.SIGTERM
    assert "SIGTERM: saved after step" in errors or "ended by SIGTERM" in errors
    [row] = rows(tmp_path / "bench")
    assert row["error"] == bench.KILLED


def test_further_processes_of_a_distributed_run_do_this_run_alone(sample, tmp_path, monkeypatch):
    """Lightning starts them from sys.argv."""
    seen = []

    def record_words(_, cfg, *others):
        seen.append((cfg, sys.argv))
        raise ValueError("seen")

    monkeypatch.setattr("scperformer.tasks.train.train_cells", record_words)
    monkeypatch.setattr(bench, "handle_signals", lambda: None)
    write_json(tmp_path / bench.RECORD, {})
    presets = tmp_path / "presets"
    (presets / "experiment").mkdir(parents=True)
    (presets / "experiment" / "mine.yaml").write_text("optim.lr: 0.5\n")
    words = [
        f"inputs=['{sample}']",
        "label_key='it\\'s, a key'",
        "experiment=mine",
        "--config-dir",
        str(presets),
    ]
    with pytest.raises(SystemExit):
        bench._train_and_measure(tmp_path, words, [])
    [(cfg, argv)] = seen
    assert argv[1:] == ["train", *words]
    assert Path(argv[0]).name == "__main__.py"
    assert (cfg.label_key, cfg.optim.lr) == ("it's, a key", 0.5)
