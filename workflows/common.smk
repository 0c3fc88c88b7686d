"""Shared by the rules: paths, samples and their jobs, options of the steps, memory and time."""

import atexit
import itertools
import json
import os
import re
import shlex
import shutil
import sys

from scperformer.config import make_config, option_word as option, tree_of_words, words_from_file, yaml_text
from scperformer.base.errors import InputError
from scperformer.base.outputs import MARK
from snakemake.exceptions import WorkflowError

SMALL = 20 * 10**6  # bytes, about 10,000 cells: samples up to this size may share a job

# Threads that spin while they wait slow all jobs down many times when there are more jobs than cores. Snakemake itself
# sets the number of threads (OMP_NUM_THREADS and the like) from each rule.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
if shutil.which("scperformer") is None:  # snakemake was started from an environment that is not activated
    os.environ.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]))


def overrides_of(step):
    """Return the options of a step in the configuration as words; anything but options of this step is refused."""
    try:
        return list(words_from_file(config["overrides"].get(step, {}), step, f"overrides: {step}").values())
    except InputError as error:
        raise WorkflowError(str(error)) from None


def options_of(step, *options):
    """Return the checked options of a step."""
    try:
        return make_config(step, ["inputs=[cells]", *options, *OVERRIDES[step]])
    except InputError as error:
        raise WorkflowError(f"overrides: {step}: {error}") from None


def resolved(step, *options):
    """Return all options of a step as text: in the params of a rule, it re-runs the jobs that a change concerns."""
    options_of(step, *options)  # refuses values out of range
    return yaml_text(tree_of_words(step, [*options, *OVERRIDES[step]]), sort=True)


def check_columns():
    """Refuse names of columns that the reference, a sample or a table of true labels lacks, before the first job."""
    if REFERENCE:
        train = options_of("train", option("label_key", config["label_key"]))
        named = {"label_key": [train.label_key], "label_keys": train.label_keys, "ontology_key": [train.ontology_key]}
        for name, columns in (named | {"data.split_key": [train.data.split_key]}).items():
            for column in filter(None, columns):
                require_column(REFERENCE, column, name)
    clusters = options_of("predict").clusters
    for row in SAMPLES.values():
        if clusters not in (None, "auto"):
            require_column(row["path"], clusters, "clusters")
        if "truth" in row or "truth_key" in row:
            require_column(row.get("truth", row["path"]), TRUTH_KEY, "truth_key")


def require_own_outdir():
    """Refuse an outdir with other files in the place of ours: Snakemake removes outputs before it makes them anew."""
    there = set(os.listdir(OUT)) if os.path.isdir(OUT) else set()
    if there & OWN and MARK not in there and not there <= OWN:
        name = min(there & OWN)
        found = f"{OUT}/{name} exists, and this workflow may not have made it"
        raise WorkflowError(f"{found}; expected an outdir without it: move it away, or choose another outdir.")


def mark_outdir():
    """Mark the outdir: from now on, the files of our names in it are ours."""
    os.makedirs(OUT, exist_ok=True)
    with open(f"{OUT}/{MARK}", "w") as file:
        json.dump({"made_by": "scperformer", "kind": "a workflow"}, file)


def tell_results():
    """Print at the end how many samples are annotated, and which are not, with the reason, which `deliver` logs."""
    reasons = {}
    for name in SAMPLES:
        failed = f"{SETTLED.format(sample=name)}/{name}.failed.json"
        if os.path.exists(failed):
            with open(failed, encoding="utf-8") as file:
                reasons[name] = json.load(file)["error"]
    num = sum(os.path.exists(ANNOTATED.format(sample=name)) for name in SAMPLES.keys() - reasons.keys())
    text = f"{num} annotated, {len(reasons)} failed"
    if reasons:
        text += ": " + "; ".join(f"{name}, {reason.rstrip('.')}" for name, reason in list(reasons.items())[:5])
        text += f"; and {len(reasons) - 5} more" if len(reasons) > 5 else ""
        log_of = next(iter(reasons)) if len(reasons) == 1 else "SAMPLE"
        text += f" (kept in {OUT}/logs/deliver/{log_of}.log)"
    if os.path.exists(REPORT):
        text += f"; report: {REPORT}"
    atexit.register(print, text, file=sys.stderr)  # after the lines with which snakemake ends


