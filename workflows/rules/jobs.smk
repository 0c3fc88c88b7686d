"""How jobs end: why they failed, which are tried again, how Slurm is asked about them; samples.csv and the last line."""

import atexit
import csv
import logging
import math
import subprocess

import h5py
from scperformer.base.messages import escape_formula
from scperformer.base.outputs import new_file
from scperformer.cli.compose import make_config
from snakemake.logging import logger as snakemake_log
from snakemake_interface_logger_plugins.common import LogEvent

TABLE = f"{OUT}/samples.csv"
SHARES = ("unknown_share", "expected_lowest", "expected_highest")  # columns of it, beside the tissue
ERROR = "error: "  # begins the last line of the log of a step that refuses its input; after `internal`, there is one more
MEMORY = f"{ERROR}memory ran out"  # begins it as well, but with more memory the step may succeed
STATE = re.compile(r"SLURM status is: '(\w+)'")
# By the state that Slurm gives to a job that it ends: what it writes into the log of the job, what it means, and what
# the job has to ask for. Without cgroups, such a job is FAILED.
LIMITS = {
    "OUT_OF_MEMORY": (re.compile("memory limit|oom[-_ ]kill", re.IGNORECASE), "memory ran out", "mem_mb"),
    "TIMEOUT": (re.compile("DUE TO TIME LIMIT"), "the time was over", "runtime"),
}


