"""The table of a sweep by itself: order, columns, and rows of runs that ended badly."""

import json

import pandas as pd
import pytest

from scperformer.cli.sweep import Sweep


def run(sweep, tmp_path, number, overrides, macro_f1=None, error=None, **metrics):
    """One run of a sweep that writes a model of this score, or ends with this error."""
    folder = tmp_path / str(number)
    with sweep.job(folder, overrides) as wrote:
        wrote(str(folder / "model"))
        if error is not None:
            raise error
        (folder / "model").mkdir(parents=True)
        scores = {"macro_f1": macro_f1, "accuracy": 0.5}
        metrics |= {"model": scores, "baseline": {"macro_f1": 0.7, "accuracy": 0.6}, "best_epoch": 3}
        (folder / "model" / "bundle.json").write_text(json.dumps({"metrics": metrics}))


@pytest.fixture
def sweep(tmp_path):
    sweep = Sweep(tmp_path)
    run(sweep, tmp_path, 0, ["inputs=['r.h5ad']", "label_key=x", "seed=0"], 0.25)
    with pytest.raises(ValueError, match="=a"):
        run(sweep, tmp_path, 1, ["inputs=['r.h5ad']", "label_key=x", "seed=1"], error=ValueError("=a | b\nc"))
    run(sweep, tmp_path, 2, ["inputs=['r.h5ad']", "label_key=x", "seed=2"], 0.75)
    return sweep


def test_the_file_has_a_row_per_run_in_their_order(sweep, tmp_path):
    rows = pd.read_csv(tmp_path / "runs.csv", dtype=str, keep_default_na=False)
    assert list(rows) == [
        *("job", "status", "label_key", "seed", "val_macro_f1", "baseline_macro_f1", "val_accuracy"),
        *("baseline_accuracy", "best_epoch", "seconds", "output", "error"),
    ]
    assert list(rows["status"]) == ["ok", "failed", "ok"]
    assert list(rows["val_macro_f1"]) == ["0.2500", "", "0.7500"]
    assert list(rows["best_epoch"]) == ["3", "", "3"]
    assert list(rows["output"]) == ["0/model", "1/model", "2/model"]
    assert rows["error"][1] == "'=a | b c"  # no formula
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "runs.csv"]


def test_the_printed_table_has_the_best_run_first_and_failed_ones_last(sweep):
    lines = sweep.text().splitlines()
    assert [line.split()[0] for line in lines[:4]] == ["job", "2", "0", "1"]
    assert "label_key" not in lines[0]
    assert lines[3].endswith("=a | b c")
    assert lines[-1].startswith("3 runs, 1 failed: ")


def test_encoders_that_are_left_out_are_told_by_their_own_scores(tmp_path):
    """Their models have the scores of the same linear branch."""
    sweep = Sweep(tmp_path)
    for number, (own, scale) in enumerate([(0.6, 0.0), (0.4, 1.0)]):
        more = {"encoder_alone": {"macro_f1": own}, "scales": {"linear": 1.0, "encoder": scale}}
        run(sweep, tmp_path, number, [f"attention={number}"], 0.9, **more)
    assert list(sweep.table()["encoder_macro_f1"]) == [0.6, 0.4]
    assert list(sweep.table()["encoder_scale"]) == [0, 1]
    assert "1 of the runs leave the encoder out" in sweep.text()


def test_pretrained_encoders_have_no_scores_in_the_table(tmp_path):
    sweep = Sweep(tmp_path)
    folder = tmp_path / "0"
    with sweep.job(folder, ["seed=0"]) as wrote:
        wrote(str(folder / "encoder"))
        (folder / "encoder").mkdir()
        (folder / "encoder" / "bundle.json").write_text(json.dumps({"metrics": {"loss": 0.1, "naive_loss": 0.2}}))
    assert list(sweep.table()) == ["job", "status", "seed", "seconds", "output", "error"]


def test_runs_of_other_processes_are_in_the_table_and_lost_ones_have_failed(tmp_path):
    run(Sweep(tmp_path), tmp_path, 2, ["seed=2"], 0.5)
    run(Sweep(tmp_path), tmp_path, 10, ["seed=10"], 0.75)
    killed = Sweep(tmp_path).job(tmp_path / "1", ["seed=1"])
    killed.__enter__()  # and that was all
    with pytest.raises(SystemExit):
        run(Sweep(tmp_path), tmp_path, 11, ["seed=1"], error=SystemExit(130))
    sweep = Sweep(tmp_path)
    status = [(record["job"], record["status"]) for record in sweep.records]
    assert status == [("1", "running"), ("2", "ok"), ("10", "ok"), ("11", "failed")]
    with sweep.to_its_end():
        pass
    table = pd.read_csv(tmp_path / "runs.csv", dtype=str)
    assert list(table["status"]) == ["failed", "ok", "ok", "failed"]
    assert table["error"][0].startswith("ended without a result")
    assert table["error"][3] == "interrupted"
    assert sweep.text().splitlines()[1].split()[0] == "10"
