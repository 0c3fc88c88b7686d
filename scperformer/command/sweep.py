"""The table of a sweep: a row for each run, with its options, its scores and its error."""

import csv
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from scperformer.base.errors import one_line
from scperformer.base.messages import escape_formula, escape_pipes
from scperformer.base.outputs import new_file

log = logging.getLogger(__name__)

RUNS_TABLE = "runs.csv"
RUN_RECORD = "run.json"  # in the folder of each run
SCORE = "val_macro_f1"  # the best runs come first in the printed table
LOST = ("UncompletedJobError", "FailedJobError")  # raised by submitit when a job has ended without a result
NOT_CHOSEN = ("inputs", "output")  # the same in every run, or made for it
NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
MAX_TEXT = 80  # characters of an error in the printed table


@dataclass
class Row:
    """One run: its number in the sweep, its overrides, its output and how it ended."""

    job: str
    overrides: dict[str, str]
    output: str | None = None
    status: str = "running"
    seconds: float = 0.0
    error: str = ""


@dataclass
class Sweep:
    """All runs of a sweep so far; `runs.csv` in its folder is written again after each of them.

    Runs may be in other processes, on other machines: each has its record in its folder.
    """

    folder: Path

    @contextmanager
    def job(self, folder: Path, overrides: list[str]) -> Iterator[Callable[[str], None]]:
        """Record the block as one run in a folder inside the sweep's; gives a function that records its output."""
        self.folder = folder.parent
        chosen = dict(word.lstrip("+").partition("=")[::2] for word in overrides)
        row = Row(folder.name, {name: value for name, value in chosen.items() if name not in NOT_CHOSEN})
        self.save(row)

        def wrote(output: str) -> None:
            row.output = os.path.relpath(output, folder.parent)
            self.save(row)

        start = time.perf_counter()
        try:
            yield wrote
            row.status = "ok"
        except BaseException as error:
            text = "interrupted" if isinstance(error, SystemExit | KeyboardInterrupt) else str(error)
            row.status = "failed"
            row.error = one_line(text) or type(error).__name__
            raise
        finally:
            row.seconds = time.perf_counter() - start
            self.save(row)
            self.write()

    @property
    def rows(self) -> list[Row]:
        """Return the runs that have begun, in their order."""
        rows = [Row(**json.loads(record.read_text(encoding="utf-8"))) for record in self.folder.glob(f"*/{RUN_RECORD}")]
        return sorted(rows, key=lambda row: (len(row.job), row.job))

    @property
    def num_failed(self) -> int:
        """Return how many runs have failed."""
        return sum(row.status == "failed" for row in self.rows)

    def save(self, row: Row) -> None:
        """Write the record of a run."""
        with new_file(self.folder / row.job / RUN_RECORD, overwrite=True) as temporary:
            temporary.write_text(json.dumps(asdict(row)), encoding="utf-8")

    @contextmanager
    def to_its_end(self) -> Iterator[None]:
        """Wait until all runs have ended, also if the cluster loses one; those without an end were killed."""
        try:
            yield
        except RuntimeError as error:
            if type(error).__name__ not in LOST:
                raise
            import submitit  # it gives up when one job is lost

            log.warning("a job of the cluster was lost: waiting for the others")
            for place in sorted((self.folder / ".submitit").glob("[0-9]*_[0-9]*")):  # the tasks of an array
                submitit.SlurmJob(folder=place.parent / "%j", job_id=place.name).wait()
        for row in self.rows:
            if row.status == "running":
                row.status = "failed"
                row.error = "ended without a word: killed, out of memory or out of time"
                self.save(row)
                self.write()

    def records(self) -> list[dict[str, str]]:
        """Return the rows as texts by column, with the scores of trained models; all have the same columns."""
        from scperformer.model import INFO  # imports readers of h5ad, which --cfg job does not need

        rows = self.rows
        records = []
        scores: dict[str, None] = {}  # their names, in order
        for row in rows:
            info = self.folder / (row.output or "") / INFO
            found = {}
            if row.status == "ok" and info.is_file():
                metrics = json.loads(info.read_text(encoding="utf-8"))["metrics"]
                for name in ("macro_f1", "accuracy"):
                    found[f"val_{name}"] = f"{metrics['model'][name]:.4f}"
                    found[f"baseline_{name}"] = f"{metrics['baseline'][name]:.4f}"
                found["best_epoch"] = str(metrics["best_epoch"])
            ended = {"seconds": f"{row.seconds:.1f}", "output": row.output or "", "error": row.error}
            records.append({"job": row.job, "status": row.status} | row.overrides | found | ended)
            scores |= dict.fromkeys(found)
        chosen = [name for row in rows for name in row.overrides]
        columns = dict.fromkeys(["job", "status", *chosen, *scores, "seconds", "output", "error"])
        return [{name: record.get(name, "") for name in columns} for record in records]

    def write(self) -> None:
        """Write `runs.csv`, a row per run in their order."""
        records = self.records()
        with new_file(self.folder / RUNS_TABLE, overwrite=True) as temporary, temporary.open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(records[0])
            for record in records:  # only numbers may start with a sign
                table.writerow([text if NUMBER.fullmatch(text) else escape_formula(text) for text in record.values()])

    def markdown(self) -> str:
        """Return the printed table: the best run first, failed runs last, without columns equal in all rows."""
        records = sorted(self.records(), key=lambda record: -float(record.get(SCORE) or -1))
        chosen = {name for row in self.rows for name in row.overrides}
        alike = {name for name in chosen if len({record[name] for record in records}) == 1}
        columns = [name for name in records[0] if name not in alike and any(record[name] for record in records)]
        lines = [columns, ["---"] * len(columns), *([record[name] for name in columns] for record in records)]
        rows = []
        for line in lines:
            cells = [text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..." for text in map(one_line, line)]
            rows.append("| " + " | ".join(map(escape_pipes, cells)) + " |")
        place = min(str(self.folder / RUNS_TABLE), os.path.relpath(self.folder / RUNS_TABLE), key=len)
        return "\n".join([*rows, "", f"{len(records)} runs, {self.num_failed} failed: {place}"])
