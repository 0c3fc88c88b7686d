"""Training in the jobs of a real Slurm: on two nodes as in one process, stopped and requeued, in a bench."""

import csv
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from support.cluster import ENVIRONMENT, LONGEST_WAIT, ROOT, slurm_says, wait_for

from scperformer.model.folder import read_model

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm")]

# The encoder alone, with nothing that is drawn anew for each process.
PLAIN = [
    "model=tiny",
    "model.linear=false",
    "model.dropout=0",
    "model.gene_dropout=0",
    "logger=none",
]
TWO_NODES = ["trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=1", "trainer.num_nodes=2"]
SRUN = ["srun", "--nodes=2", "--ntasks-per-node=1", "--mem=2000"]
TIMES = ["seconds"]


def train(folder: Path, output: str, *words: str, on: list[str]) -> Path:
    """Train on the cells in a folder, on one or two nodes; the model folder."""
    command = [
        *on,
        "scperformer",
        "train",
        "cells.h5ad",
        "label_key=cell_type",
        f"output={output}",
        *PLAIN,
        *words,
    ]
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=LONGEST_WAIT
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("written:") == 1
    return folder / output


def history(model: Path) -> dict[str, np.ndarray]:
    """The table of epochs by column."""
    with (model / "metrics.csv").open() as table:
        rows = list(csv.DictReader(table))
    return {
        name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name not in TIMES
    }


def same_weights(one: Path, other: Path) -> bool:
    first, second = read_model(one).weights, read_model(other).weights
    return all(np.array_equal(first[name], second[name]) for name in first)


@pytest.fixture
def folder(counts_adata, tmp_path) -> Path:
    # an odd number: the last batch has halves of two sizes
    counts_adata[:101].copy().write_h5ad(tmp_path / "cells.h5ad")
    return tmp_path


def test_two_nodes_train_as_one_process_with_twice_the_batch(folder):
    options = ["trainer.max_epochs=4", "seed=1"]
    one = train(folder, "one", *options, "trainer.batch_size=16", on=["srun", "--mem=2000"])
    two = train(folder, "two", *options, "trainer.batch_size=8", *TWO_NODES, on=SRUN)
    again = train(folder, "again", *options, "trainer.batch_size=8", *TWO_NODES, on=SRUN)
    for name, values in history(one).items():
        np.testing.assert_allclose(history(two)[name], values, rtol=1e-5, atol=1e-6, err_msg=name)
    weights = read_model(one).weights
    for name, values in read_model(two).weights.items():
        # Adam divides by the size of a gradient: where that is nearly 0, rounding is of its size.
        np.testing.assert_allclose(values, weights[name], atol=1e-3, err_msg=name)
    assert same_weights(two, again)


def test_a_requeued_job_continues_from_its_last_step(folder):
    """The batch script of docs/workflow.md, stopped by `scontrol requeue` and by the signal before the time is over."""
    page = (ROOT / "docs/workflow.md").read_text(encoding="utf-8")
    script = re.search(
        r"^#!/bin/bash\n(?:.*\n)*?.*--signal=USR1(?:.*\n)*?(?=```)", page, flags=re.MULTILINE
    )[0]
    options = [
        *PLAIN,
        "trainer.max_epochs=160",  # long enough not to end before the second signal
        "trainer.patience=160",
        "trainer.batch_size=4",
        "trainer.accelerator=cpu",
    ]
    ours = script.replace("reference.h5ad", "cells.h5ad").replace(
        "trainer=ddp", f"trainer=ddp {' '.join(options)}"
    )
    ours = re.sub(r"^#SBATCH --(partition|account|gpus-per-node).*\n", "", ours, flags=re.MULTILINE)
    ours = ours.replace("--mem=16G", "--mem=2000").replace("--cpus-per-task=4", "--cpus-per-task=1")
    (folder / "train.sbatch").write_text(ours)
    job = subprocess.run(
        ["sbatch", "--parsable", "train.sbatch"],
        cwd=folder,
        env=ENVIRONMENT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()

    def said(what: str) -> int:
        log = folder / "train.log"
        return log.read_text().count(what) if log.exists() else 0

    wait_for(lambda: said("epoch 3/"))
    subprocess.run(["scontrol", "requeue", job], check=True)
    wait_for(lambda: said("SIGTERM: saved after step") and said("continuing the run"))
    wait_for(lambda: said("epoch 30/"))
    subprocess.run(["scancel", "--signal=USR1", job], check=True)
    wait_for(lambda: said("SIGUSR1: saved after step") and said("continuing the run") == 2)
    wait_for(lambda: said("written: my_model"))
    wait_for(lambda: "COMPLETED" in slurm_says("scontrol", "show", "job", job))
    assert "Restarts=2" in slurm_says("scontrol", "show", "job", job)
    whole = train(
        folder,
        "whole",
        *options,
        "trainer=ddp",
        "trainer.devices=1",
        "trainer.num_nodes=2",
        on=SRUN,
    )
    assert same_weights(folder / "my_model", whole)


def test_each_run_of_a_bench_is_a_job(folder):
    words = [
        "bench",
        "cells.h5ad",
        "label_key=cell_type",
        *PLAIN,
        "trainer.max_epochs=1",
        "seed=0,1",
    ]
    launcher = [
        "hydra/launcher=submitit_slurm",
        "hydra.launcher.mem_gb=2",
        "hydra.launcher.timeout_min=5",
    ]
    command = ["scperformer", *words, *launcher]
    done = subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, timeout=LONGEST_WAIT
    )
    assert done.returncode == 0, done.stderr
    with (folder / "bench" / "runs.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert [(row["seed"], row["error"]) for row in rows] == [("0", ""), ("1", "")]
    assert all(float(row["cpu_seconds"]) > 1 for row in rows)
