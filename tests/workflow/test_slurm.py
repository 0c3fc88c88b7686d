"""The workflow on a real Slurm of two nodes: lack of memory, failing nodes, hanging jobs."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support.cluster import (
    ENVIRONMENT,
    LONGEST_WAIT,
    ROOT,
    fail_node,
    restart_nodes,
    slurm_says,
    wait_for,
)
from support.small_example import SAMPLES, write_small_example

pytestmark = [pytest.mark.slurm, pytest.mark.usefixtures("slurm")]

# The profile, and what saves waiting.
HERE = [
    *("--profile", str(ROOT / "workflows/profiles/slurm")),
    *("--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "2"),
]
RUNNING: list[subprocess.Popen[str]] = []


def snakemake(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start the workflow in a folder; what it says is in the file `log` there."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), *words]
    with (folder / "log").open("w") as log:
        RUNNING.append(
            subprocess.Popen(
                command, cwd=folder, env=ENVIRONMENT, text=True, stdout=log, stderr=log
            )
        )
    return RUNNING[-1]


@pytest.fixture(autouse=True)
def nothing_left():
    """After a test, also a failed one: end what it started, and restart nodes that it killed."""
    yield
    for process in RUNNING:
        process.kill()
    RUNNING.clear()
    subprocess.run(["scancel", "--user=root"], check=True)
    restart_nodes()


def finish(process: subprocess.Popen[str], folder: Path, seconds: float = LONGEST_WAIT) -> str:
    """Wait for the workflow, which has to end well; what it said."""
    code = process.wait(timeout=seconds)
    said = (folder / "log").read_text()
    assert code == 0, said
    return said


TOO_MUCH = (
    f"{shlex.quote(sys.executable)} -c 'import time; data = bytes(1) * 2**30; time.sleep(600)'"
)


@contextmanager
def instead(folder: Path, name: str = "scperformer", **does: str) -> Iterator[None]:
    """Let commands of a program that have one of these words do something else."""
    cases = "".join(f"*{word}*) {what};;\n" for word, what in does.items())
    program = folder / "bin" / name
    program.parent.mkdir()
    go_on = (
        f'exec {shlex.quote(sys.executable)} -m scperformer "$@"' if name == "scperformer" else ""
    )
    program.write_text(f'#!/bin/bash\ncase "$*" in\n{cases}esac\n{go_on}\n')
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENVIRONMENT, "PATH", f"{program.parent}{os.pathsep}{ENVIRONMENT['PATH']}")
        yield


def require_same_calls(one: Path, other: Path) -> None:
    """Fail unless two annotated files say the same of the same cells, bit for bit."""
    first, second = ad.read_h5ad(one), ad.read_h5ad(other)
    pd.testing.assert_frame_equal(first.obs, second.obs)
    pd.testing.assert_frame_equal(first.obsm["scperformer_proba"], second.obsm["scperformer_proba"])
    np.testing.assert_array_equal(first.obsm["X_scperformer"], second.obsm["X_scperformer"])


def test_annotate_survives_lack_of_memory_and_a_node_that_fails(tmp_path):
    """The whole target, with a GPU asked for; the results are those of the same run here."""
    here, cluster = tmp_path / "here", tmp_path / "cluster"
    epochs = ["trainer.max_epochs=60", "trainer.patience=60"]  # long enough to be interrupted
    train = [
        "trainer.accelerator=cpu",
        "trainer.precision=32-true",
        "model=tiny",
        "model.linear=false",
        *epochs,
    ]
    write_small_example(tmp_path / "small")
    data = ["reference=../small/reference.h5ad", "sample_sheet=../small/samples.tsv"]
    config = ["annotate", "--config", *data, "gpu=1", f"overrides={{train: [{','.join(train)}]}}"]
    for folder in (here, cluster):
        folder.mkdir()
    # The first job that prepares the reference takes three times the memory that it asked for.
    with instead(tmp_path, preprocess=f"[ -e done ] || {{ touch done; {TOO_MUCH}; exit 1; }}"):
        run = snakemake(cluster, *config, *HERE, "--set-resources", "prepare:mem_mb=350 * attempt")
    wait_for((cluster / "results/model.run/checkpoints/last.ckpt").exists, run)
    job, node = slurm_says("squeue", "-h", "-t", "R", "-o", "%i %N").split()
    assert "gpu:1" in slurm_says("scontrol", "show", "job", job)
    fail_node(node)
    assert "Slurm keeps no accounts: squeue tells how jobs end" in finish(run, cluster)
    said = "".join(
        log.read_text() for log in cluster.glob(".snakemake/slurm_logs/rule_prepare/**/*.log")
    )
    assert "exceeded memory limit" in said
    assert "continuing the run" in (cluster / "results/logs/train.log").read_text()
    assert "Restarts=1" in slurm_says("scontrol", "show", "job", job)
    finish(snakemake(here, *config, "--cores", "2"), here)
    for name in SAMPLES:
        require_same_calls(
            *(folder / f"results/annotated/{name}.h5ad" for folder in (here, cluster))
        )
    assert (cluster / "results/report.html").stat().st_size > 0


def test_the_limit_that_ended_a_job_is_the_reason(tmp_path):
    """One sample takes too much memory, the other too much time."""
    write_small_example(tmp_path)
    words = [
        "annotate",
        *HERE,
        "--retries",
        "0",
        "--set-resources",
        "predict:mem_mb=700",
        "predict:runtime=1",
    ]
    with instead(
        tmp_path, **{"predict[^=]*sample_a": TOO_MUCH, "predict[^=]*sample_b": "sleep 600"}
    ):
        run = snakemake(
            tmp_path, *words, "--config", "model_path=pbmc3k", "sample_sheet=samples.tsv"
        )
        assert run.wait(timeout=LONGEST_WAIT) == 1
    table = pd.read_csv(tmp_path / "results/samples.csv", index_col="sample")
    for name, what, resource in (
        ("sample_a", "memory ran out", "mem_mb"),
        ("sample_b", "the time was over", "runtime"),
    ):
        reason = (
            f"{what}, and Slurm ended its job; ask for more by --set-resources predict:{resource}=N"
        )
        assert table.loc[name, "reason"] == reason
        assert "slurmstepd" in Path(table.loc[name, "log"]).read_text()
        assert f"{name}, {reason}" in (tmp_path / "log").read_text().rstrip().splitlines()[-1]


ACCOUNTS = """squeue --noheader --states=all --format='%i|%T' --name "${*: -1}"; exit"""


def test_where_slurm_keeps_accounts_they_tell_how_jobs_end(tmp_path):
    """A stand-in for `sacct`, because the test cluster keeps none; `squeue` answers it."""
    write_small_example(tmp_path)
    config = ["model_path=pbmc3k", "sample_sheet=samples.tsv"]
    with instead(tmp_path, "sacct", **{"format=JobIdRaw": f"touch asked; {ACCOUNTS}"}):
        said = finish(snakemake(tmp_path, "annotate", *HERE, "--config", *config), tmp_path)
    assert "Slurm keeps accounts: sacct tells how jobs end" in said
    assert (tmp_path / "asked").exists()
