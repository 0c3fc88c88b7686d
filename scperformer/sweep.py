"""The table of a sweep: a row for each run, with what was chosen, what came out, and what failed."""

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
        """Validation scores of the model that the run has written, beside the baseline's; nothing for other outputs."""
        from scperformer.model import INFO  # with what reads h5ad: --cfg job can do without

        info = folder / (self.output or "") / INFO
        if self.status != "ok" or not info.is_file():
            return {}
        metrics = json.loads(info.read_text(encoding="utf-8"))["metrics"]
        sides = {"val": metrics["model"], "baseline": metrics["baseline"]}
        scores = {f"{side}_{name}": scores[name] for name in ("macro_f1", "accuracy") for side, scores in sides.items()}
        return {name: f"{score:.4f}" for name, score in scores.items()} | {"best_epoch": metrics["best_epoch"]}


@dataclass
class Sweep:
    """All runs of a sweep so far; `runs.csv` in its folder is written anew after each of them.

    Runs may be in other processes, on other machines: what is known of each lies in its folder.
    """

    folder: Path | None = None

    def job(self, folder: Path, overrides: list[str]) -> "Job":
        """A block that is one run, with a folder inside the sweep's and overrides such as `seed=1`."""
        self.folder = folder.parent
        chosen = dict(word.lstrip("+").partition("=")[::2] for word in overrides)
        row = Row(folder.name, {name: value for name, value in chosen.items() if name not in NOT_CHOSEN})
        return Job(self, row)

    @property
    def rows(self) -> list[Row]:
        """The runs that have begun, in their order."""
        records = [] if self.folder is None else self.folder.glob(f"*/{RECORD}")
        rows = [Row(**json.loads(record.read_text(encoding="utf-8"))) for record in records]
        return sorted(rows, key=lambda row: (len(row.job), row.job))

    @property
    def num_failed(self) -> int:
        """How many runs have failed."""
        return sum(row.status == "failed" for row in self.rows)

    def save(self, row: Row) -> None:
        """Keep what is known of a run."""
        assert self.folder is not None
        with new_file(self.folder / row.job / RECORD, overwrite=True) as temporary:
            temporary.write_text(json.dumps(asdict(row)), encoding="utf-8")

    @contextmanager
    def to_its_end(self) -> Iterator[None]:
        """Go on until all runs have ended, also after one of them was lost in a cluster."""
        try:
            yield
        except RuntimeError as error:
            if type(error).__name__ not in LOST or self.folder is None:
                raise
            log.warning("a job of the cluster was lost: waiting for the others")
            wait_for_jobs(self.folder)
        self.end()

    def end(self) -> None:
        """Count runs that have not said how they ended as failed: they were killed."""
        killed = [row for row in self.rows if row.status == "running"]
        for row in killed:
            row.status, row.error = "failed", "ended without a word: killed, out of memory or out of time"
            self.save(row)
        if killed:
            self.write()

    def records(self) -> list[dict[str, Any]]:
        """The rows by column; all have the same columns, "" where one has nothing to say."""
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
        """The table for people: the best run first, failed ones last, without columns that say the same in all."""
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
        """The place of `runs.csv`, as short as it can be said from here."""
        assert self.folder is not None
        return min(str(self.folder / TABLE), os.path.relpath(self.folder / TABLE), key=len)


def _safe(value: object) -> str:
    """A value for the CSV file; only numbers may start with a sign."""
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
    """The block of one run: takes its time, and notes how it ended; errors go on to whoever handles them."""

    def __init__(self, sweep: Sweep, row: Row):
        self.sweep, self.row = sweep, row

    def __enter__(self) -> "Job":
        self.start = time.perf_counter()
        self.sweep.save(self.row)
        return self

    def wrote(self, output: str) -> None:
        """Note what the run is going to write."""
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
