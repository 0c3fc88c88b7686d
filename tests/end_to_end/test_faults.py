"""Faults of the machine, for real: full disks, inputs that change."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import forked
from support.annotated import annotated_sample
from support.refusal import refusal

from scperformer.annotation import predict
from scperformer.cli.predict import PredictConfig
from scperformer.cli.predict import run as run_predict

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
TRAIN = ("label_key=cell_type", "model=tiny", "trainer.max_epochs=3", "logger=none")


def ran(*words: object, cwd: Path) -> tuple[int, str]:
    """The command in a process of its own: its exit code and what it said."""
    done = forked.run("scperformer", *map(str, words), cwd=cwd)
    return done.returncode, done.stderr


def error_line(errors: str) -> str:
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if line.startswith(("error", "internal"))]
    return line


@pytest.fixture
def inputs(tmp_path, counts_adata, tiny_model) -> Path:
    """A folder with cells, annotated cells and a model."""
    folder = tmp_path / "inputs"
    folder.mkdir()
    counts_adata.write_h5ad(folder / "cells.h5ad")
    annotated_sample().write_h5ad(folder / "annotated.h5ad")
    shutil.copytree(tiny_model, folder / "model")
    return folder


@pytest.fixture
def small_disk(tmp_path):
    """A disk with 64 KiB, and a way to change it."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def mount(options: str) -> None:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], capture_output=True
        )
        if done.returncode != 0:
            pytest.skip("disks cannot be mounted here")

    try:
        mount("size=64k")
    except FileNotFoundError:
        pytest.skip("there is no mount")
    yield disk, mount
    subprocess.run(["umount", str(disk)], check=True)


STEPS = {
    "predict": ("cells.h5ad", ("model_path=model",), "out.h5ad"),
    "train": ("cells.h5ad", TRAIN, "trained"),
    "report": ("annotated.h5ad", (), "annotated.report.html"),
}


def words_of(case: str, disk: Path) -> tuple[object, ...]:
    path, options, output = STEPS[case]
    return case, path, *options, f"output={disk / output}"


@pytest.mark.slow
@pytest.mark.parametrize("case", STEPS)
def test_a_full_disk_is_one_line_and_leaves_nothing(case, inputs, small_disk):
    disk, mount = small_disk
    (disk / "filler").write_bytes(bytes(64 * 1024))
    code, errors = ran(*words_of(case, disk), cwd=inputs)
    assert code == 2, errors
    # or its folder of parts, or of the run
    assert f"the disk is full ({disk / STEPS[case][2]}" in error_line(errors)
    assert [entry.name for entry in disk.iterdir()] == ["filler"]
    (disk / "filler").unlink()
    mount("remount,size=64m")
    code, errors = ran(*words_of(case, disk), cwd=inputs)
    assert code == 0, errors
    assert (disk / STEPS[case][2]).exists()


@pytest.mark.slow
def test_a_helper_process_that_dies_ends_the_training(inputs):
    """The second process of two dies in its first step: no hang, no model, no exit code 0."""
    die = (
        "import os\nfrom scperformer.lab.supervised import Learner\n"
        "Learner.training_step = lambda self, *_: os._exit(9) if self.global_rank == 1 else None"
    )
    (inputs / "sitecustomize.py").write_text(
        f"import os\nif os.environ.get('LOCAL_RANK') == '1':\n    exec({die!r})\n", encoding="utf-8"
    )
    words = ("train", "cells.h5ad", *TRAIN, "trainer=ddp", "trainer.devices=2", "output=cut")
    environment = ENVIRONMENT | {
        "PYTHONPATH": os.pathsep.join([str(inputs), ENVIRONMENT.get("PYTHONPATH", "")])
    }
    line = [sys.executable, "-m", "scperformer", *words]
    done = subprocess.run(
        line, cwd=inputs, env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode != 0, done.stderr
    assert not (inputs / "cut").exists()


# Inputs that change


@pytest.mark.parametrize("how", ["changed", "gone"])
def test_an_input_that_changes_meanwhile_is_noticed(how, inputs, tmp_path, monkeypatch):
    path = inputs / "cells.h5ad"
    make = predict.annotation_of

    def change(*rest, **options):
        found = make(*rest, **options)
        if how == "gone":
            path.unlink()
        else:
            with path.open("r+b") as file:
                file.write(b"\x89")
        return found

    monkeypatch.setattr(predict, "annotation_of", change)
    options = {"model_path": str(inputs / "model"), "output": str(tmp_path / "out.h5ad")}
    with refusal("input-changed"):
        run_predict(PredictConfig(inputs=[str(path)], **options))
    assert [entry.name for entry in tmp_path.iterdir()] == ["inputs"]
