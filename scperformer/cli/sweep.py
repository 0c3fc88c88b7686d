"""The table of a sweep, with a row for each run: its options, its scores and its error; and a picture of the scores."""

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
from scperformer.model.content import INFO

log = logging.getLogger(__name__)

RUNS_TABLE = "runs.csv"
PICTURE = "runs.png"
RUN_RECORD = "run.json"  # in the folder of each run
SCORE = "val_macro_f1"  # the printed table is sorted by this column
BASELINE_SCORE = "baseline_macro_f1"
ENCODER_SCORE = "encoder_macro_f1"  # of the encoder without the linear branch
LEFT_OUT = "0.00"  # the scale of an encoder that adds nothing to the linear branch
LOST_JOB_ERRORS = ("UncompletedJobError", "FailedJobError")  # raised by submitit when a job has ended without a result
NOT_CHOSEN = ("inputs", "output")  # options without a column: the input is the same in every run, the output is named
NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
MAX_CELL_LENGTH = 80  # characters of a cell of the printed table, such as an error


@dataclass
class Row:
    """One run of a sweep."""

    job: str  # its number, which is also the name of its folder
    overrides: dict[str, str]  # the values of the options that its words set
    output: str | None = None  # relative to the folder of the sweep; None: the run has not named it yet
    status: str = "running"  # then "ok" or "failed"
    seconds: float = 0.0
    error: str = ""


