"""The step `workflow`: the words that it hands to snakemake."""

import subprocess
import sys
from pathlib import Path

import pytest

from scperformer.base.errors import InputError
from scperformer.command.words import to_overrides
from scperformer.command.workflow import run_workflow, snakemake_words, workflow_folder
from scperformer.config import WorkflowConfig, make_config


def words_of(*words: str) -> list[str]:
    found = snakemake_words(make_config("workflow", to_overrides(list(words), "workflow")))
    snakefile = found.index("--snakefile")
    assert found[snakefile + 1] == str(workflow_folder() / "Snakefile")
    return found[:snakefile] + found[snakefile + 2 :]


def test_options_are_the_configuration_and_the_rest_is_for_snakemake():
    words = words_of("my samples.tsv", "label_key=cell, type", "gpu=1", "--", "results/annotated/a.h5ad", "-n", "-j3")
    config = ["--config", 'samples="my samples.tsv"', 'label_key="cell, type"', "gpu=1"]
    assert words == ["results/annotated/a.h5ad", "-n", "-j3", *config]


def test_cores_are_given_unless_the_user_does():
    assert words_of("samples.tsv", "--", "-n")[1] == "--cores"
    for word in ("--cores=4", "--profile", "-j"):
        assert "--cores" not in words_of("samples.tsv", "--", word)
    assert "--cores" in words_of("samples.tsv", "--", "--jobscript", "job.sh")


def test_the_file_of_options_is_read_by_snakemake():
    assert words_of("--config", "my file.yaml", "--", "-j2") == ["-j2", "--configfile", "my file.yaml"]


def test_help_after_two_dashes_is_for_snakemake(command, monkeypatch):
    handed = []
    monkeypatch.setattr("scperformer.command.workflow.run_workflow", lambda cfg: handed.append(cfg.snakemake))
    assert command("workflow", "samples.tsv", "--", "--help").code == 0
    assert handed == [["--help"]]


def test_a_sweep_is_refused(command):
    ran = command("workflow", "samples.tsv", "-m", "model_path=a,b")
    assert ran.code == 2
    assert "error: 'workflow' with -m; expected one run of the workflow" in ran.err


def test_without_samples_and_example_data_a_sheet_is_asked_for(command, monkeypatch, tmp_path):
    monkeypatch.setattr("scperformer.command.workflow.workflow_folder", lambda: tmp_path)
    ran = command("workflow")
    assert ran.code == 2
    assert "no sample sheet; expected one with the columns sample and path" in ran.err


def test_without_snakemake_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("scperformer.command.workflow.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"no snakemake; expected .*: pip install snakemake"):
        run_workflow(WorkflowConfig(samples="samples.tsv"))


# Modules that the command line, Snakemake or Python's own runpy import.
IN_THE_WAY = ("yaml", "snakemake", "lazy_loader", "pandas", "typing_extensions", "sitecustomize")
PROGRAMS = {
    "the command": [str(Path(sys.executable).with_name("scperformer"))],
    "python -m": [sys.executable, "-m", "scperformer"],
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_file_of_the_working_folder_is_imported(program, tmp_path):
    for name in IN_THE_WAY:
        (tmp_path / f"{name}.py").write_text("open('marked', 'w')\nraise ImportError")
    (tmp_path / "samples.tsv").write_text("sample\tpath\na\ta.h5ad\n")
    (tmp_path / "a.h5ad").touch()
    (tmp_path / "model").mkdir()
    words = ["workflow", "samples.tsv", "model_path=model", "--", "-n"]
    ran = subprocess.run([*PROGRAMS[program], *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "snakemake samples.tsv" in ran.stderr or "snakemake -n" in ran.stderr, ran.stderr
    assert not (tmp_path / "marked").exists(), ran.stderr
