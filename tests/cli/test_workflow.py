"""The step `workflow`: the words that it hands to snakemake."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scperformer.cli.arguments import sort_words
from scperformer.cli.compose import make_config
from scperformer.cli.steps import STEPS
from scperformer.cli.workflow import snakemake_words, workflow_folder

ROOT = Path(__file__).parents[2]


def words_of(*words: str) -> list[str]:
    found = snakemake_words(make_config("workflow", sort_words(list(words), "workflow")[0]))
    snakefile = found.index("--snakefile")
    assert found[snakefile + 1] == str(workflow_folder() / "Snakefile")
    return found[:snakefile] + found[snakefile + 2 :]


def test_options_are_the_configuration_and_the_rest_is_for_snakemake():
    words = words_of(
        "my samples.tsv",
        "label_key=cell, type",
        "gpu=1",
        "--",
        "results/annotated/a.h5ad",
        "-n",
        "-j3",
    )
    config = ["--config", 'sample_sheet="my samples.tsv"', 'label_key="cell, type"', "gpu=1"]
    assert words == ["results/annotated/a.h5ad", "-n", "-j3", *config]


def test_cores_are_given_unless_the_user_does():
    assert words_of("samples.tsv", "--", "-n")[1] == "--cores"
    for word in ("--cores=4", "--profile", "-j"):
        assert "--cores" not in words_of("samples.tsv", "--", word)
    assert "--cores" in words_of("samples.tsv", "--", "--jobscript", "job.sh")


def test_unlock_may_stand_anywhere_as_snakemake_recommends_it():
    assert words_of("samples.tsv", "--unlock", "gpu=1", "--", "-j1")[:2] == ["--unlock", "-j1"]
    assert words_of("samples.tsv", "--", "-j1", "--unlock")[:2] == ["-j1", "--unlock"]


def test_other_words_of_snakemake_are_refused_with_their_place(refused):
    assert refused("workflow", "samples.tsv", "--dry-run").endswith(
        "after --: scperformer workflow ... -- --dry-run."
    )


def test_help_after_two_dashes_is_for_snakemake(command, monkeypatch):
    handed = []
    monkeypatch.setattr(STEPS["workflow"], "run", lambda cfg: handed.append(cfg.snakemake))
    assert command("workflow", "samples.tsv", "--", "--help").code == 0
    assert handed == [["--help"]]


# Modules that the command line, Snakemake or Python's own runpy import.
IN_THE_WAY = ("yaml", "snakemake", "pandas", "typing_extensions", "sitecustomize")
PROGRAMS = {
    "the command": [str(Path(sys.executable).with_name("scperformer"))],
    "python -m": [sys.executable, "-m", "scperformer"],
}


@pytest.mark.parametrize(
    "program", ["the command", pytest.param("python -m", marks=pytest.mark.slow)]
)
def test_no_file_of_the_working_folder_is_imported(program, tmp_path):
    for name in IN_THE_WAY:
        (tmp_path / f"{name}.py").write_text("open('marked', 'w')\nraise ImportError")
    (tmp_path / "samples.tsv").write_text("sample\tpath\na\ta.h5ad\n")
    (tmp_path / "a.h5ad").touch()
    (tmp_path / "model").mkdir()
    words = ["workflow", "samples.tsv", "model_path=model", "--", "-n"]
    ran = subprocess.run(
        [*PROGRAMS[program], *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "snakemake samples.tsv" in ran.stderr or "snakemake -n" in ran.stderr, ran.stderr
    assert not (tmp_path / "marked").exists(), ran.stderr


HANGS = """\
#!/bin/bash
trap 'echo ended > job.ended; exit 143' TERM
echo $$ > job.started
sleep 60 & wait
"""


@pytest.fixture
def hanging(tmp_path):
    """Start the workflow, whose first job hangs: the process, which says all in stdout, and its folder."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/scperformer").write_text(HANGS)
    (tmp_path / "bin/scperformer").chmod(0o755)
    (tmp_path / "a.h5ad").touch()
    (tmp_path / "s.tsv").write_text("sample\tpath\na\ta.h5ad\n")
    env = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    command = [
        sys.executable,
        "-m",
        "scperformer",
        "workflow",
        "s.tsv",
        "model_path=pbmc3k",
        "--",
        "-j1",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    yield process, tmp_path
    process.kill()


def wait_for(path):
    for _ in range(6000):  # a busy machine may need minutes
        if path.exists() and path.read_text():
            return path.read_text()
        time.sleep(0.1)
    raise TimeoutError(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "last"), [(2, "interrupted"), (15, "ended by SIGTERM")], ids=["INT", "TERM"]
)
@pytest.mark.parametrize("when", ["start", "job"])
def test_a_signal_ends_the_jobs_and_is_one_line(hanging, number, last, when):
    process, folder = hanging
    said = ""
    while "snakemake -j1" not in said:  # the line before snakemake starts
        said += process.stdout.readline()
    if when == "job":
        wait_for(folder / "job.started")
    process.send_signal(number)
    said += process.communicate(timeout=600)[0]
    assert process.returncode == 128 + number
    assert said.splitlines()[-1] in (last, f"{last}; the same command continues it")
    assert "Traceback" not in said
    assert "Error" not in said
    if when == "job":
        wait_for(folder / "job.ended")
        assert not list(folder.glob(".snakemake/locks/*"))
        assert (
            (folder / "results/samples.csv")
            .read_text()
            .splitlines()[1]
            .startswith("a,not annotated,,")
        )


@pytest.mark.slow
def test_a_killed_snakemake_gives_137(hanging):
    process, folder = hanging
    job = int(wait_for(folder / "job.started"))
    os.kill(os.getpgid(job), signal.SIGKILL)
    said = process.communicate(timeout=600)[0]
    assert process.returncode == 137
    assert said.splitlines()[-1].startswith(
        "error: snakemake was ended by SIGKILL: run the same command with --unlock"
    )
    wait_for(folder / "job.ended")
    words = process.args[1:-1]  # without -j1
    unlocked = subprocess.run(
        [sys.executable, *words, "--unlock"], cwd=folder, capture_output=True, check=False
    )
    assert unlocked.returncode == 0, unlocked.stderr
    assert not list(folder.glob(".snakemake/locks/*"))