@dataclass
class Sweep:
    """All runs of a sweep that have begun; `runs.csv` in its folder is rewritten after each run.

    Runs may be processes on other machines. So each writes a record, `run.json`, into its own folder, and the rows are
    read from these files.
    """

    folder: Path

    @contextmanager
    def job(self, folder: Path, overrides: list[str]) -> Iterator[Callable[[str], None]]:
        """Record the block as one run, in a folder inside the sweep's; yield a function that records its output."""
        self.folder = folder.parent  # as Hydra has resolved it: the user's may contain ${now:...}
        chosen = dict(word.lstrip("+").partition("=")[::2] for word in overrides)
        row = Row(folder.name, {name: value for name, value in chosen.items() if name not in NOT_CHOSEN})
        self.save(row)

        def record_output(output: str) -> None:
            row.output = os.path.relpath(output, folder.parent)
            self.save(row)

        start = time.perf_counter()
        try:
            yield record_output
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
        """Return the runs that have begun, by number; read from their folders each time."""
        rows = [Row(**json.loads(record.read_text(encoding="utf-8"))) for record in self.folder.glob(f"*/{RUN_RECORD}")]
        return sorted(rows, key=lambda row: (len(row.job), row.job))  # 2 before 10

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
        """After the block, wait for all runs, even if the cluster loses one; then record killed runs as failed."""
        try:
            yield
        except RuntimeError as error:
            if type(error).__name__ not in LOST_JOB_ERRORS:
                raise
            import submitit

            # Its launcher stops at the first lost job, while the others still run.
            log.warning("a job of the cluster was lost: waiting for the others")
            for task in sorted((self.folder / ".submitit").glob("[0-9]*_[0-9]*")):  # folders JOB_TASK of a job array
                submitit.SlurmJob(folder=task.parent / "%j", job_id=task.name).wait()
        for row in self.rows:
            if row.status == "running":
                row.status = "failed"
                row.error = "ended without a result: killed, out of memory or out of time"
                self.save(row)
                self.write()

    def records(self) -> list[dict[str, str]]:
        """Return the rows as texts by column, with the scores of trained models; all rows have the same columns."""
        rows = self.rows
        records = []
        score_names: dict[str, None] = {}  # without duplicates, in order
        for row in rows:
            info = self.folder / (row.output or "") / INFO
            metrics = {}
            if row.status == "ok" and info.is_file():
                metrics = json.loads(info.read_text(encoding="utf-8"))["metrics"]
            scores = {}
            if "model" in metrics:  # else it is no model, or an encoder without labels
                for name in ("macro_f1", "accuracy"):
                    scores[f"val_{name}"] = f"{metrics['model'][name]:.4f}"
                    scores[f"baseline_{name}"] = f"{metrics['baseline'][name]:.4f}"
                if "encoder_alone" in metrics:
                    scores[ENCODER_SCORE] = f"{metrics['encoder_alone']['macro_f1']:.4f}"
                    scores["encoder_scale"] = f"{metrics['scales']['encoder']:.2f}"
                scores["best_epoch"] = str(metrics["best_epoch"])
            ended = {"seconds": f"{row.seconds:.1f}", "output": row.output or "", "error": row.error}
            records.append({"job": row.job, "status": row.status} | row.overrides | scores | ended)
            score_names |= dict.fromkeys(scores)
        chosen = [name for row in rows for name in row.overrides]
        columns = dict.fromkeys(["job", "status", *chosen, *score_names, "seconds", "output", "error"])
        return [{name: record.get(name, "") for name in columns} for record in records]

    def write(self) -> None:
        """Write `runs.csv`, with a row for each run, by number."""
        records = self.records()
        with (
            new_file(self.folder / RUNS_TABLE, overwrite=True) as temporary,
            temporary.open("w", newline="", encoding="utf-8") as file,
        ):
            table = csv.writer(file)
            table.writerow(records[0])
            for record in records:  # a sign marks a formula, except in a number such as -1e-3
                table.writerow([text if NUMBER.fullmatch(text) else escape_formula(text) for text in record.values()])

    def draw(self) -> Path | None:
        """Draw the validation macro-F1 of the runs by each option that they vary, into `runs.png`; return its path.

        There is a panel for each option, with a dot for each run and a line through the means of the values. If no run
        uses its encoder, the scores are those of the encoders alone. None: the runs with scores vary no option.
        """
        records = [record for record in self.records() if record.get(SCORE)]
        chosen = dict.fromkeys(name for row in self.rows for name in row.overrides)
        varied = [name for name in chosen if len({record[name] for record in records}) > 1]
        if not varied:
            return None
        from scperformer.base.pictures import draw_scores  # needs matplotlib

        alone = all(record.get("encoder_scale") == LEFT_OUT for record in records)
        column = ENCODER_SCORE if alone else SCORE
        title = "validation macro-F1" + (" of the encoder alone" if alone else "")
        panels = {name: [(record[name], float(record[column])) for record in records] for name in varied}
        baseline = sum(float(record[BASELINE_SCORE]) for record in records) / len(records)
        with new_file(self.folder / PICTURE, overwrite=True) as temporary:
            temporary.write_bytes(draw_scores(panels, title, {"logistic regression": baseline}))
        return self.folder / PICTURE

    def markdown(self) -> str:
        """Return the printed table, the best run first and failed runs last.

        Options with the same value in all runs have no column, and neither have empty columns.
        """
        records = sorted(self.records(), key=lambda record: -float(record.get(SCORE) or -1))
        chosen = {name for row in self.rows for name in row.overrides}
        alike = {name for name in chosen if len({record[name] for record in records}) == 1}
        columns = [name for name in records[0] if name not in alike and any(record[name] for record in records)]
        lines = [columns, ["---"] * len(columns), *([record[name] for name in columns] for record in records)]
        rows = []
        for line in lines:
            cells = [
                text if len(text) <= MAX_CELL_LENGTH else text[: MAX_CELL_LENGTH - 3] + "..."
                for text in map(one_line, line)
            ]
            rows.append("| " + " | ".join(map(escape_pipes, cells)) + " |")
        place = min(str(self.folder / RUNS_TABLE), os.path.relpath(self.folder / RUNS_TABLE), key=len)
        without = sum(record.get("encoder_scale") == LEFT_OUT for record in records)
        are = "run has" if without == 1 else "runs have"
        note = (
            f"{without} {are} the scores of the linear branch, as the encoder is left out: {ENCODER_SCORE} is its own"
        )
        ends = [f"{len(records)} runs, {self.num_failed} failed: {place}", *([note] if without else [])]
        return "\n".join([*rows, "", *ends])
