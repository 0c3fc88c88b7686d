"""Annotate cells with a model: those of an AnnData, or files one by one.

The way of a file: it is opened, its cells are found with the genes of the model (`find_query`), the model is adapted to
them (`adapt_model`), each block of cells gets its calls (`call_block`), from which the annotation is made
(`make_annotation`), and a copy of the file is written with it (`write_annotation`).
"""

from __future__ import annotations

import json
import logging
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from anndata import AnnData

from scperformer.annotation.annotate import Annotation, make_annotation
from scperformer.annotation.columns import require_not_annotated
from scperformer.annotation.finished import identity_of, recorded_identity, why_other
from scperformer.annotation.label_options import find_label_options
from scperformer.annotation.parts import Parts, partial_results, remove_parts
from scperformer.annotation.write import FORMATS, STORE, write_annotation
from scperformer.base.errors import DiskFull, InputError
from scperformer.base.memory import KEPT, freed_memory
from scperformer.base.messages import in_percent
from scperformer.base.outputs import FAILED_SUFFIX, new_file, require_absent
from scperformer.base.progress import progress
from scperformer.cells.query import find_query, require_regular
from scperformer.io.h5ad import BackedH5ad
from scperformer.io.read import checksum, default_output, fingerprint, open_cells, require_readable
from scperformer.io.sheet import described_samples
from scperformer.model.inference import choose_device
from scperformer.model.load import Model, load_model
from scperformer.training.adapt import Adapted, adapt_model
from scperformer.training.calls import Calls, call_block

if TYPE_CHECKING:
    from scperformer.cli.predict import PredictConfig

log = logging.getLogger(__name__)

NUM_NAMED = 3  # files in a line of the log


def annotate_cells(adata: AnnData, model: Model, cfg: PredictConfig, whole: AnnData | None = None) -> str:
    """Add the annotation to an AnnData in memory, and return a paragraph about it; errors as `run_predict`.

    Depth and batch effect are those of all its cells, or of `whole`, of which they are some.
    """
    require_not_annotated(adata, cfg.key_added, replace=cfg.replace_annotation)
    start = time.perf_counter()
    options = find_label_options(adata, model.saved, cfg)
    adapted = _adapted_to(adata, model, cfg, whole=whole)
    blocks = call_all(adapted, cfg)
    annotation = make_annotation(
        adata,
        adapted,
        options,
        cfg,
        read=lambda: blocks,
        num_called=adata.n_obs,
        seconds=time.perf_counter() - start,
    )
    annotation.write_into(adata)
    return annotation.text


def embed_cells(
    cells: AnnData | BackedH5ad, model: Model, cfg: PredictConfig, path: str = "the data", whole: AnnData | None = None
) -> np.ndarray:
    """Return the embedding of the cells of an open file by a model, adapted as for `run_predict`: float32, N x D.

    These are the vectors of the encoder also where it has no influence on the labels; without an encoder, the logits.
    """
    if not model.saved.has_encoder:
        log.warning("model %s has no encoder: the embedding is the logits of the linear branch", model.saved.name)
    adapted = _adapted_to(cells, model, cfg, path, whole)
    return np.concatenate([calls.embedding for calls in call_all(adapted, cfg)])


def annotate_file(path: str, output: Path, model: Model, cfg: PredictConfig, sample: dict[str, str]) -> Annotation:
    """Annotate a file, and write a copy of it or a table; the calls of each block of cells are on disk until then.

    Parameters
    ----------
    sample
        Columns that all its cells get, with their values.
    """
    seen = fingerprint(path)
    with open_cells(path, cfg.orientation) as cells:
        if output.suffix in (".h5ad", ".zarr"):
            require_regular(cells, path)
            require_not_annotated(cells, cfg.key_added, path, replace=cfg.replace_annotation)
        options = find_label_options(cells, model.saved, cfg, path)
        adapted = _adapted_to(cells, model, cfg, path)
        of_condition = adapted.record.get("of_sha256", "")
        identity = identity_of(cfg, model.saved, adapted.query.sha256, of_condition, sample)
        with partial_results(output, identity, len(adapted.query.starts()), resume=cfg.resume) as parts:
            start = time.perf_counter()
            num_called = _call_parts(parts, adapted, cfg)
            seconds = time.perf_counter() - start
            annotation = make_annotation(
                cells, adapted, options, cfg, read=parts.read, num_called=num_called, seconds=seconds
            )
            annotation.record["run"]["identity"] = json.dumps(identity)
            if sample:
                is_stored = isinstance(cells, BackedH5ad)
                existing = {*cells.keys()["obs"], cells.index_name} if is_stored else cells.obs.reset_index().columns
                annotation.describe(sample, existing, path)
            scratch = parts.folder
            write_annotation(annotation, cells, path, output, overwrite=cfg.overwrite, scratch=scratch, seen=seen)
    return annotation


