"""The table of a sweep: a row for each run, with its options, its scores and its error."""

import csv
import json
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from scperformer.errors import one_line
from scperformer.outputs import new_file
from scperformer.text import defused

log = logging.getLogger(__name__)

TABLE = "runs.csv"
RECORD = "run.json"  # of one run, in its folder
SCORE = "val_macro_f1"  # the best runs come first in the printed table
LOST = ("UncompletedJobError", "FailedJobError")  # what submitit raises when a job has ended without a result
NOT_CHOSEN = ("inputs", "output")  # the same in every run, or made for it
NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
MOST_TEXT = 80  # characters of an error in the printed table


@dataclass
class Row:
    """One run: its number in the sweep, its overrides, what it wrote and how it ended."""

    job: str
    overrides: dict[str, str]
    output: str | None = None
    status: str = "running"
    seconds: float = 0.0
    error: str = ""

    def scores(self, folder: Path) -> dict[str, Any]:
        """Return the validation scores of the model of the run and of the baseline; nothing for other outputs."""
        from scperformer.model import INFO  # imports readers of h5ad, which --cfg job does not need

        info = folder / (self.output or "") / INFO
        if self.status != "ok" or not info.is_file():
            return {}
        metrics = json.loads(info.read_text(encoding="utf-8"))["metrics"]
        sides = {"val": metrics["model"], "baseline": metrics["baseline"]}
        scores = {f"{side}_{name}": scores[name] for name in ("macro_f1", "accuracy") for side, scores in sides.items()}
        return {name: f"{score:.4f}" for name, score in scores.items()} | {"best_epoch": metrics["best_epoch"]}


@dataclass
class Sweep:
    """All runs of a sweep so far; `runs.csv` in its folder is written again after each of them.

    Runs may be in other processes, on other machines: each has its record in its folder.
    """

    folder: Path | None = None

    def job(self, folder: Path, overrides: list[str]) -> "Job":
        """Return the block of one run, with a folder inside that of the sweep and overrides such as `seed=1`."""
        self.folder = folder.parent
        chosen = dict(word.lstrip("+").partition("=")[::2] for word in overrides)
        row = Row(folder.name, {name: value for name, value in chosen.items() if name not in NOT_CHOSEN})
        return Job(self, row)

    @property
    def rows(self) -> list[Row]:
        """Return the runs that have begun, in their order."""
        records = [] if self.folder is None else self.folder.glob(f"*/{RECORD}")
        rows = [Row(**json.loads(record.read_text(encoding="utf-8"))) for record in records]
        return sorted(rows, key=lambda row: (len(row.job), row.job))

    @property
    def num_failed(self) -> int:
        """Return how many runs have failed."""
        return sum(row.status == "failed" for row in self.rows)

    def save(self, row: Row) -> None:
        """Write the record of a run."""
        assert self.folder is not None
        with new_file(self.folder / row.job / RECORD, overwrite=True) as temporary:
            temporary.write_text(json.dumps(asdict(row)), encoding="utf-8")

    @contextmanager
    def to_its_end(self) -> Iterator[None]:
        """Wait until all runs have ended, also if the cluster loses one of them."""
        try:
            yield
        except RuntimeError as error:
            if type(error).__name__ not in LOST or self.folder is None:
                raise
            log.warning("a job of the cluster was lost: waiting for the others")
            wait_for_jobs(self.folder)
        self.end()

    def end(self) -> None:
        """Mark runs without an end as failed: they were killed."""
        killed = [row for row in self.rows if row.status == "running"]
        for row in killed:
            row.status, row.error = "failed", "ended without a word: killed, out of memory or out of time"
            self.save(row)
        if killed:
            self.write()

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as dicts with the same columns; missing values are ""."""
        assert self.folder is not None
        rows = self.rows
        records = [
            {"job": row.job, "status": row.status}
            | row.overrides
            | row.scores(self.folder)
            | {"seconds": f"{row.seconds:.1f}", "output": row.output or "", "error": row.error}
            for row in rows
        ]
        scores = [name for record in records for name in record if name.startswith(("val_", "baseline_", "best_"))]
        chosen = [name for row in rows for name in row.overrides]
        columns = dict.fromkeys(["job", "status", *chosen, *scores, "seconds", "output", "error"])
        return [{name: record.get(name, "") for name in columns} for record in records]

    def write(self) -> None:
        """Write `runs.csv`, a row per run in their order."""
        assert self.folder is not None
        records = self.records()
        with new_file(self.folder / TABLE, overwrite=True) as temporary, temporary.open("w", newline="") as file:
            table = csv.DictWriter(file, list(records[0]))
            table.writeheader()
            table.writerows({name: _safe(value) for name, value in record.items()} for record in records)

    def markdown(self) -> str:
        """Return the printed table: the best run first, failed runs last, without columns equal in all rows."""
        assert self.folder is not None
        records = sorted(self.records(), key=lambda record: -float(record.get(SCORE) or -1))
        chosen = {name for row in self.rows for name in row.overrides}
        alike = {name for name in chosen if len({record[name] for record in records}) == 1}
        silent = {name for name in records[0] if not any(record[name] for record in records)}
        columns = [name for name in records[0] if name not in alike | silent]
        lines = [columns, ["---"] * len(columns), *([record[name] for name in columns] for record in records)]
        rows = ["| " + " | ".join(_cell(value) for value in line) + " |" for line in lines]
        return "\n".join([*rows, "", f"{len(records)} runs, {self.num_failed} failed: {self.path()}"])

    def path(self) -> str:
        """Return the path of `runs.csv`, relative to the working directory if that is shorter."""
        assert self.folder is not None
        return min(str(self.folder / TABLE), os.path.relpath(self.folder / TABLE), key=len)


def _safe(value: object) -> str:
    """Return a value for the CSV file; only numbers may start with a sign."""
    text = str(value)
    return text if NUMBER.fullmatch(text) else defused(text)


def _cell(value: object) -> str:
    text = one_line(str(value))
    return (text if len(text) <= MOST_TEXT else text[: MOST_TEXT - 3] + "...").replace("|", "\\|")


def wait_for_jobs(folder: Path) -> None:
    """Wait until all jobs of a sweep on a cluster have ended; submitit gives up when one of them is lost."""
    import submitit

    for place in sorted((folder / ".submitit").glob("[0-9]*_[0-9]*")):  # the tasks of an array
        submitit.SlurmJob(folder=place.parent / "%j", job_id=place.name).wait()


class Job:
    """The block of one run: it records the time and the end of the run; errors are raised further."""

    def __init__(self, sweep: Sweep, row: Row):
        self.sweep, self.row = sweep, row

    def __enter__(self) -> "Job":
        self.start = time.perf_counter()
        self.sweep.save(self.row)
        return self

    def wrote(self, output: str) -> None:
        """Record the output of the run."""
        assert self.sweep.folder is not None
        self.row.output = os.path.relpath(output, self.sweep.folder)
        self.sweep.save(self.row)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.row.seconds = time.perf_counter() - self.start
        if error is None:
            self.row.status = "ok"
        else:
            text = "interrupted" if isinstance(error, SystemExit | KeyboardInterrupt) else str(error)
            self.row.status, self.row.error = "failed", one_line(text) or type(error).__name__
        self.sweep.save(self.row)
        self.sweep.write()
