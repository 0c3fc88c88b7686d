"""Faults of the machine, for real: full disks, folders that cannot be written, kills, inputs that change.

A training that is killed is in tests/training/test_train.py.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.annotated import annotated_sample

from scperformer.annotation import predict
from scperformer.base.errors import InputError
from scperformer.cli.predict import PredictConfig
from scperformer.cli.predict import run as run_predict

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}
TRAIN = ("label_key=cell_type", "model=tiny", "trainer.max_epochs=3", "logger=none")


def started(*words: object, cwd: Path, before: str = "") -> subprocess.Popen:
    """The command in a process of its own, after some lines of Python."""
    program = f"import sys, time\n{before}\nfrom scperformer.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    pipe = subprocess.PIPE
    line = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.Popen(line, cwd=cwd, env=ENVIRONMENT, stderr=pipe, stdout=pipe, text=True, start_new_session=True)


def ran(*words: object, cwd: Path, before: str = "") -> tuple[int, str]:
    with started(*words, cwd=cwd, before=before) as process:
        _, errors = process.communicate(timeout=240)
    return process.returncode, errors


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
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(disk)], capture_output=True)
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
    "predict zarr": ("cells.h5ad", ("model_path=model",), "out.zarr"),
    "predict csv": ("cells.h5ad", ("model_path=model",), "out.csv"),
    "train": ("cells.h5ad", TRAIN, "trained"),
    "preprocess": ("cells.h5ad", (), "prepared.h5ad"),
    "report": ("annotated.h5ad", (), "report.html"),
    "evaluate": ("annotated.h5ad", ("truth_key=bulk_labels",), "scores"),
}


def words_of(case: str, disk: Path) -> tuple[object, ...]:
    path, options, output = STEPS[case]
    return case.split()[0], path, *options, f"output={disk / output}"


@pytest.mark.slow
@pytest.mark.parametrize("case", STEPS)
def test_a_full_disk_is_one_line_and_leaves_nothing(case, inputs, small_disk):
    disk, mount = small_disk
    (disk / "filler").write_bytes(bytes(64 * 1024))
    code, errors = ran(*words_of(case, disk), cwd=inputs)
    assert code == 2, errors
    assert f"the disk is full ({disk / STEPS[case][2]}" in error_line(errors)  # or its folder of parts, or of the run
    assert [entry.name for entry in disk.iterdir()] == ["filler"]
    (disk / "filler").unlink()
    mount("remount,size=64m")
    code, errors = ran(*words_of(case, disk), cwd=inputs)
    assert code == 0, errors
    assert (disk / STEPS[case][2]).exists()


# Killed


def killed_when(process: subprocess.Popen, is_time) -> None:
    """Kill -9 a process as soon as something is the case."""
    for _ in range(1200):
        if is_time() or process.poll() is not None:
            break
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@pytest.mark.slow
def test_kill_9_while_the_output_is_copied(inputs):
    slow = "import shutil\ncopy = shutil.copyfile\n"
    slow += "shutil.copyfile = lambda *rest: (open('copying', 'w').close(), copy(*rest), time.sleep(60))"
    words = ("predict", "cells.h5ad", "model_path=model", "output=out.h5ad")
    with started(*words, cwd=inputs, before=slow) as process:
        killed_when(process, (inputs / "copying").exists)
    assert not (inputs / "out.h5ad").exists()
    code, errors = ran(*words, "resume=true", cwd=inputs)
    assert code == 0, errors
    left = sorted(entry.name for entry in inputs.iterdir())
    assert left == ["annotated.h5ad", "cells.h5ad", "copying", "model", "out.h5ad"]


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
    environment = ENVIRONMENT | {"PYTHONPATH": os.pathsep.join([str(inputs), ENVIRONMENT.get("PYTHONPATH", "")])}
    line = [sys.executable, "-m", "scperformer", *words]
    done = subprocess.run(line, cwd=inputs, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode != 0, done.stderr
    assert not (inputs / "cut").exists()


# Inputs that change


@pytest.mark.parametrize("how", ["changed", "replaced", "gone"])
def test_an_input_that_changes_meanwhile_is_noticed(how, inputs, tmp_path, monkeypatch):
    path = inputs / "cells.h5ad"
    make = predict.make_annotation

    def change(*rest, **options):
        found = make(*rest, **options)
        if how == "replaced":
            shutil.copyfile(path, inputs / "other.h5ad")
            os.replace(inputs / "other.h5ad", path)
        elif how == "gone":
            path.unlink()
        else:
            with path.open("r+b") as file:
                file.write(b"\x89")
        return found

    monkeypatch.setattr(predict, "make_annotation", change)
    options = {"model_path": str(inputs / "model"), "output": str(tmp_path / "out.h5ad")}
    with pytest.raises(
        InputError, match=r"cells\.h5ad was changed while it was read; expected an input that stays the same"
    ):
        run_predict(PredictConfig(inputs=[str(path)], **options))
    assert [entry.name for entry in tmp_path.iterdir()] == ["inputs"]