def end_of(path):
    """Return the last lines of a log; none if it cannot be read."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - 10_000))
            return file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return []


class Failures(logging.Handler):
    """Listens to Snakemake: why jobs failed. A job that refused its input is not tried again: it would do the same."""

    def __init__(self):
        super().__init__()
        self.found = {}  # number of a job -> its log, the reason, and the log that tells of it

    def emit(self, record):
        event = getattr(record, "event", None)
        if event == LogEvent.JOB_FINISHED:
            self.found.pop(record.job_id, None)
        elif event == LogEvent.JOB_ERROR and record.log:
            own, *others = map(str, record.log)
            lines = end_of(own)
            last = next((line for line in reversed(lines[-2:]) if line.startswith((ERROR, f"internal {ERROR}"))), "")
            reason, told = last.removeprefix(ERROR), own
            if last.startswith(ERROR) and not last.startswith(MEMORY):
                workflow.get_rule(record.rule_name).restart_times = 0
            elif ended := ended_by_slurm(record, others):
                reason, told = ended, "".join(others[:1])
            elif not last:
                reason = "its job ended without an error: was it killed, perhaps for lack of memory?"
                reason += f" Its log ends with: {lines[-1][:200]}" if lines else ""
            self.found[record.jobid] = (own, reason, told)

    def of(self, *logs):
        """Return why the first of the jobs with these logs failed that did, and the log that tells of it."""
        found = {own: rest for own, *rest in self.found.values()}
        return next((found[log] for log in logs if log in found), None)


def ended_by_slurm(record, logs):
    """Return why Slurm ended a job, from its state and the log that Slurm keeps of it; empty without Slurm."""
    if not (state := STATE.search(record.rule_msg or "")):
        return ""
    said = "\n".join(line for log in logs for line in end_of(log))
    for name, (pattern, what, resource) in LIMITS.items():
        if state[1] == name or pattern.search(said):
            return f"{what}, and Slurm ended its job; ask for more by --set-resources {record.rule_name}:{resource}=N"
    return f"Slurm ended its job, which is {state[1]}"


FAILURES = Failures()
if workflow.is_main_process:
    snakemake_log.addHandler(FAILURES)


def ask_slurm():
    """Ask `squeue` how jobs end where Slurm keeps no accounts: `sacct` would never say. Tell which of them is asked."""
    settings = workflow.executor_settings
    if not hasattr(settings, "status_command"):  # not on Slurm
        return
    text = "Slurm keeps accounts"
    asked = ["timeout", "60", "sacct", "--allocations", "--noheader", "--starttime=now"]
    if subprocess.run(asked, capture_output=True, check=False).returncode != 0:  # 127: there is no sacct
        text = "Slurm keeps no accounts"
        settings.status_command = "squeue"
        told = subprocess.run(["scontrol", "show", "config"], capture_output=True, text=True, check=False).stdout
        if kept := re.search(r"^MinJobAge\s*= (\d+)", told, re.MULTILINE):
            # squeue forgets a job that has ended after this time: three questions are asked before.
            wait = settings.init_seconds_before_status_checks
            settings.init_seconds_before_status_checks = max(1, min(wait, int(kept[1]) // 3))
    print(f"{text}: {settings.status_command} tells how jobs end", file=sys.stderr)


def annotation_of(path):
    """Return the columns of samples.csv about an annotated file; none if somebody has changed it."""
    from anndata.io import read_elem  # it takes a second to import
    from scperformer.adaptation.record import Record

    key = make_config("predict", ["inputs=[a]", *WORKFLOW.options["predict"]]).key_added
    try:
        with h5py.File(path) as file:
            cells = len(file["obs"][file["obs"].attrs["_index"]])
            record = Record.from_uns(read_elem(file[f"uns/{key}"]), key)
        tissue = record.tissue.title if record.tissue else record.model.tissue
        shares = (record.num_unknown / cells, *record.expected_accuracy)
    except (OSError, KeyError, TypeError, ValueError):
        return {}
    shares = ["" if math.isnan(share) else f"{share:.3f}" for share in shares]
    clusters = record.check.clusters.itertuples() if record.check else ()
    lacking = ", ".join(f"{row.looks_like} ({row.num_cells:,})" for row in clusters)
    found = {"cells": cells, "tissue": escape_formula(tissue), "looks_like": escape_formula(lacking)}
    return found | dict(zip(SHARES, shares, strict=True))


def row_of(sample):
    """Return the row of a sample in samples.csv."""
    if is_pending(sample):
        job = f"{OUT}/logs/predict/{JOB_OF[sample]}.log"
        before = [f"{OUT}/logs/{name}.log" for name in ("train", *(f"prepare/{name}" for name in REFERENCES), "example")]
        reason, log = FAILURES.of(f"{OUT}/logs/settle/{sample}.log", job, *before) or ("its job did not end", job)
        row = {"status": "not annotated", "reason": escape_formula(reason), "log": log if os.path.exists(log) else ""}
    elif failure := failure_of(sample):
        log = f"{OUT}/logs/deliver/{sample}.log"
        row = {"status": "failed", "reason": escape_formula(failure["error"]), "log": log}
    else:
        row = {"status": "annotated"} | annotation_of(files_of(sample)[0])
    return {"sample": sample} | row


def tell_results():
    """Write samples.csv, and print at the end how many samples are annotated, and which are not, with the reason."""
    rows = [row_of(name) for name in SAMPLES]
    with new_file(TABLE, overwrite=True) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, ["sample", "status", "cells", "tissue", "looks_like", *SHARES, "reason", "log"])
        table.writeheader()
        table.writerows(rows)
    bad = [f"{row['sample']}, {row['reason'].rstrip('.')}" for row in rows if row["status"] != "annotated"]
    text = f"{len(rows) - len(bad)} annotated, {len(bad)} failed"
    if bad:
        text += f": {'; '.join(bad[:5])}{f'; and {len(bad) - 5} more' if len(bad) > 5 else ''}"
    text += f"; table: {TABLE}"
    for rule, result in (("evaluate", "evaluation"), ("report", "report")):
        if failure := FAILURES.of(f"{OUT}/logs/{rule}.log"):
            text += f"; no {result}: {failure[0].rstrip('.')}, see {failure[1]}"
        elif result == "report" and os.path.exists(REPORT):
            text += f"; report: {REPORT}"
    atexit.register(print, text, file=sys.stderr)  # after the lines with which snakemake ends
