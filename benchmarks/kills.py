"""Kill commands at random moments, and start two commands with the same output; check what they leave.

    python benchmarks/kills.py                       # every command, four signals, at three moments each
    python benchmarks/kills.py --moments 6 --only predict,train

Each command first runs undisturbed, which gives its output and its time. Then it is started again and gets a signal at
moments spread over this time. Afterwards no output may be incomplete, inputs and model must be unchanged, and the same
command (with resume=true where available) must give the same output and leave no other files.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import anndata as ad
import numpy as np
from machine import machine

from scperformer.model import PACKAGED_MODEL

ROOT = Path(__file__).parents[1]
SIGNALS = ("KILL", "TERM", "INT", "HUP")
TEMPORARY = re.compile(r"\.scperformer-|.*\.partial$|.*\.run$|\.snakemake$")  # may stay after a kill
VOLATILE = {"seconds", "config_json"}  # keys of a record that may differ: the time, and resume=true


class Step(NamedTuple):
    """A command and its outputs; `again` is added to the command after a kill."""

    words: str
    outputs: tuple[str, ...]
    again: str = ""


STEPS = {
    "predict to h5ad": Step("predict cells.h5ad output=out.h5ad", ("out.h5ad",), "resume=true"),
    "predict to zarr": Step("predict cells.h5ad output=out.zarr", ("out.zarr",), "resume=true"),
    "predict to csv": Step("predict cells.h5ad output=out.csv.gz", ("out.csv.gz",), "resume=true"),
    "predict, replacing": Step("predict cells.h5ad output=old.h5ad overwrite=true", ("old.h5ad",), "resume=true"),
    "predict of many files": Step(
        "predict a.h5ad cells.h5ad b.h5ad some.h5ad output_dir=many", ("many",), "resume=true"
    ),
    "train, fitted": Step("train some.h5ad label_key=cell_type output=m", ("m",), "resume=true"),
    "train, layers": Step(
        "train some.h5ad label_key=cell_type model=tiny trainer.max_epochs=3 output=m", ("m",), "resume=true"
    ),
    "train, replacing": Step("train some.h5ad label_key=cell_type output=old overwrite=true", ("old",)),
    "adapt": Step("adapt model panel.h5ad output=m", ("m",)),
    "report": Step("report annotated.h5ad output=page.html", ("page.html",)),
    "workflow": Step("workflow samples.tsv model_path=model -- --cores 2", ("results",), "-- --rerun-incomplete"),
}


def environment() -> dict[str, str]:
    """One thread per command, on any machine, with the package of this checkout."""
    return os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT)}


def start(words: str, folder: Path) -> subprocess.Popen:
    """Start a command in a new process group, as a terminal does."""
    command = [sys.executable, "-m", "scperformer", *words.split()]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=folder, env=environment(), text=True, start_new_session=True, **streams)


def make_inputs(folder: Path) -> None:
    """Write the inputs of all commands: 17,000 cells in three blocks, a reference, a panel and earlier outputs."""
    cells = ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")
    rows = np.resize(np.arange(cells.n_obs), 17_000)
    many = cells[rows].copy()
    many.obs_names = [f"cell{number}" for number in range(len(rows))]
    many.write_h5ad(folder / "cells.h5ad")
    cells[::3].copy().write_h5ad(folder / "some.h5ad")
    cells[::10, ::20].copy().write_h5ad(folder / "panel.h5ad")
    for name in "ab":
        cells[1::20].copy().write_h5ad(folder / f"{name}.h5ad")
    (folder / "samples.tsv").write_text("sample\tpath\na\ta.h5ad\nb\tb.h5ad\n")
    shutil.copytree(PACKAGED_MODEL, folder / "model")
    for words in ("predict some.h5ad output=annotated.h5ad", "predict a.h5ad output=old.h5ad"):
        assert start(words, folder).wait() == 0
    assert start("train some.h5ad label_key=cell_type experiment=linear output=old", folder).wait() == 0
    shutil.rmtree(folder / "old.run")


def content(path: Path) -> str:
    """Return a checksum of an output that depends only on the result; raise an error if the output is incomplete."""
    if path.suffix in (".h5ad", ".zarr"):
        cells = ad.read_h5ad(path) if path.suffix == ".h5ad" else ad.read_zarr(path)
        record = {name: value for name, value in cells.uns["scperformer"].items() if name not in VOLATILE}
        text = cells.obs.to_csv() + cells.obsm["scperformer_proba"].to_csv() + repr(sorted(record))
        return hashlib.sha256(text.encode() + cells.obsm["X_scperformer"].tobytes()).hexdigest()
    if (path / "bundle.json").is_file():
        info = json.loads((path / "bundle.json").read_text())
        return str(sorted(info["files"].items()))
    if path.is_dir():  # an output of the workflow, or of predict
        return "".join(content(file) for file in sorted([*path.glob("annotated/*.h5ad"), *path.glob("*.h5ad")]))
    if path.suffix == ".html":
        text = path.read_text()
        assert text.rstrip().endswith("</html>")
        return str(len(text) // 10_000)  # contains times
    import gzip

    return hashlib.sha256(gzip.open(path).read()).hexdigest()


def fresh(inputs: Path, folder: Path) -> dict[str, str]:
    """Copy the inputs into an empty folder, and return the checksums of its files."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(inputs, folder)
    return checksums(folder)


