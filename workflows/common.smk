"""What the rules share: the checked configuration, the samples, and the options each step will run with."""

import csv
import os
import re
import shutil
import sys
from pathlib import Path

from scperformer.config.compose import quoted, resolved_text
from scperformer.errors import InputError
from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

EXAMPLE_SAMPLES = ("sample_a", "sample_b")
SMALL = 20 * 10**6  # bytes of a sample, about 10,000 cells, that may share a job with others

# For every job. Threads that spin while they wait make jobs many times slower when there are more jobs than cores;
# how many threads there are (OMP_NUM_THREADS and its relatives) snakemake sets from the rule.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
if shutil.which("scperformer") is None:  # an environment that is used without being activated
    os.environ.update(PATH=os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]))


def stop(found, expected, remedy):
    """Refuse the user's configuration with one line."""
    raise WorkflowError(str(InputError(found, expected, remedy)))


def check_schema(data, schema, where):
    """Validate against a schema of schemas/; the message is one line and says where the mistake is."""
    try:
        validate(data, schema)
    except WorkflowError as error:
        problem = error.__context__  # jsonschema's ValidationError; snakemake adds the whole schema to its text
        place = f"{where}: {problem.json_path.removeprefix('$').removeprefix('.')}".rstrip(": ")
        about = problem.schema["description"]  # schemas/ says of each part what is expected there
        stop(f"{place}: {problem.message}", about, f"see workflows/{schema}")


def require(path, what):
    """The path, once it is known to exist."""
    if not os.path.exists(path):
        stop(f"no {path}", f"{what}", "correct the path, or make the file first")
    return path


def read_samples(sheet):
    """Rows of the sample sheet by sample name; paths start at the working directory afterwards."""
    folder = os.path.dirname(require(sheet, "the sample sheet named by samples="))
    with open(sheet, newline="", encoding="utf-8-sig") as lines:
        dialect = csv.excel if sheet.endswith(".csv") else csv.excel_tab
        rows = [
            {str(key).strip(): str(value).strip() for key, value in row.items() if value and str(value).strip()}
            for row in csv.DictReader(lines, restkey="(beyond the last column)", dialect=dialect)
        ]
    rows = [row for row in rows if row]
    check_schema({"samples": rows}, "schemas/samples.schema.yaml", sheet)
    samples = {}
    for row in rows:
        name = row.pop("sample")
        if name in samples:
            stop(f"sample {name} twice in {sheet}", "every sample name once", "rename one of them")
        for column in {"path", "truth"} & row.keys():
            path = os.path.normpath(os.path.join(folder, os.path.expanduser(row[column])))
            row[column] = require(path, f"the {column} of sample {name} in {sheet}")
        samples[name] = row
    return samples


def example_samples(folder):
    """What read_samples would say about the embedded data, which a rule has yet to make."""
    return {
        name: {"path": f"{folder}/{name}.h5ad", "truth": f"{folder}/truth/{name}.csv"} for name in EXAMPLE_SAMPLES
    }


def check_sources():
    """Refuse combinations of data that say too little or too much."""
    reference, samples, model = (config.get(key) for key in ("reference", "samples", "model_path"))
    if reference and model:
        stop("reference= and model_path=", "one of them", "drop model_path= to train, reference= to use the model")
    if (reference or model) and not samples:
        stop("no samples=", "a sample sheet", "write one with the columns sample and path, add samples=samples.tsv")
    if samples and not (reference or model):
        stop("samples= alone", "what to annotate them with", "add reference=labelled.h5ad or model_path=FOLDER")
    if reference:
        require(reference, "the labelled file named by reference=")
    if model:
        require(model, "the model folder named by model_path=")


def truth_column(samples):
    """The column that holds the true labels, which has to be the same for all samples that have any."""
    columns = {}
    for name, row in samples.items():
        if "truth" in row or "truth_key" in row:
            where = "table" if "truth" in row else "obs"
            columns.setdefault((where, row.get("truth_key", config["label_key"])), name)
    if len(columns) > 1:
        found = " and ".join(f"{where} column {key} for {name}" for (where, key), name in columns.items())
        stop(f"truth in {found}", "the same kind of truth for all samples", "give all of them a truth table alike")
    return next((key for _, key in columns), config["label_key"])


def option(key, value):
    """`key=value` as one word of a scperformer command, whatever characters the value or values hold."""
    if isinstance(value, list):
        return f"{key}=[{','.join(quoted(item) for item in value)}]"
    plain = re.fullmatch(r"[A-Za-z_][\w./-]*", value)
    return f"{key}={value if plain else quoted(value)}"


