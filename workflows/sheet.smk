"""Check the configuration and the sample sheet; an error is printed in one line before any job starts."""

import csv
import os

import h5py
from scperformer.base.errors import InputError
from scperformer.base.messages import did_you_mean
from scperformer.files.sheet import OWN_COLUMNS, path_in_sheet, read_sheet
from snakemake.exceptions import WorkflowError
from snakemake.utils import validate


def stop(found, expected, remedy):
    """Refuse the user's configuration with one line."""
    raise WorkflowError(str(InputError(found, expected, remedy)))


def check_schema(data, schema, where):
    """Validate against a file of schemas/, whose descriptions say what is expected; the error names the place."""
    try:
        validate(data, schema)
    except WorkflowError as error:
        problem = error.__context__  # the error of jsonschema, without the whole schema that snakemake prints
        place = f"{where}: {problem.json_path.removeprefix('$').removeprefix('.')}".rstrip(": ")
        stop(f"{place}: {problem.message}", problem.schema["description"], f"see workflows/{schema}")


def require(path, what):
    """Return a path that exists."""
    if not os.path.exists(path):
        stop(f"no {path}", what, "correct the path, or make the file first")
    return path


def require_input(path, what):
    """Return a path that exists and that snakemake takes for an input of jobs."""
    if set("{}") & set(require(path, what)):
        stop(f"braces in {path}, {what}", "a path without them: snakemake reads braces as wildcards", "rename it")
    return path


def require_sample(path, what):
    """Return the path of a file, or of a folder that holds cells."""
    if os.path.isdir(require_input(path, what)):
        from scperformer.files import require_readable  # takes seconds to import

        try:
            require_readable(path)
        except InputError as error:
            raise WorkflowError(f"{what}: {error}") from None
    return path


def size_of(path):
    """Return the bytes of a file, or of all files in a folder."""
    if not os.path.isdir(path):
        return os.path.getsize(path)
    return sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(path) for name in names)


def columns_of(path):
    """Return the columns of a table, or of obs of an h5ad file; None for a file that the job which reads it refuses."""
    try:
        if path.endswith(".h5ad"):
            with h5py.File(path) as file:
                obs = file["obs"]
                return list(map(str, obs.dtype.names if isinstance(obs, h5py.Dataset) else obs.attrs["column-order"]))
        with open(path, newline="", encoding="utf-8-sig") as lines:
            line = next(lines, "")
        return next(csv.reader([line], delimiter="\t" if "\t" in line else ","), None) or None
    except (OSError, RuntimeError, KeyError, TypeError, ValueError):
        return None


def require_column(path, column, name):
    """Refuse a column, the value of the option `name`, that a file does not have."""
    columns = columns_of(path)
    if columns is not None and column not in columns:
        found, expected = f"{name}={column}, which is no column of {path}", f"one of {', '.join(columns) or 'none'}"
        stop(found, expected, f"{did_you_mean(column, columns)}set {name} to the column that is meant")


def read_samples(sheet):
    """Read the rows of the sample sheet by sample name; their paths are made relative to the working directory."""
    try:
        rows = read_sheet(require(sheet, "the sample sheet named by samples="))
    except InputError as error:
        raise WorkflowError(str(error)) from None
    check_schema({"samples": rows}, "schemas/samples.schema.yaml", sheet)
    samples = {}
    for row in rows:
        name = row.pop("sample")
        if name in samples:
            stop(f"sample {name} twice in {sheet}", "every sample name once", "rename one of them")
        for column in {"path", "truth"} & row.keys():
            path = path_in_sheet(sheet, row[column])
            check = require_sample if column == "path" else require_input
            row[column] = check(path, f"the {column} of sample {name} in {sheet}")
        samples[name] = row
    return samples


def described(name):
    """Return the columns of the sheet that describe a sample, such as its condition: they become columns of obs."""
    return {column: value for column, value in SAMPLES[name].items() if column not in OWN_COLUMNS}


def truth_column(samples):
    """Return the name of the column with the true labels, which must be the same for all samples that have any."""
    columns = {}
    for name, row in samples.items():
        if "truth" in row or "truth_key" in row:
            where = "table" if "truth" in row else "obs"
            columns.setdefault((where, row.get("truth_key", config["label_key"])), name)
    if len(columns) > 1:
        found = " and ".join(f"{where} column {key} for {name}" for (where, key), name in columns.items())
        stop(f"truth in {found}", "the same kind of truth for all samples", "give all of them a truth table alike")
    return next((key for _, key in columns), config["label_key"])


check_schema(config, "schemas/config.schema.yaml", "configuration")
reference, model, sheet = (config.get(key) for key in ("reference", "model_path", "samples"))
if reference and model:
    stop("reference= and model_path=", "one of them", "drop model_path= to train, reference= to use the model")
if (reference or model) and not sheet:
    stop("no samples=", "a sample sheet", "write one with the columns sample and path, add samples=samples.tsv")
if sheet and not (reference or model):
    stop("samples= alone", "what to annotate them with", "add reference=labelled.h5ad or model_path=FOLDER")
if reference:
    require_input(reference, "the labelled file named by reference=")
if model:
    require_input(model, "the model folder named by model_path=")
