"""Annotate several files in one run: their outputs, those that are finished, those that fail, and the total."""

import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scperformer.annotation import predict
from scperformer.annotation.fitted import Model
from scperformer.annotation.load import load_model
from scperformer.annotation.outputs import Failures, failed_file, is_finished, model_hash, outputs_of, require_writable
from scperformer.annotation.write import SEPARATORS, lines_for_r
from scperformer.base.errors import InputError
from scperformer.base.messages import in_percent
from scperformer.base.outputs import FAILED_SUFFIX
from scperformer.base.progress import progress
from scperformer.config.annotation import PredictConfig
from scperformer.config.options import require
from scperformer.io.read import default_output, require_readable
from scperformer.io.sheet import described_samples
from scperformer.model.folder import names_model
from scperformer.model.inference import choose_device

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A file to annotate, its output, its table of markers, and what a sample sheet says of it, by column."""

    path: str
    output: Path
    markers: Path | None
    sample: dict[str, str]


def annotate_files(cfg: PredictConfig, model: Model | None = None) -> list[Path]:
    """Annotate files: write a copy of each with the annotation added, or a table; return the paths of these.

    Inputs that are annotations of other inputs are left out. Nothing is written for a file that is refused. With
    `cfg.keep_going` its error is logged and written into `<sample>.failed.json` in place of its output.
    """
    jobs = _jobs(cfg)
    failures = Failures(cfg.keep_going == "ok" or (cfg.keep_going == "true" and len(jobs) > 1))
    ready = []
    for job in jobs:  # all are checked before the first is annotated
        with failures.of_file(job.path, job.output):
            _require_ready(job, cfg)
            ready.append(job)
    if model is None and names_model(cfg.model_path, cfg.tissue):
        model = load_model(cfg.model_path)
    choose_device(cfg.device, cfg.precision)  # a missing GPU is an error of the run, not of each file
    waiting = ready
    if cfg.resume:
        digest = model_hash(model)
        waiting = [job for job in ready if not is_finished(job.path, job.output, digest, cfg, job.sample)]
    if num_finished := len(ready) - len(waiting):
        log.info("%d of %d files are finished and stay as they are", num_finished, len(jobs))
    _annotate(waiting, model, cfg, failures)
    if failures.errors and cfg.keep_going != "ok":
        found = f"{len(failures.errors)} of {len(jobs)} files that cannot be annotated: {', '.join(failures.errors)}"
        remedy = f"see the error of each of them above, and in {jobs[0].output.parent}/*{FAILED_SUFFIX}"
        raise InputError("files-failed", found, "files that can be annotated", remedy)
    return [job.output for job in jobs]


def _jobs(cfg: PredictConfig) -> list[Job]:
    """Return what is to be done with each input that is not an annotation of another one."""
    files = outputs_of(cfg.inputs, cfg.output, cfg.output_dir, cfg.sample_sheet)
    tables = {} if cfg.markers is None else dict(outputs_of(cfg.inputs, cfg.markers, None, cfg.sample_sheet))
    sheet = {} if cfg.sample_sheet is None else described_samples(cfg.sample_sheet, [path for path, _ in files])
    return [Job(path, output, tables.get(path), sheet.get(path, {})) for path, output in files]


def _require_ready(job: Job, cfg: PredictConfig) -> None:
    """Refuse an input that cannot be read, and outputs that cannot be written."""
    require_readable(job.path)
    require_writable(job.output, cfg.overwrite or cfg.resume)
    if job.markers is not None:
        may_stay = cfg.resume and job.output.exists()  # `is_finished` refuses an output of another run
        require_writable(job.markers, cfg.overwrite or may_stay, list(SEPARATORS), "markers")
        require(job.markers != job.output, "markers", job.markers, "a file that is not the output")


def _annotate(jobs: Sequence[Job], model: Model | None, cfg: PredictConfig, failures: Failures) -> None:
    path_of_content: dict[str, str] = {}  # by the SHA-256 of an input
    num_cells: list[int] = []  # of each annotated file
    num_unknown = 0
    with progress("annotating", total=len(jobs), unit="files") as shown:
        for job in jobs:
            path, output = job.path, job.output
            shown.set_description_str(f"annotating {default_output(path, '').name}", refresh=False)
            with failures.of_file(path, output):
                annotation = predict.annotate_file(path, output, model, cfg, job.sample, job.markers)
                log.info("written: %s", output)
                if line := lines_for_r(output):
                    log.info("in R: %s", line)
                elif require_readable(path) == "rds":
                    log.info("output=%s writes a data.frame for R", default_output(path, ".calls.rds").name)
                failed_file(output).unlink(missing_ok=True)  # an earlier run may have left it
                num_cells.append(len(annotation.obs))
                num_unknown += annotation.record.num_unknown
                if (same := path_of_content.setdefault(annotation.record.input.sha256, path)) != path:
                    log.warning("%s has the same content as %s: a report of both counts its cells twice", path, same)
            shown.update()
    if len(num_cells) > 1:
        share = in_percent(num_unknown / sum(num_cells))
        text = f"{len(num_cells)} files annotated: {sum(num_cells):,} cells, {share} unknown"
        if cfg.output_dir is not None:
            text += f"; next: scperformer report {shlex.quote(cfg.output_dir)}/*.annotated.h5ad"
        log.info("%s", text)
