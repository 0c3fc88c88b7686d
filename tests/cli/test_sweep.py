"""The table of a sweep by itself: order, columns, and rows of runs that ended badly."""

import json

import pandas as pd
import pytest
import yaml

from scperformer.cli.sweep import sweep_table, table_text, write_table


def run(tmp_path, number, overrides, macro_f1=None, error="", **metrics):
    """The folder of a run of a sweep that wrote a model of this score, or ended with this error."""
    (tmp_path / str(number) / ".hydra").mkdir(parents=True)
    (tmp_path / str(number) / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(overrides))
    if error is None:  # killed
        return
    record = {"output": f"{number}/model", "seconds": 1.5, "error": error}
    (tmp_path / str(number) / "run.json").write_text(json.dumps(record))
    scores = {"macro_f1": macro_f1, "accuracy": 0.5}
    if macro_f1 is not None:
        metrics |= {"model": scores, "baseline": {"macro_f1": 0.7, "accuracy": 0.6}, "best_epoch": 3}
    (tmp_path / str(number) / "model").mkdir()
    (tmp_path / str(number) / "model" / "bundle.json").write_text(json.dumps({"metrics": metrics}))


@pytest.fixture
def sweep(tmp_path):
    run(tmp_path, 0, ["inputs=['r.h5ad']", "label_key=x", "seed=0"], 0.25)
    run(tmp_path, 1, ["inputs=['r.h5ad']", "label_key=x", "seed=1"], error="=a | b")
    run(tmp_path, 2, ["inputs=['r.h5ad']", "label_key=x", "seed=2"], 0.75)
    run(tmp_path, 10, ["inputs=['r.h5ad']", "label_key=x", "seed=3"], error=None)
    return tmp_path


def test_the_file_has_a_row_per_run_in_their_order(sweep):
    write_table(sweep_table(sweep), sweep)
    rows = pd.read_csv(sweep / "runs.csv", dtype=str, keep_default_na=False)
    assert list(rows) == [
        *("job", "status", "label_key", "seed", "val_macro_f1", "baseline_macro_f1", "val_accuracy"),
        *("baseline_accuracy", "best_epoch", "output", "seconds", "error"),
    ]
    assert list(rows["job"]) == ["0", "1", "2", "10"]
    assert list(rows["status"]) == ["ok", "failed", "ok", "failed"]
    assert list(rows["val_macro_f1"]) == ["0.2500", "", "0.7500", ""]
    assert list(rows["best_epoch"]) == ["3", "", "3", ""]
    assert rows["error"][1] == "'=a | b"  # no formula
    assert rows["error"][3].startswith("ended without a result: killed")


def test_the_printed_table_has_the_best_run_first_and_failed_ones_last(sweep):
    lines = table_text(sweep_table(sweep), sweep).splitlines()
    assert [line.split()[0] for line in lines[:5]] == ["job", "2", "0", "1", "10"]
    assert "label_key" not in lines[0]
    assert lines[3].endswith("=a | b")
    assert lines[-1] == f"4 runs, 2 failed: {sweep}/runs.csv"


def test_encoders_that_are_left_out_are_told_by_their_own_scores(tmp_path):
    """Their models have the scores of the same linear branch."""
    for number, (own, scale) in enumerate([(0.6, 0.0), (0.4, 1.0)]):
        more = {"encoder_alone": {"macro_f1": own}, "scales": {"linear": 1.0, "encoder": scale}}
        run(tmp_path, number, [f"attention={number}"], 0.9, **more)
    table = sweep_table(tmp_path)
    assert (list(table["encoder_macro_f1"]), list(table["encoder_scale"])) == ([0.6, 0.4], [0, 1])
    assert "1 of the runs leave the encoder out" in table_text(table, tmp_path)


def test_pretrained_encoders_have_no_scores_in_the_table(tmp_path):
    run(tmp_path, 0, ["seed=0"], loss=0.1, naive_loss=0.2)
    assert list(sweep_table(tmp_path)) == ["job", "status", "seed", "output", "seconds", "error"]
