"""Shared by the rules: paths, samples and their jobs, memory and time."""

import itertools
import json
import os
import re
import shlex
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import snakemake.exceptions
from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.base.outputs import FAILED_SUFFIX, MARK
from scperformer.cli.arguments import option_word as option
from scperformer.cli.steps import RESULT_VERSION
from scperformer.cli.workflow_config import read_workflow, require_labelled
from scperformer.io.sheet import OWN_COLUMNS
from scperformer.model.content import INFO
from scperformer.model.tissues import collection

SMALL = 20 * 10**6  # bytes, about 10,000 cells: samples up to this size may share a job

# Threads that spin while they wait slow all jobs down many times when there are more jobs than cores. Snakemake itself
# sets the number of threads (OMP_NUM_THREADS and the like) from each rule.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
if shutil.which("scperformer") is None:  # snakemake was started from an environment that is not activated
    os.environ.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]))



def refuse(error):
    """Print an error as the commands of scperformer do, and end Snakemake."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


def refuse_second_run():
    """Refuse to start while another run makes the same files, or after one that was killed."""
    found = f"another run of the workflow in {os.getcwd()} that makes the same files, or that was killed"
    remedy = "wait until it has ended; if none is running, repeat the command with --unlock, then without"
    refuse(InputError("second-run", found, "one run at a time", remedy))


try:
    WORKFLOW = read_workflow(config, Path(str(workflow.current_basedir)).parents[1])
    if workflow.is_main_process:
        require_labelled(WORKFLOW)
except InputError as error:
    refuse(error)

# Snakemake raises it where a lock is in the way; its own message has six lines and exit code 1.
snakemake.exceptions.LockException = refuse_second_run


container: WORKFLOW.cfg.container


if WORKFLOW.model:
    config["model_path"] = WORKFLOW.model  # the report tells of it; $SCPERFORMER_MODEL may have named it
if workflow.modifier.is_main_snakefile():  # the report of another workflow has its configuration

    report: "../report/workflow.rst"


def mark_output():
    """Mark the output folder: from now on, the files of our names in it are ours."""
    os.makedirs(OUT, exist_ok=True)
    with open(f"{OUT}/{MARK}", "w") as file:
        json.dump({"made_by": "scperformer", "kind": "a workflow"}, file)


def size_of(path):
    """Return the bytes of a file, or of all files in a folder."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(path) for name in names)


