"""The table of a sweep: a row for each run with its options, scores and error."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from natsort import natsorted

from scperformer.base.errors import one_line
from scperformer.base.messages import escape_formula
from scperformer.base.outputs import new_file
from scperformer.base.yaml_files import read_yaml_file
from scperformer.model.content import INFO

log = logging.getLogger(__name__)

RUNS_TABLE = "runs.csv"
RUN_RECORD = "run.json"  # in the folder of each run: output, seconds and error
OVERRIDES = ".hydra/overrides.yaml"  # in the folder of each run, written by Hydra when it begins
SCORE = "val_macro_f1"  # the printed table is sorted by this column
ENCODER_SCORE = "encoder_macro_f1"  # of the encoder without the linear branch
KILLED = {"output": "", "seconds": None, "error": "ended without a result: killed, out of memory or out of time"}
LOST_JOB_ERRORS = ("UncompletedJobError", "FailedJobError")  # raised by submitit when a job has ended without a result
NOT_CHOSEN = ("inputs", "output")  # options without a column: the input is the same in every run, the output is named
NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
MAX_CELL_LENGTH = 80  # characters of a cell of the printed table, such as an error


@contextmanager
def all_jobs(folder: Path) -> Iterator[None]:
    """After the block, wait for all jobs of a cluster, even if it loses one: its launcher stops at the first."""
    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ not in LOST_JOB_ERRORS:
            raise
        import submitit

        log.warning("a job of the cluster was lost: waiting for the others")
        for task in sorted((folder / ".submitit").glob("[0-9]*_[0-9]*")):  # folders JOB_TASK of a job array
            submitit.SlurmJob(folder=task.parent / "%j", job_id=task.name).wait()


def sweep_table(folder: Path) -> pd.DataFrame:
    """Return a row for each run: its number, status, options, scores, seconds, output and error."""
    rows = []
    chosen: dict[str, None] = {}  # without duplicates, in order
    for job in natsorted(path.parents[1] for path in folder.glob(f"*/{OVERRIDES}")):
        options = dict(word.lstrip("+").partition("=")[::2] for word in read_yaml_file(job / OVERRIDES))
        options = {name: value for name, value in options.items() if name not in NOT_CHOSEN}
        chosen |= dict.fromkeys(options)
        record = KILLED
        if (job / RUN_RECORD).is_file():
            record = json.loads((job / RUN_RECORD).read_text(encoding="utf-8"))
        row: dict[str, Any] = {"job": job.name, "status": "failed" if record["error"] else "ok"} | options
        info = folder / str(record["output"]) / INFO
        metrics = {}
        if not record["error"] and info.is_file():
            metrics = json.loads(info.read_text(encoding="utf-8"))["metrics"]
        if "model" in metrics:  # else it is no model, or an encoder without labels
            for name in ("macro_f1", "accuracy"):
                row |= {f"val_{name}": metrics["model"][name], f"baseline_{name}": metrics["baseline"][name]}
            if "encoder_alone" in metrics:
                scale = round(metrics["scales"]["encoder"], 2)
                row |= {ENCODER_SCORE: metrics["encoder_alone"]["macro_f1"], "encoder_scale": scale}
            row["best_epoch"] = metrics["best_epoch"]
        rows.append(row | record)
    table = pd.DataFrame(rows, columns=None if rows else ["job"]).convert_dtypes()  # integers stay, also beside missing
    scores = [name for name in table if name.startswith(("val_", "baseline_", "encoder_"))]
    table = table.astype(dict.fromkeys(scores, "Float64"))
    epoch = [name for name in table if name == "best_epoch"]
    return table.reindex(columns=["job", "status", *chosen, *scores, *epoch, *KILLED])


def write_table(table: pd.DataFrame, folder: Path) -> None:
    """Write the table of a sweep into `runs.csv`."""
    shown = table.copy()
    for name in shown.select_dtypes("string"):  # a sign marks a formula, except in a number such as -1e-3
        shown[name] = [text if NUMBER.fullmatch(text) else escape_formula(text) for text in shown[name].fillna("")]
    with new_file(folder / RUNS_TABLE, overwrite=True) as temporary:
        shown.to_csv(temporary, index=False, float_format="%.4f")


def table_text(table: pd.DataFrame, folder: Path) -> str:
    """Return the table of a sweep as text, the best run first and failed runs last.

    Columns that are empty, and options with the same value in all runs, are left out.
    """
    num_failed = int((table["status"] == "failed").sum())
    ends = [f"{len(table)} runs, {num_failed} failed: {folder / RUNS_TABLE}"]
    if SCORE in table:
        table = table.sort_values(SCORE, ascending=False, kind="stable", na_position="last")
    if "encoder_scale" in table and (without := int((table["encoder_scale"] == 0).sum())):
        ends.insert(0, f"{without} of the runs leave the encoder out: {ENCODER_SCORE} is the score of it alone")
    for name in table.select_dtypes("string"):
        table = table.assign(**{name: [one_line(text)[:MAX_CELL_LENGTH] for text in table[name].fillna("")]})
    last = list(table).index("status")
    options = [name for name in list(table)[last + 1 :] if table[name].dtype == object]
    alike = [name for name in options if table[name].nunique() == 1 and len(table) > 1 and name not in KILLED]
    empty = [name for name in table if table[name].isin(["", pd.NA]).all()]
    shown = table.drop(columns={*alike, *empty}).to_string(index=False, na_rep="", float_format="{:.4g}".format)
    return "\n".join([shown, "", *ends])
