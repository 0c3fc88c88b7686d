"""The Snakemake workflow: what it refuses, what it plans (dry runs), and one real run on the embedded data."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from support import forked
from support.fake_steps import write_fake_steps

ROOT = Path(__file__).parents[2]
SAMPLES = ("sample_full", "sample_shallow", "sample_panel")
PLACED = ("settle", "deliver")  # what follows predict, for each sample
PREDICTED = [f"{rule} {name}" for name in SAMPLES for rule in ("predict", *PLACED)]
STEPS_AFTER_PREDICT = ["evaluate", "report"]


def snakemake(folder: Path, *words: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run snakemake in a folder with the workflow and the package of a checkout; both outputs in stdout.

    Programs in the folder `bin` there come before all others.
    """
    places = str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]
    env = {
        "PATH": os.pathsep.join(places),
        "PYTHONPATH": str(root),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    words = ("--snakefile", str(root / "Snakefile"), "--cores", "2", *words)
    return forked.run("snakemake", *words, cwd=folder, joined=True, **env)


def planned(folder: Path, *words: str, root: Path = ROOT) -> tuple[list[str], str]:
    """The jobs of a dry run, sorted: "predict sample", of a job for several samples the first; and all that it says."""
    run = snakemake(folder, "--dry-run", "--printshellcmds", *words, root=root)
    assert run.returncode == 0, run.stdout
    blocks = re.findall(r"^(?:local)?rule (\w+):\n((?:    .*\n)+)", run.stdout, flags=re.MULTILINE)
    jobs = set()
    for rule, block in blocks:
        sample = re.search(r"wildcards: (?:sample|job|reference)=([^\s,]+)", block)
        jobs.add(f"{rule} {sample[1]}" if sample else rule)
    return sorted(jobs - {"annotate", "all"}), run.stdout


def plan(folder: Path, *words: str, root: Path = ROOT) -> list[str]:
    """The jobs of a dry run."""
    return planned(folder, *words, root=root)[0]


def running_in(folder: Path) -> list[int]:
    """The processes of snakemake and its jobs whose working directory is a folder."""
    return [
        int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cwd") if is_at(path, folder)
    ]


def is_at(cwd: Path, folder: Path) -> bool:
    try:
        return cwd.resolve() == folder
    except OSError:  # it has ended, or is another user's
        return False


def write_sheet(path: Path, *rows: str) -> None:
    """A sample sheet from rows whose fields are separated by one space."""
    path.write_text("".join("\t".join(row.split(" ")) + "\n" for row in rows))


def write_inputs(folder: Path) -> Path:
    for name in "abc":
        (folder / f"{name}.h5ad").touch()
        (folder / f"{name}.csv").write_text(
            "cell,cell_type,type,{wildcards.sample} {x\ncell0,B,B,B\n"
        )
    labels = pd.DataFrame({"cell_type": ["B", "T"], "type": ["B", "T"]}, index=["cell0", "cell1"])
    ad.AnnData(np.eye(2, dtype=np.float32), obs=labels).write_h5ad(folder / "reference.h5ad")
    (folder / "model").mkdir()
    write_sheet(
        folder / "samples.tsv", "sample path truth", "a a.h5ad a.csv", "b b.h5ad b.csv", "c c.h5ad "
    )
    return folder


@pytest.fixture
def user(tmp_path: Path) -> Path:
    """A folder with a reference and three samples; dry runs look for labels alone."""
    return write_inputs(tmp_path)


# --- plans ---------------------------------------------------------------------------------------------------


def test_default_plan_is_the_embedded_example(tmp_path: Path) -> None:
    assert plan(tmp_path) == sorted(
        ["example", "pancreas", "prepare reference", "train", *PREDICTED, *STEPS_AFTER_PREDICT]
    )


def test_without_a_model_nothing_is_trained(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCPERFORMER_MODEL", raising=False)
    jobs, said = planned(user, "--config", "sample_sheet=samples.tsv")
    rules = ("predict", *PLACED)
    assert jobs == sorted(
        [*(f"{rule} {name}" for rule in rules for name in "abc"), "evaluate", "report"]
    )
    assert "model_path" not in said
    assert re.search(r"scperformer predict a\.h5ad +'?output=", said)


@pytest.mark.slow
def test_many_small_samples_share_jobs(user: Path) -> None:
    """b is large, and c to g are small."""
    for name in "defg":
        (user / f"{name}.h5ad").touch()
    os.truncate(user / "b.h5ad", 2 * 10**7 + 1)
    write_sheet(user / "samples.tsv", "sample path", *(f"{name} {name}.h5ad" for name in "bcdefg"))
    words = ["--config", "model_path=model", "sample_sheet=samples.tsv"]
    placed = [f"{rule} {name}" for rule in PLACED for name in "bcdefg"]
    always = ["predict b", "report", *placed]
    assert plan(user, *words, "predict_jobs=5") == sorted(
        [*always, *(f"predict {name}" for name in "cdefg")]
    )
    jobs, said = planned(user, *words, "predict_jobs=2")
    assert jobs == sorted([*always, "predict c~e", "predict f~g"])
    assert "predict c.h5ad d.h5ad e.h5ad model_path=model" in said
    assert "predict f.h5ad g.h5ad model_path=model" in said


GPUS = {0: "trainer=cpu trainer.threads", 1: "trainer=gpu trainer.threads"}
GPUS[2] = "trainer=gpu trainer.devices=2 trainer.threads"


@pytest.mark.slow
@pytest.mark.parametrize("count", GPUS)
def test_training_and_prediction_ask_for_gpus(user: Path, count: int) -> None:
    config = ["reference=reference.h5ad", "sample_sheet=samples.tsv", f"gpu={count}"]
    run = snakemake(user, "--dry-run", "--printshellcmds", "--config", *config)
    assert GPUS[count] in run.stdout
    asking = re.findall(
        r"^rule (\w+):(?:\n    .*)*?\n    resources: .*\bgpu=(\d)", run.stdout, flags=re.MULTILINE
    )
    assert {(rule, int(num)) for rule, num in asking} == {
        ("train", count),
        ("predict", min(count, 1)),
    }
    assert ("device=auto" if count else "device=cpu") in run.stdout


# --- runs with a program that only writes files ---------------------------------------------------------------


@pytest.fixture(scope="module")
def _done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_inputs(tmp_path_factory.mktemp("done"))
    write_fake_steps(folder / "bin")
    run = snakemake(folder, "--config", *ONE_JOB)
    assert run.returncode == 0, run.stdout
    return folder


@pytest.fixture
def done(_done: Path, tmp_path: Path) -> Path:
    """A copy of a folder like `user` after a run; c has no truth, and all samples share a job."""
    return Path(shutil.copytree(_done, tmp_path / "done", symlinks=True))


ONE_JOB = ["reference=reference.h5ad", "sample_sheet=samples.tsv", "predict_jobs=1"]
# Columns of samples.csv.
OF_ANNOTATION = (
    "cells",
    "tissue",
    "looks_like",
    "unknown_share",
    "expected_lowest",
    "expected_highest",
)
HEADER, A, B, C = "sample path truth", "a a.h5ad a.csv", "b b.h5ad b.csv", "c c.h5ad "
NEW_SAMPLE = [f"{rule} d" for rule in ("predict", *PLACED)]


@pytest.mark.slow
def test_a_changed_sheet_concerns_only_the_samples_that_changed(done: Path) -> None:
    assert plan(done, "--config", *ONE_JOB) == []
    (done / "d.h5ad").touch()
    sheets = {
        (A, B, C, "d d.h5ad "): [*NEW_SAMPLE, "report"],
        ("d d.h5ad ", A, B, C): [*NEW_SAMPLE, "report"],
        (B, A, C): STEPS_AFTER_PREDICT,  # the order of the samples is that of the pages
        (A, B): ["report"],
        (B, C): STEPS_AFTER_PREDICT,
        ("a d.h5ad a.csv", B, C): [
            *(f"{rule} a" for rule in ("predict", *PLACED)),
            *STEPS_AFTER_PREDICT,
        ],
    }
    for rows, jobs in sheets.items():
        write_sheet(done / "samples.tsv", HEADER, *rows)
        assert plan(done, "--config", *ONE_JOB) == sorted(jobs), rows


@pytest.mark.slow
def test_an_upgrade_repeats_what_gives_other_results(done: Path, checkout: Path) -> None:
    """Not a new option, nor a command with other words; but another version of the results."""
    options, steps = (
        checkout / "scperformer" / path for path in ("config/annotation.py", "config/steps.py")
    )
    annotate = checkout / "workflows/rules/annotate.smk"
    option = "    batch_size: int = option("
    with (
        replaced(
            options, option, f'    new_option: bool = option(False, help="a new one")\n{option}'
        ),
        replaced(
            annotate,
            "scperformer predict {input.sample:q}",
            "scperformer  predict {input.sample:q}",
        ),
    ):
        assert (
            plan(
                done,
                "--config",
                *ONE_JOB,
                "overrides={predict: {new_option: false}}",
                root=checkout,
            )
            != []
        )
        assert plan(done, "--config", *ONE_JOB, root=checkout) == []
    with replaced(steps, "RESULT_VERSION = ", "RESULT_VERSION = 1000"):
        assert {"prepare reference", "train", "predict a~c", "report"} <= set(
            plan(done, "--config", *ONE_JOB, root=checkout)
        )


@pytest.mark.slow
def test_a_bad_sample_costs_a_row_of_the_report(done: Path) -> None:
    """The report is made with the reason, the exit code tells of it; another file or program tries it again."""
    (done / "d.h5ad").write_text("bad")
    write_sheet(done / "samples.tsv", HEADER, A, "d d.h5ad ", B, C)
    for jobs in ([*NEW_SAMPLE, "report"], ["deliver d"]):
        assert plan(done, "--config", *ONE_JOB) == sorted(jobs)
        run = snakemake(done, "--config", *ONE_JOB)
        assert run.returncode == 1
        assert re.findall(r"^Error in rule (\w+):$", run.stdout, re.MULTILINE) == ["deliver"]
        assert '"error": "bad; expected good: mend it."' in run.stdout
        assert sorted(path.name for path in (done / "results/annotated").iterdir()) == [
            "a.h5ad",
            "b.h5ad",
            "c.h5ad",
        ]
        rows = (done / "results/report.html").read_text().splitlines()
        assert [Path(row).name for row in rows] == ["a.h5ad", "d.failed.json", "b.h5ad", "c.h5ad"]
    table = pd.read_csv(done / "results/samples.csv", index_col="sample", keep_default_na=False)
    assert list(table.index) == ["a", "d", "b", "c"]
    reason = {"reason": "bad; expected good: mend it.", "log": "results/logs/deliver/d.log"}
    assert dict(table.loc["d"]) == {"status": "failed"} | dict.fromkeys(OF_ANNOTATION, "") | reason
    failed = done / "results/samples/d/d.failed.json"
    failed.write_text(json.dumps(json.loads(failed.read_text()) | {"version": "0.0.1"}))
    assert plan(done, "--config", *ONE_JOB) == sorted([*NEW_SAMPLE, "report"])
    assert snakemake(done, "--config", *ONE_JOB).returncode == 1
    (done / "d.h5ad").write_text("good")
    assert plan(done, "--config", *ONE_JOB) == sorted([*NEW_SAMPLE, "report"])
    assert snakemake(done, "--config", *ONE_JOB).returncode == 0
    assert (done / "results/annotated/d.h5ad").exists()
    assert "failed" not in (done / "results/samples.csv").read_text()


REFUSES = """\
#!/bin/bash
case $1 in
    preprocess) if [ -e tried ]; then touch "${3#output=}"; else touch tried; exit 137; fi;;
    train) echo "epoch 1"; echo "error: one label; expected two: add one."; echo >> trained; exit 2;;
esac
"""


@pytest.mark.slow
def test_a_job_that_refuses_its_input_is_not_tried_again_and_is_the_reason(user: Path) -> None:
    """A job that was killed is tried again."""
    (user / "bin").mkdir()
    (user / "bin/scperformer").write_text(REFUSES)
    (user / "bin/scperformer").chmod(0o755)
    run = snakemake(user, "--retries", "2", "--config", *ONE_JOB)
    assert run.returncode == 1
    assert (user / "tried").exists()
    assert (user / "trained").read_text() == "\n"
    last = run.stdout.rstrip().splitlines()[-1]
    assert last.startswith(
        "0 annotated, 3 failed: a, one label; expected two: add one; b, one label"
    ), last
    table = pd.read_csv(user / "results/samples.csv")
    assert set(table["status"]) == {"not annotated"}
    assert set(table["reason"]) == {"one label; expected two: add one."}
    assert set(table["log"]) == {"results/logs/train.log"}


KILLED = "its job ended without an error: was it killed, perhaps for lack of memory?"
ENDS = {
    "killed": ("kill -KILL $$", KILLED),
    "killed later": (
        "echo 'read a.h5ad'; kill -KILL $$",
        f"{KILLED} Its log ends with: read a.h5ad",
    ),
    "a bug": (
        "echo 'internal error: TypeError.'; echo 'Please report it.'; exit 1",
        "internal error: TypeError.",
    ),
    "memory": (
        "echo 'error: memory ran out; expected more: take it.'; exit 2",
        "memory ran out; expected more: take it.",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", ENDS)
def test_why_a_job_ended_is_the_reason(user: Path, case: str) -> None:
    does, reason = ENDS[case]
    (user / "bin").mkdir()
    (user / "bin/scperformer").write_text(f"#!/bin/bash\necho >> tried\n{does}\n")
    (user / "bin/scperformer").chmod(0o755)
    run = snakemake(
        user,
        "--retries",
        "1",
        "--config",
        "model_path=model",
        "sample_sheet=samples.tsv",
        "predict_jobs=1",
    )
    assert run.returncode == 1
    assert (user / "tried").read_text() == "\n\n"
    table = pd.read_csv(user / "results/samples.csv")
    assert set(table["reason"]) == {reason}


@pytest.mark.slow
def test_a_second_run_is_refused_in_one_line_until_the_first_has_ended(user: Path) -> None:
    (user / "bin").mkdir()
    (user / "bin/scperformer").write_text("#!/bin/bash\ntouch started\nsleep 60\n")
    (user / "bin/scperformer").chmod(0o755)
    config = ["--config", *ONE_JOB]
    with ThreadPoolExecutor() as pool:
        first = pool.submit(snakemake, user, *config)
        while not (user / "started").exists():
            assert not first.done(), first.result().stdout
            time.sleep(0.1)
        second = snakemake(user, "--quiet", "all", *config)
        assert second.returncode == 2
        assert second.stdout.splitlines()[-1].startswith(
            f"error: another run of the workflow in {user} "
        )
        assert "--unlock" in second.stdout
        assert "Exception" not in second.stdout
        assert plan(user, *config)  # a look does no harm
        for pid in running_in(user):
            os.kill(pid, signal.SIGKILL)
    assert snakemake(user, *config).returncode == 2
    assert snakemake(user, "--unlock", *config).returncode == 0
    write_fake_steps(user / "bin2")
    (user / "bin2/scperformer").replace(user / "bin/scperformer")
    assert snakemake(user, *config).returncode == 0


PROVENANCE = {
    "profiles": (
        {},
        {},
        r"without training: by published profiles of the cell types of each sample's tissue",
    ),
    "a model": ({"model_path": "model"}, {}, r"by the model model, which was used as it is"),
    "a model of the environment": (
        {},
        {"SCPERFORMER_MODEL": "model"},
        r"by the model model, which was used as it is",
    ),
    "a reference": (
        {"reference": "reference.h5ad"},
        {},
        r"by a model that was trained on reference\.h5ad \(labels in obs",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", PROVENANCE)
def test_the_report_of_snakemake_says_what_annotated_the_cells(
    user: Path, monkeypatch, case: str
) -> None:
    given, environment, expected = PROVENANCE[case]
    monkeypatch.delenv("SCPERFORMER_MODEL", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    write_fake_steps(user / "bin")
    config = [
        "--config",
        "sample_sheet=samples.tsv",
        *(f"{key}={value}" for key, value in given.items()),
    ]
    run = snakemake(user, *config)
    assert run.returncode == 0, run.stdout
    run = snakemake(user, "--report", "all.html", *config)
    assert run.returncode == 0, run.stdout
    page = " ".join(
        (user / "all.html").read_text().replace("&#x27;", "'").replace("\\n", " ").split()
    )
    assert re.search(expected, page)
    assert "embedded PBMC" not in page


MODULES = """
module one:
    snakefile: "{root}/Snakefile"
    config: config["one"]
use rule * from one as one_*
module example:
    snakefile: "{root}/Snakefile"
use rule * from example as example_*
rule both:
    default_target: True
    input: rules.one_annotate.input, rules.example_annotate.input
"""


@pytest.mark.slow
def test_as_modules_of_another_workflow(user: Path) -> None:
    """One with the keys that a user needs, from a folder of its own, and one without any."""
    (user / "Snakefile").write_text(MODULES.format(root=ROOT))
    (user / "elsewhere").mkdir()
    data = {
        "reference": "../reference.h5ad",
        "sample_sheet": "../samples.tsv",
        "label_key": "type",
        "output_dir": "one",
    }
    words = ["--directory", "elsewhere", "--config", f"one={json.dumps(data)}"]
    run = snakemake(user, "--snakefile", "Snakefile", "--dry-run", "--quiet", "rules", *words)
    assert run.returncode == 0, run.stdout
    jobs = dict(re.findall(r"^(\w+) +(\d+)$", run.stdout, flags=re.MULTILINE))
    assert {
        name: int(jobs[name])
        for name in ("one_train", "one_predict", "one_settle", "example_example")
    } == {"one_train": 1, "one_predict": 3, "one_settle": 3, "example_example": 1}


@pytest.mark.slow
def test_braces_in_texts_of_the_user_are_texts(user: Path) -> None:
    odd = "{wildcards.sample} {x"
    labels = ad.read_h5ad(user / "reference.h5ad")
    labels.obs[odd] = labels.obs["type"]
    labels.write_h5ad(user / "reference.h5ad")
    shutil.copy(user / "samples.tsv", user / "my{sheet}.tsv")
    steps = {
        "train": {"tissue": "{t}"},
        "predict": {"clusters": "{c}"},
        "report": {"sample_key": "{r}"},
    }
    data = {
        "reference": "reference.h5ad",
        "sample_sheet": "my{sheet}.tsv",
        "label_key": odd,
        "overrides": steps,
    }
    jobs, said = planned(
        user, "--config", *(f"{key}={json.dumps(value)}" for key, value in data.items())
    )
    assert {"train", "evaluate", "report"} <= set(jobs)
    said = said.replace("'\"'\"'", "'")
    for words in (
        f"label_key='{odd}'",
        f"truth_key='{odd}'",
        "tissue='{t}'",
        "clusters='{c}'",
        "sample_key='{r}'",
    ):
        assert words in said, words
    assert "sample_sheet='my{sheet}.tsv'" in said


# --- refusals ------------------------------------------------------------------------------------------------


def test_a_wrong_sheet_is_refused_in_one_line(user: Path) -> None:
    """By snakemake alone, too; tests/cli/test_workflow_config.py has the errors."""
    write_sheet(user / "samples.tsv", "sample path path", "a a.h5ad b.h5ad")
    run = snakemake(
        user, "--dry-run", "--quiet", "--config", "model_path=model", "sample_sheet=samples.tsv"
    )
    assert run.returncode == 2
    *said, last = run.stdout.splitlines()
    assert last.startswith("error: column 'path' in samples.tsv; expected")
    assert all(line.startswith("Using workflow specific profile") for line in said)


# --- one real run --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the workflow and the package that tests may edit; its path has a space. Training is short."""
    copy = tmp_path_factory.mktemp("workflow") / "my checkout"
    copy.mkdir()
    shutil.copy(ROOT / "Snakefile", copy)
    for part in ("workflows", "profiles", "conf", "data", "scperformer"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "conf/trainer/cpu.yaml").open("a") as trainer:
        # the linear branch is fitted before; that is enough for these tests
        trainer.write("trainer.max_steps: 20\n")
    return copy


@pytest.fixture(scope="module")
def finished(checkout: Path) -> Path:
    """The working directory of a whole run on the embedded data."""
    folder = checkout.parent / "run"
    folder.mkdir()
    run = snakemake(folder, root=checkout)
    assert run.returncode == 0, run.stdout
    return folder


@contextmanager
def replaced(path: Path, old: str, new: str) -> Iterator[None]:
    """The file with another text in place of one, which occurs once; afterwards as it was."""
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    try:
        yield
    finally:
        path.write_text(text)


def accuracies(results: Path, truth: Path, *samples: str) -> dict[str, float]:
    """The share of right labels of each annotated sample, which is also that of the evaluation."""
    metrics = json.loads((results / "evaluation/metrics.json").read_text())["samples"]
    shares = {}
    for name in samples:
        annotated = (
            ad.read_h5ad(results / f"annotated/{name}.h5ad").obs["scperformer_label"].astype(str)
        )
        expected = pd.read_csv(truth / f"{name}.csv", index_col="cell")["cell_type"]
        shares[name] = (annotated == expected.loc[annotated.index]).mean()
        assert metrics[name]["model"]["accuracy"] == pytest.approx(shares[name], abs=1e-6)
    return shares


@pytest.mark.workflow
@pytest.mark.slow
def test_run_annotates_evaluates_and_reports(finished: Path) -> None:
    results = finished / "results"
    assert json.loads((results / "evaluation/metrics.json").read_text())["num_cells"] == 1056
    shares = accuracies(results, results / "example/truth", *SAMPLES)
    # Logistic regression gets .91, .76 and .70 right; the most frequent label is .26 of the cells.
    # CD8 T cells that the clusters of RNA call CD4 T cells count as errors.
    assert shares["sample_full"] > 0.85
    assert min(shares.values()) > 0.6
    assert "<html" in (results / "report.html").read_text()[:500].lower()
    jobs = [
        "example",
        "prepare/reference",
        "train",
        *(f"predict/{name}" for name in SAMPLES),
        *STEPS_AFTER_PREDICT,
    ]
    assert all((results / f"logs/{job}.log").exists() for job in jobs)
    assert all((results / f"benchmarks/{job}.tsv").stat().st_size > 0 for job in jobs)


@pytest.mark.workflow
@pytest.mark.slow
def test_failed_step_ends_with_its_one_line_error(
    finished: Path, checkout: Path, tmp_path: Path
) -> None:
    """An awkward path everywhere, a sample that goes through, and one that cannot, in one job."""
    example = finished / "results/example"
    odd = tmp_path / "cells, day=1 (it's odd)"
    odd.mkdir()
    shutil.copytree(finished / "results/model", odd / "model v=2")
    for name in ("sample_full.h5ad", "truth/sample_full.csv"):
        shutil.copy(example / name, odd)
    (odd / "broken.h5ad").write_text("not an h5ad file")
    rows = ["good\tsample_full.h5ad\tsample_full.csv", "broken\tbroken.h5ad\t"]
    (odd / "samples.tsv").write_text("\n".join(["sample\tpath\ttruth", *rows]) + "\n")
    config = [
        f"sample_sheet={odd}/samples.tsv",
        f"model_path={odd}/model v=2",
        "output_dir=my results",
        "predict_jobs=1",
    ]
    run = snakemake(tmp_path, "--keep-going", "--config", *config, root=checkout)
    assert run.returncode != 0
    last = run.stdout.rstrip().splitlines()[-1]  # after all that snakemake says
    assert last.startswith("1 annotated, 1 failed: broken, ")
    assert last.endswith("; table: my results/samples.csv; report: my results/report.html")
    assert re.search(r"^(error: )?.*broken\.h5ad.*; expected", run.stdout, re.MULTILINE)
    assert "broken.h5ad" in (tmp_path / "my results/logs/deliver/broken.log").read_text()
    results = tmp_path / "my results"
    assert (results / "annotated/good.h5ad").exists()
    assert json.loads((results / "evaluation/metrics.json").read_text())["num_cells"] == 352
    assert not (results / "annotated/broken.h5ad").exists()
    assert not (results / "predicted").exists()
    # With a file in place of the broken one the sample is annotated, and no temporary folder is left.
    shutil.copy(example / "sample_shallow.h5ad", odd / "broken.h5ad")
    run = snakemake(tmp_path, "--config", *config, root=checkout)
    assert run.returncode == 0, run.stdout
    for name, same, path in (
        ("good", "sample_full", "sample_full.h5ad"),
        ("broken", "sample_shallow", "broken.h5ad"),
    ):
        annotated = ad.read_h5ad(results / f"annotated/{name}.h5ad")
        pd.testing.assert_frame_equal(
            annotated.obs, ad.read_h5ad(finished / f"results/annotated/{same}.h5ad").obs
        )
        # the second run annotates what was missing
        job = "good~broken" if name == "good" else "broken"
        assert (
            f"odd)/{path}: 352 cells annotated" in (results / f"logs/predict/{job}.log").read_text()
        )
    assert not list(results.glob("predicted/*"))
    assert "Nothing to be done" in snakemake(tmp_path, "--config", *config, root=checkout).stdout