def memory(wildcards, input, attempt):
    """Estimate the megabytes of a job that loads its compressed inputs; more after each failure."""
    return attempt * (2000 + 20 * sum(map(size_of, input)) // 10**6)


def flat_memory(wildcards, input, attempt):
    """Estimate the megabytes of a job that reads its samples in blocks (docs/results.md#memory-of-predict)."""
    return attempt * (2000 + max(map(size_of, input.sample)) // (20 * 10**6))


def hours(wildcards, attempt):
    """Allow an hour, in minutes; more after each failure."""
    return attempt * 60


def predict_minutes(wildcards, input, attempt):
    """Allow an hour and, for each 10 MB of cells, a minute: many times what was measured (docs/results.md#memory-of-predict)."""
    return attempt * (60 + sum(map(size_of, input.sample)) // 10**7)


def described(name):
    """Return the columns of the sheet that describe a sample, such as its condition: they become columns of obs."""
    return {column: value for column, value in SAMPLES[name].items() if column not in OWN_COLUMNS}


def files_of(sample):
    """Return where the annotation of a sample is, and the reason why there is none; one of both exists."""
    stem = f"{SETTLED.format(sample=sample)}/{sample}"
    return f"{stem}.h5ad", f"{stem}{FAILED_SUFFIX}"


def failure_of(sample):
    """Return the reason why a sample has no annotation, with the version of scperformer that gave it; {} without one."""
    _, failed = files_of(sample)
    if not os.path.exists(failed):
        return {}
    with open(failed, encoding="utf-8") as file:
        return json.load(file)


def is_pending(sample):
    """Whether a sample has neither annotation nor failure, or one that is older than its file."""
    path = SAMPLES[sample]["path"]
    made = [os.path.getmtime(file) for file in files_of(sample) if os.path.exists(file)]
    return not made or not os.path.exists(path) or max(made) < os.path.getmtime(path)


def group_samples():
    """Return the job that annotates each sample.

    Starting a program takes longer than annotating a small sample, so there are at most about `predict_jobs` jobs for
    small samples: each takes neighbours in the sheet, and is named after the first and the last. Samples that have to
    be annotated share no job with others, which would be annotated again.
    """
    job_of = {name: name for name in SAMPLES if name not in SMALL_SAMPLES}
    pending = {name: is_pending(name) for name in SMALL_SAMPLES}
    for state, stretch in itertools.groupby(SMALL_SAMPLES, pending.get):
        names, size = list(stretch), -(-list(pending.values()).count(state) // WORKFLOW.cfg.predict_jobs)
        for first in range(0, len(names), size):
            group = names[first : first + size]
            job_of |= dict.fromkeys(group, "~".join(dict.fromkeys((group[0], group[-1]))))
    return job_of


def samples_of(job):
    """Return the samples of a job, from its name alone: while a cluster runs it, more samples have annotations."""
    first, _, last = job.partition("~")
    return SMALL_SAMPLES[SMALL_SAMPLES.index(first) : SMALL_SAMPLES.index(last) + 1] if last else [first]


def either(stem):
    """Return shell patterns for the annotation of a sample and for the reason why there is none, whichever exists."""
    return " ".join(f"{shlex.quote(stem)}{ending}" for ending in (".h5a[d]", ".failed.jso[n]"))


def verbatim(value):
    """Return a parameter with texts of the user: Snakemake formats braces in all others."""
    return lambda wildcards: value


def any_of(names):
    """Return the pattern that matches these names only."""
    return "|".join(map(re.escape, names)) or "(?!)"


OUT = WORKFLOW.output_dir
EXAMPLE, EXAMPLE_SAMPLES = f"{OUT}/example", ("sample_full", "sample_shallow", "sample_panel")
if WORKFLOW.samples:
    SAMPLES = WORKFLOW.samples
    REFERENCES = {os.path.splitext(os.path.basename(path))[0]: path for path in WORKFLOW.references}
else:  # the embedded data, which the rule `example` makes
    REFERENCES = {"reference": f"{EXAMPLE}/reference.h5ad"}
    SAMPLES = {
        name: {"path": f"{EXAMPLE}/{name}.h5ad", "truth": f"{EXAMPLE}/truth/{name}.csv"} for name in EXAMPLE_SAMPLES
    }
WITH_TRUTH = [name for name, row in SAMPLES.items() if "truth" in row or "truth_key" in row]
TRUTH_TABLES = [SAMPLES[name]["truth"] for name in WITH_TRUTH if "truth" in SAMPLES[name]]

PREPARED = f"{OUT}/prepared/{{reference}}.h5ad"
# A given model is known by its content: its files are newer after each installation of the package.
MODEL = ancient(WORKFLOW.model) if WORKFLOW.model else f"{OUT}/model" if REFERENCES else []
MODEL_INFO = f"{WORKFLOW.model}/{INFO}"
GIVEN_MODEL = sha256(MODEL_INFO) if os.path.isfile(MODEL_INFO) else WORKFLOW.model
if not MODEL:  # the profiles of the tissue of each sample
    GIVEN_MODEL = collection().hash
SETTLED = f"{OUT}/samples/{{sample}}"
ANNOTATED = f"{OUT}/annotated/{{sample}}.h5ad"
EVALUATION = f"{OUT}/evaluation"
REPORT = f"{OUT}/report.html"

is_small = lambda path: not os.path.exists(path) or size_of(path) <= SMALL
SMALL_SAMPLES = [name for name, row in SAMPLES.items() if is_small(row["path"])]
if workflow.is_main_process:
    for name in SAMPLES:  # a sample that another version of scperformer refused is tried again
        if failure_of(name).get("version", version("scperformer")) != version("scperformer"):
            shutil.rmtree(SETTLED.format(sample=name))
JOB_OF = group_samples()


wildcard_constraints:
    sample=any_of(SAMPLES),
    job=f"({any_of(SAMPLES)})(~({any_of(SAMPLES)}))?",
    reference=any_of(REFERENCES),
