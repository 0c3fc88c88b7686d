"""Ctrl-C and signals of clusters end a command at any point: one line, the usual exit code, no partial output."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support import forked
from support.annotated import annotated_sample

# Sends a signal to the process itself when a function is called, or a module is imported ("<module>").
PROFILE = """
import os, signal, sys

def profile(frame, event, _):
    if event == "call" and (frame.f_globals.get("__name__"), frame.f_code.co_name) == (MODULE, FUNCTION):
        calls.append(1)
        if len(calls) == CALL:
            sys.setprofile(None)
            os.kill(os.getpid(), SIGNAL)

calls = []
if SIGNAL == signal.SIGHUP:
    signal.signal(SIGNAL, signal.SIG_DFL)  # under nohup it is ignored
sys.setprofile(profile)
"""
PREDICT = ("predict", "cells.h5ad", "model_path=model", "adapt=false")
TRAIN = (
    "train",
    "cells.h5ad",
    "label_key=cell_type",
    "model=tiny",
    "trainer.max_epochs=2",
    "output=new",
)
ADAPT = ("adapt", "model", "cells.h5ad", "output=new")
CASES = {  # command, and the module and function in which the signal comes
    "the command line is imported": (PREDICT, "scperformer.cli.main", "<module>"),
    "options are composed": (PREDICT, "scperformer.config.compose", "make_options"),
    "torch is imported": (PREDICT, "torch", "<module>"),
    "files are looked at": (PREDICT, "scperformer.io.hdf5_guard", "open_hdf5"),
    "cells are opened": (PREDICT, "scperformer.io.h5ad", "open_stored"),
    "cells are called": (PREDICT, "scperformer.model.inference", "predict_cells"),
    "h5ad is written": (PREDICT, "scperformer.annotation.write", "_add"),
    "HDF5 writes": (PREDICT, "scperformer.io.writing", "write_all"),
    "zarr is written": (
        (*PREDICT, "output=out.zarr"),
        "scperformer.annotation.write",
        "_name_for_zarr",
    ),
    "a table is written": (
        (*PREDICT, "output=out.csv"),
        "scperformer.annotation.write",
        "_table_rows",
    ),
    "a report is made": (("report", "annotated.h5ad"), "scperformer.results.report", "render"),
    "a report is written": (("report", "annotated.h5ad"), "scperformer.base.outputs", "new_file"),
    "branches are fitted": (TRAIN, "scperformer.fits.evidence", "fit_branches"),
    "a network learns": (TRAIN, "scperformer.lab.supervised", "training_step"),
    "an adapted model is made": (ADAPT, "scperformer.fits.evidence", "fit_branches"),
}
FAST = ("the command line is imported", "HDF5 writes")


@pytest.fixture
def inputs(tmp_path, counts_adata, tiny_model) -> Path:
    folder = tmp_path / "inputs"
    folder.mkdir()
    counts_adata.write_h5ad(folder / "cells.h5ad")
    annotated_sample().write_h5ad(folder / "annotated.h5ad")
    (folder / "model").symlink_to(tiny_model)
    return folder


def signalled(
    words, folder: Path, number: int, module: str, function: str, call: int = 1
) -> tuple[int, str]:
    """Run a command that gets a signal when a function is called; return its exit code and standard error."""
    code = f"MODULE, FUNCTION, CALL, SIGNAL = {module!r}, {function!r}, {call}, {int(number)}\n{PROFILE}"
    if module == "torch":  # which forked processes have loaded
        line = [
            sys.executable,
            "-c",
            f"{code}\nfrom scperformer.__main__ import run\nrun()",
            *words,
        ]
        environment = os.environ | {"PYTHONPATH": str(forked.ROOT)}
        ran = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True)
    else:
        ran = forked.run("scperformer", *words, cwd=folder, before=code)
    return ran.returncode, ran.stderr


def require_clean(errors: str, line: str) -> None:
    assert "Traceback" not in errors
    assert "ignored" not in errors
    assert "internal error" not in errors
    assert errors.splitlines()[-1] == line


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (case not in FAST)) for case in CASES]
)
def test_ctrl_c_is_one_line_and_leaves_nothing(case, inputs):
    before = sorted(os.listdir(inputs))
    code, errors = signalled(CASES[case][0], inputs, signal.SIGINT, *CASES[case][1:])
    assert code == 130, errors
    if case == "a network learns":
        errors = errors.replace("warning: interrupted", "interrupted")
    require_clean(errors, "interrupted")
    assert sorted(os.listdir(inputs)) == before


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow)],
    ids=["TERM", "HUP"],
)
def test_signals_of_clusters_and_terminals(number, code, inputs):
    before = sorted(os.listdir(inputs))
    exit_code, errors = signalled(PREDICT, inputs, number, "scperformer.annotation.write", "_add")
    assert exit_code == code, errors
    require_clean(errors, f"ended by {signal.Signals(number).name}")
    assert sorted(os.listdir(inputs)) == before


def test_a_signal_in_a_callback_is_raised_later():
    """Python discards exceptions in `__del__` and in callbacks of compiled libraries."""
    code = """
import os, signal, time
from scperformer.base.signals import handle_signals, say_ended

class Callback:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

handle_signals()
try:
    Callback()
    time.sleep(20)
except KeyboardInterrupt as error:
    print(say_ended(error))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("130\n", "interrupted\n")
