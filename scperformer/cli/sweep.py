"""A sweep: a record of each run in its folder, and a table of all runs with their options, scores and errors."""

import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd

from scperformer.base.errors import one_line
from scperformer.base.messages import escape_formula
from scperformer.base.outputs import new_file
from scperformer.model.content import INFO

log = logging.getLogger(__name__)

RUNS_TABLE = "runs.csv"
RUN_RECORD = "run.json"  # in the folder of each run
SCORE = "val_macro_f1"  # the printed table is sorted by this column
ENCODER_SCORE = "encoder_macro_f1"  # of the encoder without the linear branch
LOST_JOB_ERRORS = ("UncompletedJobError", "FailedJobError")  # raised by submitit when a job has ended without a result
NOT_CHOSEN = ("inputs", "output")  # options without a column: the input is the same in every run, the output is named
NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
MAX_CELL_LENGTH = 80  # characters of a cell of the printed table, such as an error


class Sweep:
    """All runs of a sweep that have begun; `runs.csv` in its folder is rewritten after each run.

    Runs may be processes on other machines. So each writes a record, `run.json`, into its own folder, and the table is
    made from these files.
    """

    def __init__(self, folder: Path):
        self.folder = folder

    @contextmanager
    def job(self, folder: Path, overrides: list[str]) -> Iterator[Callable[[str], None]]:
        """Record the block as one run, in a folder inside the sweep's; yield a function that records its output."""
        self.folder = folder.parent  # as Hydra has resolved it: the user's may contain ${now:...}
        chosen = dict(word.lstrip("+").partition("=")[::2] for word in overrides)
        record: dict[str, Any] = {"job": folder.name, "status": "running", "seconds": 0.0, "output": "", "error": ""}
        record["options"] = {name: value for name, value in chosen.items() if name not in NOT_CHOSEN}

        def record_output(output: str) -> None:
            record["output"] = os.path.relpath(output, folder.parent)
            self._save(record)

        self._save(record)
        start = time.perf_counter()
        try:
            yield record_output
            record["status"] = "ok"
        except BaseException as error:
            text = "interrupted" if isinstance(error, SystemExit | KeyboardInterrupt) else str(error)
            record |= {"status": "failed", "error": one_line(text) or type(error).__name__}
            raise
        finally:
            self._save(record | {"seconds": round(time.perf_counter() - start, 1)})
            self.write()

    def _save(self, record: dict[str, Any]) -> None:
        with new_file(self.folder / record["job"] / RUN_RECORD, overwrite=True) as temporary:
            temporary.write_text(json.dumps(record), encoding="utf-8")

    @property
    def records(self) -> list[dict[str, Any]]:
        """The records of the runs that have begun, by number; read from their folders each time."""
        records = [json.loads(path.read_text(encoding="utf-8")) for path in self.folder.glob(f"*/{RUN_RECORD}")]
        return sorted(records, key=lambda record: (len(record["job"]), record["job"]))  # 2 before 10

    @property
    def num_failed(self) -> int:
        """How many runs have failed."""
        return sum(record["status"] == "failed" for record in self.records)

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
        for record in self.records:
            if record["status"] == "running":
                why = "ended without a result: killed, out of memory or out of time"
                self._save(record | {"status": "failed", "error": why})
                self.write()

    def table(self) -> pd.DataFrame:
        """Return a row for each run: its number, status, options, scores, seconds, output and error."""
        rows = []
        for record in self.records:
            row = {"job": record["job"], "status": record["status"]} | record["options"]
            info = self.folder / record["output"] / INFO
            metrics = {}
            if record["status"] == "ok" and info.is_file():
                metrics = json.loads(info.read_text(encoding="utf-8"))["metrics"]
            if "model" in metrics:  # else it is no model, or an encoder without labels
                for name in ("macro_f1", "accuracy"):
                    row |= {f"val_{name}": metrics["model"][name], f"baseline_{name}": metrics["baseline"][name]}
                if "encoder_alone" in metrics:
                    scale = round(metrics["scales"]["encoder"], 2)
                    row |= {ENCODER_SCORE: metrics["encoder_alone"]["macro_f1"], "encoder_scale": scale}
                row["best_epoch"] = metrics["best_epoch"]
            rows.append(row | {name: record[name] for name in ("seconds", "output", "error")})
        table = pd.DataFrame(rows).convert_dtypes()  # whole numbers stay whole where some are missing
        last = ["seconds", "output", "error"]
        scores = [name for name in table if name.startswith(("val_", "baseline_", "encoder_", "best_"))]
        chosen = list(dict.fromkeys(name for record in self.records for name in record["options"]))
        return table[["job", "status", *chosen, *scores, *last]]

    def write(self) -> None:
        """Write `runs.csv`, with a row for each run, by number."""
        table = self.table()
        for name in table.select_dtypes("string"):  # a sign marks a formula, except in a number such as -1e-3
            table[name] = [text if NUMBER.fullmatch(text) else escape_formula(text) for text in table[name].fillna("")]
        with new_file(self.folder / RUNS_TABLE, overwrite=True) as temporary:
            table.to_csv(temporary, index=False, float_format="%.4f")

    def text(self) -> str:
        """Return the printed table, the best run first and failed runs last.

        Options with the same value in all runs have no column, and neither have empty columns.
        """
        table = self.table()
        chosen = {name for record in self.records for name in record["options"]}
        kept = [
            name
            for name in table
            if table[name].replace("", pd.NA).notna().any() and (name not in chosen or table[name].nunique() > 1)
        ]
        lines = []
        if SCORE in table:
            table = table.sort_values(SCORE, ascending=False, kind="stable", na_position="last")
            if without := int((table.get("encoder_scale") == 0).sum()) if "encoder_scale" in table else 0:
                lines = [f"{without} of the runs leave the encoder out: {ENCODER_SCORE} is the score of it alone"]
        place = min(str(self.folder / RUNS_TABLE), os.path.relpath(self.folder / RUNS_TABLE), key=len)
        for name in table.select_dtypes("string"):
            table[name] = [one_line(text)[:MAX_CELL_LENGTH] for text in table[name].fillna("")]
        shown = table[kept].to_string(index=False, na_rep="", float_format="{:.4g}".format)
        return "\n".join([shown, "", *lines, f"{len(table)} runs, {self.num_failed} failed: {place}"])
