"""Annotate several files in one run: their outputs, those that are finished, those that fail, and the total."""

import json
import logging
import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import zarr
from anndata import AnnData
from anndata.io import read_elem

from scperformer.adaptation.fitted import Model
from scperformer.adaptation.load import load_model
from scperformer.annotation import predict
from scperformer.annotation.predict import identity_of, model_hash
from scperformer.annotation.write import FORMATS, TABLES, lines_for_r, require_writable
from scperformer.base.errors import DiskFull, InputError, as_bug, as_input_error
from scperformer.base.messages import in_percent
from scperformer.base.outputs import FAILED_SUFFIX, new_file
from scperformer.base.progress import progress
from scperformer.base.signals import signal_received
from scperformer.config.annotation import PredictConfig
from scperformer.config.options import require
from scperformer.io.hdf5_guard import open_hdf5
from scperformer.io.read import checksum, default_output, require_readable
from scperformer.io.safety import reading
from scperformer.io.sheet import described_samples, sample_names
from scperformer.model.folder import names_model
from scperformer.model.inference import choose_device

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Job:
    """A file to annotate, its output, its table of clusters, and what a sample sheet says of it, by column."""

    path: str
    output: Path
    markers: Path | None
    sample: dict[str, str]
    kind: str = ""  # of the file, once it was checked


@contextmanager
def failing(job: Job, errors: dict[str, str] | None) -> Iterator[None]:
    """Log an error about a file, or a bug, add it to `errors`, and write it in place of the output; None: raise it."""
    try:
        yield
    except Exception as error:  # none may cost the files after it
        known = as_input_error(error)
        if errors is None or isinstance(known, DiskFull) or signal_received():
            raise
        text = as_bug(error) if known is None else str(known)
        log.error("%s: %s", job.path, text)
        errors[job.path] = text
        if not job.output.exists():  # an earlier output stays as it is
            code = "internal-error" if known is None else known.code
            content = {
                "sample": _sample(job.output),
                "input": job.path,
                "error": text,
                "code": code,
            }
            content["version"] = version("scperformer")
            with new_file(failed_file(job.output), overwrite=True) as temporary:
                temporary.write_text(
                    json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8"
                )


def model_for(
    source: str | AnnData, cfg: PredictConfig, model: Model | None
) -> AbstractContextManager[Model | None]:
    """Return the model for a file or cells in memory: that of the list `cfg.types`, if there is one."""
    if cfg.types is None:
        return nullcontext(model)
    from scperformer.tasks.marker_model import model_of_markers  # loads what trains

    return model_of_markers(source, cfg)


def annotate_files(cfg: PredictConfig, model: Model | None = None) -> list[Path]:
    """Annotate files: write a copy of each with the annotation added, or a table; return the paths of these.

    Inputs that are annotations of other inputs are left out. Nothing is written for a file that is refused. With
    `cfg.keep_going` its error is logged and written into `<sample>.failed.json` in place of its output.
    """
    files = outputs_of(cfg.inputs, cfg.output, cfg.output_dir, cfg.sample_sheet)
    named = cfg.markers_output
    tables = {} if named is None else dict(outputs_of(cfg.inputs, named, None, cfg.sample_sheet))
    sheet = (
        {}
        if cfg.sample_sheet is None
        else described_samples(cfg.sample_sheet, [path for path, _ in files])
    )
    jobs = [Job(path, output, tables.get(path), sheet.get(path, {})) for path, output in files]
    goes_on = cfg.keep_going == "ok" or (cfg.keep_going == "true" and len(jobs) > 1)
    errors: dict[str, str] | None = {} if goes_on else None
    ready = []
    for job in jobs:  # all are checked before the first is annotated
        with failing(job, errors):
            kind = require_readable(job.path)
            require_writable(job.output, cfg.overwrite or cfg.resume)
            if job.markers is not None:
                require(
                    job.markers != job.output,
                    "markers_output",
                    job.markers,
                    "a file that is not the output",
                )
            ready.append(replace(job, kind=kind))
    if model is None and names_model(cfg.model_path, cfg.tissue):
        model = load_model(cfg.model_path)
    # a missing GPU is an error of the run, not of each file
    choose_device(cfg.device, cfg.precision)
    digest = model_hash(model, cfg.types) if cfg.resume else ""
    finished = [job for job in ready if cfg.resume and is_finished(job, digest, cfg)]
    if finished:
        log.info("%d of %d files are finished and stay as they are", len(finished), len(jobs))
    waiting = []
    for job in ready:
        if job not in finished:
            with failing(job, errors):
                # the table of a finished file may hold names by a person
                if job.markers is not None:
                    require_writable(job.markers, cfg.overwrite, TABLES, "markers_output")
                waiting.append(job)
    _annotate(waiting, model, cfg, errors)
    if errors and cfg.keep_going != "ok":
        found = f"{len(errors)} of {len(jobs)} files that cannot be annotated: {', '.join(errors)}"
        remedy = (
            f"see the error of each of them above, and in {jobs[0].output.parent}/*{FAILED_SUFFIX}"
        )
        raise InputError("files-failed", found, "files that can be annotated", remedy)
    return [job.output for job in jobs]