def checksums(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def is_ours(name: str, step: Step) -> bool:
    first = name.partition("/")[0]
    return first in (*step.outputs, "results", ".snakemake") or TEMPORARY.match(first) is not None


def try_step(name: str, inputs: Path, folder: Path, moments: int) -> list[tuple[str, Counter[str]]]:
    """Kill a command with every signal at some moments; return a row for each signal."""
    step = STEPS[name]
    fresh(inputs, folder)
    begin = time.perf_counter()
    ran = start(step.words, folder)
    output, _ = ran.communicate()
    assert ran.returncode == 0, output
    seconds = time.perf_counter() - begin
    expected = {out: content(folder / out) for out in step.outputs}
    rows = []
    for kind in SIGNALS:
        row: Counter[str] = Counter()
        for moment in range(moments):
            before = fresh(inputs, folder)
            old = {out: content(folder / out) for out in step.outputs if (folder / out).exists()}
            process = start(step.words, folder)
            time.sleep(seconds * (moment + 0.5) / moments)
            ended = process.poll() is not None
            with contextlib.suppress(ProcessLookupError):  # it ended just before
                os.killpg(process.pid, getattr(signal, f"SIG{kind}"))
            printed, _ = process.communicate()
            row["sent"] += 1
            row["ended before"] += ended
            row["traceback"] += "Traceback" in printed or "internal error" in printed
            row["exit code"] = process.returncode if not ended else row["exit code"]
            after = checksums(folder)
            changed = [file for file in before if not is_ours(file, step) and after.get(file) != before[file]]
            litter = [file for file in after if file not in before and not is_ours(file, step)]
            row["lost or changed"] += len(changed)
            row["other files"] += len(litter)
            for out in step.outputs:
                if name == "workflow":
                    continue  # its files are checked after it has run again
                try:
                    found = content(folder / out) if (folder / out).exists() else None
                except Exception as error:  # noqa: BLE001 - any error means that it is incomplete
                    print(f"{name}, {kind}, {moment}: half {out}: {error}", file=sys.stderr)
                    row["half"] += 1
                    continue
                row["lost or changed"] += out in old and found not in (old[out], expected[out])
            words = step.words
            if not ended or name != "workflow":
                there = all((folder / out).exists() and content(folder / out) == expected[out] for out in step.outputs)
                if there and not old and name != "workflow":
                    words = ""  # it was written before the signal came
                elif step.again and name == "workflow":
                    words = step.words.replace("-- ", f"{step.again} ")
                elif step.again:
                    words = f"{step.words} {step.again}"
            if words:
                again = start(words, folder)
                printed, _ = again.communicate()
                if again.returncode != 0:
                    print(f"{name}, {kind}, {moment}: {words}\n{printed[-1500:]}", file=sys.stderr)
            same = all((folder / out).exists() and content(folder / out) == expected[out] for out in step.outputs)
            row["same again"] += same
            left = [entry for entry in folder.rglob("*") if re.match(r"\.scperformer-|.*\.partial$", entry.name)]
            row["left at the end"] += len(left)
        rows.append((kind, row))
    return rows


def race(name: str, words: tuple[str, str], output: str, inputs: Path, folder: Path) -> str:
    """Start two commands at once; return how both ended, and whether the output is complete."""
    fresh(inputs, folder)
    processes = [start(line, folder) for line in words]
    printed = [process.communicate()[0] for process in processes]
    codes = [process.returncode for process in processes]
    bad = sum("Traceback" in text or "internal error" in text for text in printed)
    whole = "whole"
    try:
        content(folder / output)
    except Exception as error:  # noqa: BLE001
        whole = f"not whole ({error})"
    errors = {line[:110] for text in printed for line in text.splitlines() if line.startswith("error: ")}
    return f"| {name} | {codes[0]}, {codes[1]} | {whole} | {bad} | {'; '.join(sorted(errors)) or 'none'} |"


RACES = {
    "two predictions, one output": (("predict cells.h5ad output=out.h5ad",) * 2, "out.h5ad"),
    "two predictions, replacing": (("predict cells.h5ad output=old.h5ad overwrite=true",) * 2, "old.h5ad"),
    "two trainings, one model": (("train some.h5ad label_key=cell_type output=m",) * 2, "m"),
    "two adaptations, one cache": (
        (
            "predict panel.h5ad adapted_folder=cache output=one.h5ad",
            "predict panel.h5ad adapted_folder=cache output=two.h5ad",
        ),
        "two.h5ad",
    ),
    "training over a model that predicts": (
        (
            "train some.h5ad label_key=cell_type output=old overwrite=true",
            "predict cells.h5ad model_path=old output=out.h5ad",
        ),
        "out.h5ad",
    ),
}
COLUMNS = ("sent", "ended before", "exit code", "traceback", "half", "lost or changed", "other files", "same again")
COLUMNS = (*COLUMNS, "left at the end")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=3, help="moments at which each signal is sent")
    parser.add_argument(
        "--only", default="", help="beginnings of commands, separated by commas; races: the second table"
    )
    args = parser.parse_args()
    wanted = tuple(filter(None, args.only.split(",")))
    print(machine())
    with tempfile.TemporaryDirectory() as temporary:
        inputs = Path(temporary) / "inputs"
        folder = Path(temporary) / "folder"
        inputs.mkdir()
        make_inputs(inputs)
        print(f"\n| Command | Signal | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 2)}")
        for name in STEPS:
            if not wanted or name.startswith(wanted):
                for kind, row in try_step(name, inputs, folder, args.moments):
                    print(f"| {name} | {kind} | {' | '.join(str(row[column]) for column in COLUMNS)} |", flush=True)
        print("\n| Two at once | Exit codes | Output | Traceback | Error |\n|---|---|---|---|---|")
        for name, (words, output) in RACES.items():
            if not wanted or "races".startswith(wanted):
                print(race(name, words, output, inputs, folder), flush=True)


if __name__ == "__main__":
    main()