def resolved(step, *options):
    """All options of a step as text. In a rule's params, a changed YAML of conf/ re-runs the jobs that use it."""
    try:
        return resolved_text(step, [*options, *OVERRIDES.get(step, [])])
    except InputError as error:
        raise WorkflowError(f"overrides: {step}: {error}") from None


def memory(wildcards, input, attempt):
    """Megabytes for a job: the libraries and a generous multiple of compressed input; more after each failure."""
    return attempt * (2000 + 20 * sum(os.path.getsize(path) for path in input) // 10**6)


def gpu_options(count):
    """The options of a training on so many GPUs."""
    return ["trainer=gpu"][:count] + ([f"trainer.devices={count}", "trainer.strategy=ddp"] if count > 1 else [])


def flat_memory(wildcards, input, attempt):
    """Megabytes for a job that reads samples a block at a time (docs/inputs.md#memory); more after each failure."""
    paths = [input.sample] if isinstance(input.sample, str) else input.sample
    return attempt * (2000 + max(map(os.path.getsize, paths)) // (20 * 10**6))


def minutes(sample):
    """How long the cells of a file may take: many times what they took in docs/inputs.md#memory."""
    return os.path.getsize(sample) // 10**7


def num_shares(sample):
    """In how many jobs the cells of a sample are called."""
    return int(SAMPLES[sample].get("shares", 1))


def shares_of(sample):
    """The folders of the shares of a sample."""
    count = num_shares(sample)
    return expand(SHARE, sample=sample, part=range(1, count + 1), parts=count)


def together():
    """Small samples that are annotated by one job, by the name of the first of them.

    No more jobs than `predict_jobs`, so that the start of programs does not take most of the time. Their number of
    samples is doubled where needed, and not changed for every sample that is added: that makes jobs run again.
    """
    sizes = {name: os.path.getsize(row["path"]) if os.path.exists(row["path"]) else 0 for name, row in SAMPLES.items()}
    small = [name for name, size in sizes.items() if size <= SMALL and num_shares(name) == 1]
    count = 1
    while count * config["predict_jobs"] < len(small):
        count *= 2
    jobs = (small[first : first + count] for first in range(0, len(small), count))
    return {names[0]: names for names in jobs if len(names) > 1}


def one_of(names):
    """The pattern that these names match, and no other."""
    return "|".join(map(re.escape, names)) or "(?!)"


def failures(logs):
    """The last words of each failed job, to stand below snakemake's own messages."""
    # onerror is told snakemake's own logs only; those of the failed jobs are named in there.
    text = "".join(Path(log).read_text() for log in logs)
    names = dict.fromkeys(re.findall(r"^ +log: (.+) \(check log file", text, flags=re.MULTILINE))
    return "\n".join(f"{name}: {last_line(Path(name))}" for name in names)


def last_line(log):
    """The last line of a log, where the one-line error stands."""
    lines = log.read_text().strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "the job ended without a message"


check_schema(config, "schemas/config.schema.yaml", "configuration")
check_sources()

OUT = os.path.normpath(config["outdir"])
EXAMPLE = f"{OUT}/example"
IS_EXAMPLE = not config.get("samples")
OVERRIDES = config["overrides"]
TRAINER = gpu_options(config["gpu"])
REFERENCE = f"{EXAMPLE}/reference.h5ad" if IS_EXAMPLE else config.get("reference")
SAMPLES = example_samples(EXAMPLE) if IS_EXAMPLE else read_samples(config["samples"])
TRUTH_KEY = truth_column(SAMPLES)
WITH_TRUTH = [name for name, row in SAMPLES.items() if "truth" in row or "truth_key" in row]
TRUTH_TABLES = [SAMPLES[name]["truth"] for name in WITH_TRUTH if "truth" in SAMPLES[name]]

PREPARED = f"{OUT}/prepared/reference.h5ad"
MODEL = config.get("model_path") or f"{OUT}/model"
ANNOTATED = f"{OUT}/annotated/{{sample}}.h5ad"
SHARE = f"{OUT}/shares/{{sample}}/{{part}}-of-{{parts}}"
EVALUATION = f"{OUT}/evaluation"
REPORT = f"{OUT}/report.html"

TOGETHER = together()
JOB_OF = {name: first for first, names in TOGETHER.items() for name in names}


wildcard_constraints:
    sample=one_of(SAMPLES),
    part=r"[1-9]\d*",
    parts=r"[1-9]\d*",