def memory(wildcards, input, attempt):
    """Estimate the megabytes of a job that loads its compressed inputs; more after each failure."""
    return attempt * (2000 + 20 * sum(map(size_of, input)) // 10**6)


def flat_memory(wildcards, input, attempt):
    """Estimate the megabytes of a job that reads its samples in blocks (docs/results.md#memory-of-predict)."""
    return attempt * (2000 + max(map(size_of, input.sample)) // (20 * 10**6))


def predict_minutes(wildcards, input):
    """Allow an hour and, for each 10 MB of cells, a minute: many times what was measured (docs/results.md#memory-of-predict)."""
    return 60 + sum(map(size_of, input.sample)) // 10**7


def is_pending(sample):
    """Whether a sample has no annotation, or one that is older than its file."""
    path, annotated = SAMPLES[sample]["path"], ANNOTATED.format(sample=sample)
    there = os.path.exists(path) and os.path.exists(annotated)
    return not there or os.path.getmtime(annotated) < os.path.getmtime(path)


def group_samples():
    """Return the job that annotates each sample.

    Starting a program takes longer than annotating a small sample, so there are at most about `predict_jobs` jobs for
    small samples: each takes neighbours in the sheet, and is named after the first and the last. Samples that have to
    be annotated share no job with others, which would be annotated again.
    """
    job_of = {name: name for name in SAMPLES if name not in SMALL_SAMPLES}
    pending = {name: is_pending(name) for name in SMALL_SAMPLES}
    for state, stretch in itertools.groupby(SMALL_SAMPLES, pending.get):
        names, size = list(stretch), -(-list(pending.values()).count(state) // config["predict_jobs"])
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


def any_of(names):
    """Return the pattern that matches these names only."""
    return "|".join(map(re.escape, names)) or "(?!)"


OUT = os.path.normpath(config["outdir"])
# What the rules write into it.
OWN = {"adapted", "annotated", "benchmarks", "evaluation", "example", "logs", "model", "model.run", "predicted", "prepared"}
OWN |= {"report.html", "samples"}
EXAMPLE, EXAMPLE_SAMPLES = f"{OUT}/example", ("sample_full", "sample_shallow", "sample_panel")
STEPS = ("preprocess", "train", "predict", "evaluate", "report")
OVERRIDES = {step: overrides_of(step) for step in STEPS}
if config["samples"]:
    REFERENCE, SAMPLES = config["reference"], read_samples(config["samples"])
else:  # the embedded data, which the rule `example` makes
    REFERENCE, NAMES = f"{EXAMPLE}/reference.h5ad", EXAMPLE_SAMPLES
    SAMPLES = {name: {"path": f"{EXAMPLE}/{name}.h5ad", "truth": f"{EXAMPLE}/truth/{name}.csv"} for name in NAMES}
TRUTH_KEY = truth_column(SAMPLES)
WITH_TRUTH = [name for name, row in SAMPLES.items() if "truth" in row or "truth_key" in row]
TRUTH_TABLES = [SAMPLES[name]["truth"] for name in WITH_TRUTH if "truth" in SAMPLES[name]]
if config["samples"]:
    check_columns()

require_own_outdir()

PREPARED = f"{OUT}/prepared/reference.h5ad"
MODEL = config["model_path"] or f"{OUT}/model"
SETTLED = f"{OUT}/samples/{{sample}}"
ANNOTATED = f"{OUT}/annotated/{{sample}}.h5ad"
EVALUATION = f"{OUT}/evaluation"
REPORT = f"{OUT}/report.html"

is_small = lambda path: not os.path.exists(path) or size_of(path) <= SMALL
SMALL_SAMPLES = [name for name, row in SAMPLES.items() if is_small(row["path"])]
JOB_OF = group_samples()


wildcard_constraints:
    sample=any_of(SAMPLES),
    job=f"({any_of(SAMPLES)})(~({any_of(SAMPLES)}))?",