def _annotate(
    jobs: Sequence[Job], model: Model | None, cfg: PredictConfig, errors: dict[str, str] | None
) -> None:
    path_of_content: dict[str, str] = {}  # by the SHA-256 of an input
    num_cells: list[int] = []  # of each annotated file
    num_unknown = 0
    with progress("annotating", total=len(jobs), unit="files") as shown:
        for job in jobs:
            path = job.path
            output = job.output
            shown.set_description_str(f"annotating {default_output(path, '').name}", refresh=False)
            with failing(job, errors):
                with model_for(path, cfg, model) as ready:
                    annotation = predict.annotate_file(
                        path, output, ready, cfg, job.sample, job.markers
                    )
                log.info("written: %s", output)
                for line in (lines := lines_for_r(output)):
                    log.info("in R: %s", line)
                if not lines and job.kind == "rds":
                    log.info(
                        "output=%s writes a data.frame for R",
                        default_output(path, ".calls.rds").name,
                    )
                failed_file(output).unlink(missing_ok=True)  # an earlier run may have left it
                num_cells.append(len(annotation.obs))
                num_unknown += annotation.record.num_unknown
                if (
                    same := path_of_content.setdefault(annotation.record.input.sha256, path)
                ) != path:
                    log.warning(
                        "%s has the same content as %s: a report of both counts its cells twice",
                        path,
                        same,
                    )
            shown.update()
    if len(num_cells) > 1:
        share = in_percent(num_unknown / sum(num_cells))
        text = f"{len(num_cells)} files annotated: {sum(num_cells):,} cells, {share} unknown"
        if cfg.output_dir is not None:
            text += f"; next: scperformer report {shlex.quote(cfg.output_dir)}/*.annotated.h5ad"
        log.info("%s", text)


def outputs_of(
    inputs: Sequence[str], output: str | None, output_dir: str | None, sample_sheet: str | None
) -> list[tuple[str, Path]]:
    """Return each input with its output; inputs that are annotations of other inputs are left out.

    `predict *.h5ad` finds such inputs when it runs again. `{sample}` in an output is the name of a file, or its
    sample in `sample_sheet`. Two inputs with the same output are refused.
    """
    kinds = [*(f".annotated{ending}" for ending in FORMATS), ".curated.h5ad"]
    annotations = {default_output(path, kind): path for path in inputs for kind in kinds}
    for name in inputs:
        if (source := annotations.get(Path(name))) is not None:
            log.info("skipping %s: output of an earlier run on %s", name, source)
    inputs = [path for path in inputs if Path(path) not in annotations]
    if output is None and output_dir is not None:
        output = f"{output_dir}/{{sample}}.annotated.h5ad"
    named = [default_output(path, ".annotated.h5ad") for path in inputs]
    if output is not None:
        names = {} if sample_sheet is None else sample_names(sample_sheet)
        samples = [
            names.get(os.path.realpath(path), default_output(path, "").name) for path in inputs
        ]
        named = [Path(output.replace("{sample}", sample)) for sample in samples]
    for number, path in enumerate(named):
        if path in named[:number]:
            remedy = (
                "leave one of them out, or give each a name in the column sample of a sample_sheet"
            )
            raise InputError(
                "same-output", f"two inputs give {path}", "one input per output", remedy
            )
    return list(zip(inputs, named, strict=True))


def is_finished(job: Job, of_model: str, cfg: PredictConfig) -> bool:
    """Return whether an output is the annotation of this run; refuse another one unless it may be replaced."""
    path = job.path
    output = job.output
    if not output.exists():
        return False
    place = f"uns/{cfg.key_added}/run/identity"
    text: Any = None
    with reading(output, "a complete annotation"):
        if output.suffix in (".h5ad", ".zarr"):  # a table has no record
            root = (
                zarr.open_group(output, mode="r") if output.suffix == ".zarr" else open_hdf5(output)
            )
            text = read_elem(root[place]) if place in root else None
        found = None if text is None else json.loads(text)
    why = f"no record of an annotation '{cfg.key_added}'"
    if found is not None:
        of_full_sample = "" if cfg.full_sample is None else checksum(cfg.full_sample)
        identity = identity_of(cfg, of_model, checksum(path), of_full_sample, job.sample)
        why = ", ".join(f"other {name}" for name in identity if found.get(name) != identity[name])
    if why and not cfg.overwrite:
        expected = f"an annotation of {path} by the same model and options"
        remedy = "choose another output=..., or add overwrite=true to replace it"
        raise InputError("other-run", f"{output} is of another run ({why})", expected, remedy)
    if not why:
        failed_file(output).unlink(missing_ok=True)
    return not why


def _sample(output: Path) -> str:
    ending = next((ending for ending in FORMATS if output.name.endswith(ending)), "")
    return output.name.removesuffix(ending).removesuffix(".annotated")


def failed_file(output: Path) -> Path:
    """Return the file that states why an output is missing; `report` shows it as a row."""
    return output.with_name(f"{_sample(output)}{FAILED_SUFFIX}")
