"""The table of a sweep by itself: order, columns, and rows of runs that ended badly."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from scperformer.cli.sweep import Sweep


def run(sweep, tmp_path, number, overrides, macro_f1=None, error=None):
    """One run of a sweep that writes a model of this score, or ends with this error."""
    folder = tmp_path / str(number)
    with sweep.job(folder, overrides) as wrote:
        wrote(str(folder / "model"))
        if error is not None:
            raise error
        (folder / "model").mkdir(parents=True)
        scores = {"macro_f1": macro_f1, "accuracy": 0.5}
        metrics = {"model": scores, "baseline": {"macro_f1": 0.7, "accuracy": 0.6}, "best_epoch": 3}
        (folder / "model" / "bundle.json").write_text(json.dumps({"metrics": metrics}))


@pytest.fixture
def sweep(tmp_path):
    sweep = Sweep(tmp_path)
    run(sweep, tmp_path, 0, ["inputs=['r.h5ad']", "label_key=x", "seed=0"], 0.25)
    with pytest.raises(ValueError, match="a "):
        run(sweep, tmp_path, 1, ["inputs=['r.h5ad']", "label_key=x", "seed=1"], error=ValueError("a | b\nc"))
    run(sweep, tmp_path, 2, ["inputs=['r.h5ad']", "label_key=x", "seed=2"], 0.75)
    return sweep


def test_the_file_has_a_row_per_run_in_their_order(sweep, tmp_path):
    with (tmp_path / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        *("job", "status", "label_key", "seed", "val_macro_f1", "baseline_macro_f1", "val_accuracy"),
        *("baseline_accuracy", "best_epoch", "seconds", "output", "error"),
    ]
    assert [row["status"] for row in rows] == ["ok", "failed", "ok"]
    assert [row["val_macro_f1"] for row in rows] == ["0.2500", "", "0.7500"]
    assert [row["output"] for row in rows] == ["0/model", "1/model", "2/model"]
    assert rows[1]["error"] == "a | b c"


def test_the_printed_table_has_the_best_run_first_and_failed_ones_last(sweep):
    lines = sweep.markdown().splitlines()
    assert [line.split(" | ")[0] for line in lines[:5]] == ["| job", "| ---", "| 2", "| 0", "| 1"]
    assert "label_key" not in lines[0]
    assert "a \\| b c" in lines[4]
    assert lines[-1].startswith("3 runs, 1 failed: ")
    assert sweep.num_failed == 1


@pytest.fixture
def drawn(monkeypatch) -> dict[str, object]:
    """What is drawn: the panels, and the title of their axis."""
    drawn: dict[str, object] = {}

    def draw_scores(panels, title, lines):
        drawn.update(panels=panels, title=title)
        return b""

    monkeypatch.setattr("scperformer.base.pictures.draw_scores", draw_scores)
    return drawn


def test_encoders_that_are_left_out_are_told_apart_by_their_own_scores(tmp_path, drawn):
    """Their models have the scores of the same linear branch."""
    sweep = Sweep(tmp_path)

    def has_encoder(number: int, own: float, scale: float) -> None:
        info = tmp_path / str(number) / "model" / "bundle.json"
        metrics = json.loads(info.read_text())["metrics"]
        metrics |= {"encoder_alone": {"macro_f1": own}, "scales": {"linear": 1.0, "encoder": scale}}
        info.write_text(json.dumps({"metrics": metrics}))

    for number, own in enumerate((0.6, 0.4)):
        run(sweep, tmp_path, number, [f"attention={number}"], 0.9)
        has_encoder(number, own, 0.0)
    assert sweep.markdown().splitlines()[-1].startswith("2 runs have the scores of the linear branch")
    sweep.draw()
    alone = {"panels": {"attention": [("0", 0.6), ("1", 0.4)]}, "title": "validation macro-F1 of the encoder alone"}
    assert drawn == alone
    has_encoder(1, 0.4, 1.0)
    sweep.draw()
    assert drawn == {"panels": {"attention": [("0", 0.9), ("1", 0.9)]}, "title": "validation macro-F1"}
    assert [record["encoder_macro_f1"] for record in sweep.records()] == ["0.6000", "0.4000"]
    assert [record["encoder_scale"] for record in sweep.records()] == ["0.00", "1.00"]
    assert sweep.markdown().splitlines()[-1].startswith("1 run has the scores of the linear branch")


def test_encoders_have_no_scores_in_the_table(tmp_path):
    sweep = Sweep(tmp_path)
    folder = tmp_path / "0"
    with sweep.job(folder, ["seed=0"]) as wrote:
        wrote(str(folder / "encoder"))
        (folder / "encoder").mkdir()
        (folder / "encoder" / "bundle.json").write_text(json.dumps({"metrics": {"loss": 0.1, "naive_loss": 0.2}}))
    assert sweep.rows[0].status == "ok"
    assert list(sweep.records()[0]) == ["job", "status", "seed", "seconds", "output", "error"]


def test_the_table_is_there_after_each_run(tmp_path):
    sweep = Sweep(tmp_path)
    run(sweep, tmp_path, 0, ["seed=0"], 0.5)
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 2
    with pytest.raises(SystemExit):
        run(sweep, tmp_path, 1, ["seed=1"], error=SystemExit(130))
    assert "interrupted" in (tmp_path / "runs.csv").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "runs.csv"]


def test_runs_of_other_processes_are_in_the_table_and_lost_ones_have_failed(tmp_path):
    run(Sweep(tmp_path), tmp_path, 2, ["seed=2"], 0.5)
    run(Sweep(tmp_path), tmp_path, 10, ["seed=10"], 0.75)
    killed = Sweep(tmp_path).job(tmp_path / "1", ["seed=1"])
    killed.__enter__()  # and that was all
    sweep = Sweep(tmp_path)
    assert [(row.job, row.status) for row in sweep.rows] == [("1", "running"), ("2", "ok"), ("10", "ok")]
    assert sweep.num_failed == 0
    with sweep.to_its_end():
        pass
    assert [row.status for row in sweep.rows] == ["failed", "ok", "ok"]
    assert "ended without a result" in (tmp_path / "runs.csv").read_text()
    assert sweep.markdown().splitlines()[2].startswith("| 10 | ok | 10 | 0.7500")


def test_the_picture_has_a_panel_for_each_option_that_varies(sweep, tmp_path):
    run(sweep, tmp_path, 3, ["inputs=['r.h5ad']", "label_key=x", "seed=10", "optim.lr=1e-3"], 0.5)
    picture = sweep.draw()
    assert picture == tmp_path / "runs.png"
    image = Image.open(picture)
    assert image.size[0] == pytest.approx((1.2 + 3.2 * 2) * 150, abs=2)  # seed and learning rate
    blue = np.all(np.array(image.convert("RGB")) == (0, 114, 178), axis=-1)
    assert blue.sum() > 300  # dots and lines


def test_runs_without_scores_or_choices_have_no_picture(tmp_path):
    sweep = Sweep(tmp_path)
    run(sweep, tmp_path, 0, ["seed=0"], 0.5)
    assert sweep.draw() is None
    assert not (tmp_path / "runs.png").exists()