def _adapted_to(
    cells: AnnData | BackedH5ad, model: Model, cfg: PredictConfig, path: str = "the data", whole: AnnData | None = None
) -> Adapted:
    """Adapt a model to open cells, or to all cells of which they are some: `whole`, or the file `cfg.condition_of`."""
    query = find_query(cells, model.saved, cfg, path)
    with_shift = cfg.shift != "false"
    if cfg.condition_of is None and whole is None:
        return adapt_model(model, query, cfg, with_shift=with_shift)
    name = cfg.condition_of or "condition_of"
    with nullcontext(whole) if whole is not None else open_cells(name, cfg.orientation) as all_cells:
        of_all = find_query(all_cells, model.saved, cfg, name)
        return adapt_model(model, query, cfg, with_shift=with_shift, whole=of_all)


def call_all(adapted: Adapted, cfg: PredictConfig) -> list[Calls]:
    """Call all cells of a query, block by block; the calls stay in memory."""
    query = adapted.query
    with progress("annotating", total=query.rows.shape[0], unit="cells") as shown:
        return [call_block(adapted, start, cfg, shown.update) for start in query.starts()]


def _call_parts(parts: Parts, adapted: Adapted, cfg: PredictConfig) -> int:
    """Call the cells of all parts that are not finished; return the number of these cells."""
    query = adapted.query
    starts = query.starts()
    missing = parts.missing
    num_cells = sum(min(query.rows.shape[0] - starts[part], query.rows.block_cells) for part in missing)
    name = default_output(query.path, "").name
    # The arrays of a block have the memory of the last block's: clearing new pages took a sixth of the CPU time.
    with progress(name, total=num_cells, unit="cells") as shown, freed_memory(KEPT):
        for part in missing:
            parts.write(part, call_block(adapted, starts[part], cfg, shown.update))
    return num_cells


def run_predict(cfg: PredictConfig, model: Model | None = None) -> list[Path]:
    """Annotate files: write a copy of each with the annotation added, or a table.

    Without `model`, the model of `cfg.model_path` is used.

    Returns
    -------
    The paths of the annotations: `cfg.output` or `cfg.outputs`, or `<input>.annotated.h5ad` beside each input or in
    `cfg.output_dir`. Inputs that are annotations of other inputs are left out.

    Raises
    ------
    InputError
        A file or the model cannot be used, or an output exists; nothing is written for that file. With `cfg.keep_going`
        the error of a file is logged and written into `<sample>.failed.json` in place of its output, and one error is
        raised after the other files; with `keep_going=ok` nothing is raised.
    """
    cfg = _without_own_outputs(cfg)
    outputs = _outputs_of(cfg)
    sheet = {} if cfg.sample_sheet is None else described_samples(cfg.sample_sheet, cfg.inputs)
    model = model or load_model(cfg.model_path)
    choose_device(cfg.device, cfg.precision)  # a missing GPU is an error of the run, not of each file
    failures = _Failures(cfg)
    waiting: list[tuple[str, Path]] = []
    finished: list[tuple[str, Path]] = []
    for path, output in zip(cfg.inputs, outputs, strict=True):  # all are checked before the first is annotated
        with failures.of_file(path, output):
            require_readable(path)
            _require_writable(output, cfg)
            is_finished = cfg.resume and output.exists() and _is_finished(path, output, model, cfg, sheet.get(path, {}))
            (finished if is_finished else waiting).append((path, output))
    if finished:
        named = ", ".join(str(output) for _, output in finished[:NUM_NAMED])
        more = ", ..." if len(finished) > NUM_NAMED else ""
        log.info("%d of %d files are finished and stay as they are: %s%s", len(finished), len(outputs), named, more)
    _annotate_files(waiting, model, cfg, failures, sheet)
    if failures.errors and cfg.keep_going != "ok":
        found = f"{len(failures.errors)} of {len(outputs)} files that cannot be annotated: {', '.join(failures.errors)}"
        remedy = f"see the error of each of them above, and in {_failed_file(outputs[0]).parent}/*{FAILED_SUFFIX}"
        raise InputError(found, "files that can be annotated", remedy)
    return outputs


def _without_own_outputs(cfg: PredictConfig) -> PredictConfig:
    """Leave out inputs that are annotations of other inputs, which `predict *.h5ad` finds when it runs again."""
    own = {default_output(path, f".annotated{ending}"): path for path in cfg.inputs for ending in FORMATS}
    left_out = {} if cfg.outputs else {path: own[Path(path)] for path in cfg.inputs if Path(path) in own}
    for path, source in left_out.items():
        log.info("skipping %s: output of an earlier run on %s", path, source)
    return replace(cfg, inputs=[path for path in cfg.inputs if path not in left_out])


def _outputs_of(cfg: PredictConfig) -> list[Path]:
    """Return the output of each input; refuse inputs that have the same output."""
    named = cfg.outputs
    if cfg.output:
        named = [cfg.output.replace("{sample}", default_output(path, "").name) for path in cfg.inputs]
    outputs = [Path(name) for name in named] or [default_output(path, ".annotated.h5ad") for path in cfg.inputs]
    if cfg.output_dir is not None:
        outputs = [Path(cfg.output_dir) / output.name for output in outputs]
    for number, output in enumerate(outputs):
        if output in outputs[:number]:
            remedy = "leave one of them out, or name the outputs: outputs=[...]"
            raise InputError(f"two inputs give {output}", "one input per output", remedy)
    return outputs


