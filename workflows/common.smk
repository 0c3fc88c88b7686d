"""Shared by the rules: paths, samples and their jobs, options of the steps, memory and time."""

import json
import os
import re
import shutil
import sys

from scperformer.config.compose import make_config, quoted, resolved_text
from scperformer.errors import InputError
from snakemake.exceptions import WorkflowError

SMALL = 20 * 10**6  # bytes, about 10,000 cells: samples up to this size may share a job

# Threads that spin while they wait slow all jobs down many times when there are more jobs than cores. Snakemake itself
# sets the number of threads (OMP_NUM_THREADS and the like) from each rule.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
if shutil.which("scperformer") is None:  # snakemake was started from an environment that is not activated
    os.environ.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]))


def option(key, value):
    """Write `key=value` as one word of a scperformer command, whatever characters the value or values hold."""
    if isinstance(value, list):
        return f"{key}=[{','.join(quoted(str(item)) for item in value)}]"
    if not isinstance(value, str):  # a number, true, false or null
        return f"{key}={json.dumps(value)}"
    is_plain = re.fullmatch(r"[A-Za-z_][\w./-]*", value)
    return f"{key}={value if is_plain else quoted(value)}"


def words_of(options):
    """Return options as words of a command, from a mapping of their names to values or a list of such words."""
    return [option(key, value) for key, value in options.items()] if isinstance(options, dict) else options


def resolved(step, *options):
    """Return all options of a step as text: in the params of a rule, it re-runs the jobs that a change concerns."""
    words = [*options, *OVERRIDES.get(step, [])]
    try:
        make_config(step, ["inputs=[cells]", *words])  # also refuses values out of range
        return resolved_text(step, words)
    except InputError as error:
        raise WorkflowError(f"overrides: {step}: {error}") from None


def memory(wildcards, input, attempt):
    """Estimate the megabytes of a job that loads its compressed inputs; more after each failure."""
    return attempt * (2000 + 20 * sum(map(os.path.getsize, input)) // 10**6)


def flat_memory(wildcards, input, attempt):
    """Estimate the megabytes of a job that reads its samples in blocks (docs/performance.md#memory-of-predict)."""
    return attempt * (2000 + max(map(os.path.getsize, input.sample)) // (20 * 10**6))


def predict_minutes(wildcards, input):
    """Allow an hour and, for each 10 MB of cells, a minute: many times what was measured (docs/performance.md#memory-of-predict)."""
    return 60 + sum(map(os.path.getsize, input.sample)) // 10**7


def group_samples(samples):
    """Group the samples that are annotated by one job, by the name of the first; split samples are not among them.

    Starting a program takes longer than annotating a small sample, so there are at most `predict_jobs` jobs for small
    samples. The number of samples in a job is a power of two: a sample that is added re-runs few jobs.
    """
    whole = [name for name in samples if not num_shares(name)]
    is_small = lambda path: not os.path.exists(path) or os.path.getsize(path) <= SMALL
    small = [name for name in whole if is_small(samples[name]["path"])]
    size = 1
    while size * config["predict_jobs"] < len(small):
        size *= 2
    groups = [small[first : first + size] for first in range(0, len(small), size)]
    return {names[0]: names for names in [*groups, *([name] for name in whole if name not in small)]}


def num_shares(sample):
    """Return the number of jobs that a large sample is split into; 0 for a sample that is annotated as a whole."""
    number = int(SAMPLES[sample].get("shares", 1))
    return number if number > 1 else 0


def shares_of(sample):
    """Return the folders of the shares of a sample."""
    count = num_shares(sample)
    return expand(SHARE, sample=sample, part=range(1, count + 1), parts=count)


def any_of(names):
    """Return the pattern that matches these names only."""
    return "|".join(map(re.escape, names)) or "(?!)"


OUT = os.path.normpath(config["outdir"])
EXAMPLE, EXAMPLE_SAMPLES = f"{OUT}/example", ("sample_full", "sample_shallow", "sample_panel")
OVERRIDES = {step: words_of(options) for step, options in config["overrides"].items()}
if config["samples"]:
    REFERENCE, SAMPLES = config["reference"], read_samples(config["samples"])
else:  # the embedded data, which the rule `example` makes
    REFERENCE, NAMES = f"{EXAMPLE}/reference.h5ad", EXAMPLE_SAMPLES
    SAMPLES = {name: {"path": f"{EXAMPLE}/{name}.h5ad", "truth": f"{EXAMPLE}/truth/{name}.csv"} for name in NAMES}
TRUTH_KEY = truth_column(SAMPLES)
WITH_TRUTH = [name for name, row in SAMPLES.items() if "truth" in row or "truth_key" in row]
TRUTH_TABLES = [SAMPLES[name]["truth"] for name in WITH_TRUTH if "truth" in SAMPLES[name]]
JOBS = group_samples(SAMPLES)
JOB_OF = {name: job for job, names in JOBS.items() for name in names}

PREPARED = f"{OUT}/prepared/reference.h5ad"
MODEL = config["model_path"] or f"{OUT}/model"
ANNOTATED = f"{OUT}/annotated/{{sample}}.h5ad"
SHARE = f"{OUT}/shares/{{sample}}/{{part}}-of-{{parts}}"
EVALUATION = f"{OUT}/evaluation"
REPORT = f"{OUT}/report.html"


wildcard_constraints:
    sample=any_of(SAMPLES),
    job=any_of(JOBS),
    part=r"[1-9]\d*",
    parts=r"[1-9]\d*",