def _require_writable(output: Path, cfg: PredictConfig) -> None:
    """Refuse an output that cannot be written, or whose name does not end in one of the formats."""
    has_record = output.suffix in (".h5ad", ".zarr", ".parquet")  # of its run, by which resume knows it
    if output.exists() and len(cfg.inputs) > 1 and has_record and not (cfg.overwrite or cfg.resume):
        remedy = "add resume=true to keep what an earlier run has finished, or overwrite=true to replace it"
        raise InputError(f"{output} exists", "new outputs", remedy)
    require_absent(output, cfg.overwrite or cfg.resume, STORE if output.suffix == ".zarr" else None)
    if not output.name.endswith(FORMATS):
        raise InputError(f"output={output}", f"a name that ends in {', '.join(FORMATS)}", "rename it")
    if output.suffix == ".parquet" and find_spec("pyarrow") is None:
        found = f"output={output} without the package pyarrow"
        remedy = "pip install pyarrow, or write .csv"
        raise InputError(found, "pyarrow, which writes Parquet files", remedy)


def _is_finished(path: str, output: Path, model: Model, cfg: PredictConfig, sample: dict[str, str]) -> bool:
    """Return whether an output is the annotation of this run; refuse another one unless it may be replaced."""
    found = recorded_identity(output, cfg.key_added)
    of_condition = "" if cfg.condition_of is None else checksum(cfg.condition_of)
    why = f"no record of an annotation '{cfg.key_added}'"
    if found is not None:
        why = why_other(identity_of(cfg, model.saved, checksum(path), of_condition, sample), found)
    if why and not cfg.overwrite:
        expected = f"an annotation of {path} by the same model and options"
        remedy = "choose another output=..., or add overwrite=true to replace it"
        raise InputError(f"{output} is of another run ({why})", expected, remedy)
    if not why:
        remove_parts(output)  # the earlier run may have been killed before it did
        _failed_file(output).unlink(missing_ok=True)
    return not why


class _Failures:
    """The errors of files that could not be annotated; with `keep_going` they do not stop the run."""

    def __init__(self, cfg: PredictConfig):
        self.errors: dict[str, str] = {}  # by the path of the input
        self.keep_going = cfg.keep_going == "ok" or (cfg.keep_going == "true" and len(cfg.inputs) > 1)

    @contextmanager
    def of_file(self, path: str, output: Path) -> Iterator[None]:
        """Log an error about one file, and write it in place of the output; raise it without `keep_going`."""
        try:
            yield
        except InputError as error:
            if not self.keep_going or isinstance(error, DiskFull):
                raise
            log.error("%s: %s", path, error)
            self.errors[path] = str(error)
            if not output.exists():  # an earlier output stays as it is
                content = {"sample": _sample(output), "input": path, "error": str(error)}
                content["version"] = version("scperformer")
                with new_file(_failed_file(output), overwrite=True) as temporary:
                    temporary.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def _sample(output: Path) -> str:
    """Return the name of the sample of an output."""
    ending = next((ending for ending in FORMATS if output.name.endswith(ending)), "")
    return output.name.removesuffix(ending).removesuffix(".annotated")


def _failed_file(output: Path) -> Path:
    """Return the file that states why an output is missing; `report` shows it as a row."""
    return output.with_name(f"{_sample(output)}{FAILED_SUFFIX}")


def _annotate_files(
    files: list[tuple[str, Path]],
    model: Model,
    cfg: PredictConfig,
    failures: _Failures,
    sheet: dict[str, dict[str, str]],
) -> None:
    """Annotate files, given as input and output, one after the other; log how many cells there are in all.

    `sheet` has columns that all cells of a file get, with their values.
    """
    path_of_content: dict[str, str] = {}  # by the SHA-256 of an input
    nums_cells = []
    num_unknown = 0
    with progress("annotating", total=len(files), unit="files") as shown:
        for path, output in files:
            shown.set_description_str(f"annotating {default_output(path, '').name}", refresh=False)
            with failures.of_file(path, output):
                annotation = annotate_file(path, output, model, cfg, sheet.get(path, {}))
                log.info("written: %s", output)
                _failed_file(output).unlink(missing_ok=True)  # an earlier run may have left it
                nums_cells.append(len(annotation.obs))
                num_unknown += annotation.record["num_unknown"]
                sha256 = annotation.record["input"]["sha256"]
                if (same := path_of_content.setdefault(sha256, path)) != path:
                    log.warning("%s has the same content as %s: a report of both counts its cells twice", path, same)
            shown.update()
    if len(nums_cells) < 2:
        return
    num_cells = sum(nums_cells)
    text = f"{len(nums_cells)} files annotated: {num_cells:,} cells, {in_percent(num_unknown / num_cells)} unknown"
    if cfg.output_dir is not None:
        text += f"; next: scperformer report {shlex.quote(cfg.output_dir)}/*.annotated.h5ad"
    log.info("%s", text)
