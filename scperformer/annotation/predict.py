"""Annotate cells with a model: add labels and their probabilities to an AnnData, or write them to a file.

A file is annotated block by block: the calls of each block are written to disk as a part of the result, from which the
annotation is made when all parts are finished.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from anndata import AnnData

from scperformer.annotation.annotate import make_annotation
from scperformer.annotation.columns import require_not_annotated, require_other_index
from scperformer.annotation.finished import NOT_IN_RESULT, why_other
from scperformer.annotation.label_options import find_label_options
from scperformer.annotation.parts import Parts, partial_results, remove_parts
from scperformer.annotation.several import add_annotation, keys_of, record_in_file, record_in_memory
from scperformer.annotation.write import FORMATS, STORE, write_annotation
from scperformer.base.errors import DiskFull, InputError
from scperformer.base.memory import KEPT, freed_memory
from scperformer.base.messages import in_percent
from scperformer.base.outputs import FAILED_SUFFIX, new_file, require_absent
from scperformer.base.progress import progress
from scperformer.cells.query import find_query, require_regular
from scperformer.io.h5ad import BackedH5ad
from scperformer.io.read import default_output, fingerprint, open_cells, require_readable
from scperformer.io.sheet import described_samples
from scperformer.model.inference import choose_device
from scperformer.model.load import Model, load_model
from scperformer.training.adapt import Adapted, adapt_model
from scperformer.training.calls import Calls, call_block

if TYPE_CHECKING:
    from scperformer.cli.predict import PredictConfig

log = logging.getLogger(__name__)

NUM_NAMED = 3  # files in a line of the log

# Options that change no call: they may differ when an unfinished file is resumed. Parts hold probabilities,
# scores and draws; flags, sets and names are made from these when all parts are finished.
NOT_IN_CALLS = NOT_IN_RESULT | {
    *("allow_labels", "deny_labels", "prior", "clusters", "ontology", "quality"),
    *("mode", "p_thres", "majority_voting", "min_prop"),
    *("false_alarms", "min_confidence", "alpha"),
}


def call_all(adapted: Adapted, cfg: PredictConfig) -> list[Calls]:
    """Call all cells of a query, block by block; the calls stay in memory."""
    query = adapted.query
    with progress("annotating", total=query.rows.shape[0], unit="cells") as shown:
        return [call_block(adapted, start, cfg, shown.update) for start in query.starts()]


@contextmanager
def _adapted_to(
    cells: AnnData | BackedH5ad, model: Model, cfg: PredictConfig, path: str = "the data", whole: AnnData | None = None
) -> Iterator[Adapted]:
    """Adapt a model to open cells, or to all of which they are some: `whole`, or the file `cfg.condition_of`."""
    query = find_query(cells, model.saved, cfg, path)
    with_shift = cfg.shift != "false"
    if cfg.condition_of is None and whole is None:
        yield adapt_model(model, query, cfg, with_shift=with_shift)
        return
    name = cfg.condition_of or "condition_of"
    with nullcontext(whole) if whole is not None else open_cells(name, cfg.orientation) as all_cells:
        of_all = find_query(all_cells, model.saved, cfg, name)
        yield adapt_model(model, query, cfg, with_shift=with_shift, whole=of_all)


def annotate_cells(adata: AnnData, model: Model, cfg: PredictConfig, whole: AnnData | None = None) -> str:
    """Add the annotation to an AnnData in memory, and return a paragraph about it; errors as `run_predict`.

    Depth and batch effect are those of all its cells, or of `whole`, of which they are some.
    """
    if cfg.other_models:
        models = [model, *map(load_model, cfg.other_models)]
        keys = keys_of(models, cfg.key_added)
        for key in keys if not cfg.replace_annotation else []:
            require_not_annotated(adata, key)
        texts = [
            annotate_cells(adata, each, replace(cfg, key_added=key, other_models=[]), whole)
            for each, key in zip(models, keys, strict=True)
        ]
        record_in_memory(adata, models, keys)
        return "\n".join(texts)
    if not cfg.replace_annotation:
        require_not_annotated(adata, cfg.key_added)
    require_other_index(adata, cfg.key_added)
    _require_own_probabilities(model, cfg)
    start = time.perf_counter()
    options = find_label_options(adata, model.saved, cfg)
    with _adapted_to(adata, model, cfg, whole=whole) as adapted:
        blocks = call_all(adapted, cfg)
    seconds = time.perf_counter() - start
    annotation = make_annotation(
        adata, adapted, options, cfg, read=lambda: blocks, num_called=adata.n_obs, seconds=seconds
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
    with _adapted_to(cells, model, cfg, path, whole) as adapted:
        return np.concatenate([calls.embedding for calls in call_all(adapted, cfg)])


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
    described = {} if cfg.sample_sheet is None else described_samples(cfg.sample_sheet, cfg.inputs)
    failures = _Failures(cfg)
    ready = []
    for path, output in zip(cfg.inputs, outputs, strict=True):  # all are checked before the first is annotated
        with failures.of_file(path, output):
            require_readable(path)
            _require_writable(output, cfg)
            ready.append((path, output))
    model = model or load_model(cfg.model_path)
    models = [model, *map(load_model, cfg.other_models)]
    keys_of(models, cfg.key_added)  # two models of one name are an error of the run
    for each in models:
        _require_own_probabilities(each, cfg)
    choose_device(cfg.device, cfg.precision)  # a missing GPU is an error of the run, not of each file
    if cfg.resume:
        ready = _unfinished(ready, models, cfg, failures, described)
    _annotate_files(ready, models, cfg, failures, described)
    if failures.errors and cfg.keep_going != "ok":
        found = f"{len(failures.errors)} of {len(outputs)} files that cannot be annotated: {', '.join(failures.errors)}"
        remedy = f"see the error of each of them above, and in {_failed_file(outputs[0]).parent}/*{FAILED_SUFFIX}"
        raise InputError(found, "files that can be annotated", remedy)
    return outputs


def _require_own_probabilities(model: Model, cfg: PredictConfig) -> None:
    """Refuse `mode=prob_match` for a model whose labels share one probability: at most one is above a half."""
    if cfg.mode == "prob_match" and not model.saved.has_independent_labels:
        found = f"mode=prob_match and the model {model.saved.name}, whose probabilities add up to 1"
        raise InputError(found, "a model of CellTypist", "use alpha=0.1, which gives each cell a set of labels")


def _without_own_outputs(cfg: PredictConfig) -> PredictConfig:
    """Leave out inputs that are annotations of other inputs, which `predict *.h5ad` finds when it runs again."""
    own = {default_output(path, f".annotated{ending}"): path for path in cfg.inputs for ending in FORMATS}
    left_out = {} if cfg.outputs else {path: own[Path(path)] for path in cfg.inputs if Path(path) in own}
    for path, source in left_out.items():
        log.info("%s is left out: it is the annotation of %s", path, source)
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
    if cfg.other_models and output.suffix != ".h5ad":
        raise InputError(f"output={output} of several models", "a name in .h5ad", "rename it")
    if not output.name.endswith(FORMATS):
        raise InputError(f"output={output}", f"a name that ends in {', '.join(FORMATS)}", "rename it")
    if output.suffix == ".parquet" and find_spec("pyarrow") is None:
        found = f"output={output} without the package pyarrow"
        remedy = "pip install pyarrow, or write .csv"
        raise InputError(found, "pyarrow, which writes Parquet files", remedy)


class Written(NamedTuple):
    """What the log says at the end about a file that was annotated."""

    sha256: str  # of the input
    num_cells: int
    num_unknown: int


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


def _unfinished(
    files: list[tuple[str, Path]],
    models: list[Model],
    cfg: PredictConfig,
    failures: _Failures,
    described: dict[str, dict[str, str]],
) -> list[tuple[str, Path]]:
    """Leave out files, given as input and output, that an earlier run of the same models and options has finished.

    Raises
    ------
    InputError
        An output is of another run, and `overwrite` does not allow to replace it.
    """
    remaining = []
    finished = []
    for path, output in files:
        with failures.of_file(path, output):
            why = why_other(output, path, models, cfg, described.get(path, {})) if output.exists() else "no output"
            if output.exists() and why and not cfg.overwrite:
                expected = f"an annotation of {path} by the same model and options"
                remedy = "choose another output=..., or add overwrite=true to replace it"
                raise InputError(f"{output} is of another run ({why})", expected, remedy)
            if why:
                remaining.append((path, output))
                continue
            remove_parts(output)  # the earlier run may have been killed before it did
            _failed_file(output).unlink(missing_ok=True)
            finished.append(str(output))
    if finished:
        named = f"{', '.join(finished[:NUM_NAMED])}{', ...' if len(finished) > NUM_NAMED else ''}"
        log.info("%d of %d files are finished and stay as they are: %s", len(finished), len(files), named)
    return remaining


def _annotate_files(
    files: list[tuple[str, Path]],
    models: list[Model],
    cfg: PredictConfig,
    failures: _Failures,
    described: dict[str, dict[str, str]],
) -> None:
    """Annotate files, given as input and output, one after the other.

    `described` has columns that all cells of a file get, with their values.
    """
    path_of_content: dict[str, str] = {}  # by the SHA-256 of an input
    done: list[Written] = []
    with progress("annotating", total=len(files), unit="files") as shown:
        for path, output in files:
            shown.set_description_str(f"annotating {default_output(path, '').name}", refresh=False)
            with failures.of_file(path, output):
                of_sample = described.get(path, {})
                if len(models) > 1:
                    written = _annotate_by_several(path, output, models, cfg, of_sample)
                else:
                    written = _annotate_file(path, output, models[0], cfg, of_sample)
                done.append(written)
                log.info("written: %s", output)
                _failed_file(output).unlink(missing_ok=True)  # an earlier run may have left it
                if (same := path_of_content.setdefault(written.sha256, path)) != path:
                    log.warning("%s has the same content as %s: a report of both counts its cells twice", path, same)
            shown.update()
    if len(done) < 2:
        return
    num_cells = sum(written.num_cells for written in done)
    unknown = sum(written.num_unknown for written in done) / num_cells
    text = f"{len(done)} files annotated: {num_cells:,} cells, {in_percent(unknown)} of them unknown"
    if cfg.output_dir is not None:
        text += f"; next: scperformer report {shlex.quote(cfg.output_dir)}/*.annotated.h5ad"
    log.info("%s", text)


def _annotate_by_several(
    path: str, output: Path, models: list[Model], cfg: PredictConfig, described: dict[str, str]
) -> Written:
    """Annotate a file by one model after the other, and put all annotations into one copy of it."""
    keys = keys_of(models, cfg.key_added)
    if not cfg.replace_annotation:
        with open_cells(path, cfg.orientation) as cells:
            for key in keys:
                require_not_annotated(cells, key, path)
    existing = next(parent for parent in output.resolve().parents if parent.is_dir())
    with tempfile.TemporaryDirectory(dir=existing, prefix=".scperformer-") as folder:
        first = Path(folder) / "first.h5ad"
        written = []
        for model, key in zip(models, keys, strict=True):
            place = first if key == keys[0] else Path(folder) / "other.h5ad"
            of_sample = described if place == first else {}
            own = replace(cfg, key_added=key, replace_annotation=True, resume=False)
            written.append(_annotate_file(path, place, model, own, of_sample))
            if place != first:
                add_annotation(first, place, key)
                place.unlink()
        record_in_file(first, models, keys)
        with new_file(output, cfg.overwrite) as temporary:
            shutil.move(first, temporary)
    return written[0]


def _annotate_file(path: str, output: Path, model: Model, cfg: PredictConfig, described: dict[str, str]) -> Written:
    """Annotate a file, one block of cells at a time."""
    seen = fingerprint(path)
    with open_cells(path, cfg.orientation) as cells:
        if output.suffix in (".h5ad", ".zarr"):
            require_regular(cells, path)
            require_other_index(cells, cfg.key_added, path)
            if not cfg.replace_annotation:
                require_not_annotated(cells, cfg.key_added, path)
        options = find_label_options(cells, model.saved, cfg, path)
        with _adapted_to(cells, model, cfg, path) as adapted:
            query = adapted.query
        identity = _identity_of(adapted, model, cfg)
        with partial_results(output, identity, len(query.starts()), resume=cfg.resume) as parts:
            num_called, seconds = _call_parts(parts, adapted, cfg)
            annotation = make_annotation(
                cells, adapted, options, cfg, read=parts.read, num_called=num_called, seconds=seconds
            )
            if described:
                is_stored = isinstance(cells, BackedH5ad)
                existing = {*cells.keys()["obs"], cells.index_name} if is_stored else cells.obs.reset_index().columns
                annotation.describe(described, existing, path)
            scratch = parts.folder
            write_annotation(annotation, cells, path, output, overwrite=cfg.overwrite, scratch=scratch, seen=seen)
    return Written(query.sha256, len(annotation.obs), annotation.record["num_unknown"])


def _identity_of(adapted: Adapted, model: Model, cfg: PredictConfig) -> dict[str, str]:
    """Return everything that the calls depend on: an interrupted run is resumed only if it is the same."""
    query = adapted.query
    options = {name: value for name, value in asdict(cfg).items() if name not in NOT_IN_CALLS}
    return {
        "input": query.sha256,
        "model": model.saved.hash,
        "options": json.dumps(options),
        "genes": hashlib.sha256(query.plan.mapping.target.tobytes()).hexdigest(),  # depends on the table of gene names
        "expression": query.plan.findings.text,
        "condition": adapted.record["key"] if adapted.record["adapted"] else "",
        "condition_of": adapted.record.get("of_sha256", ""),
        "blocks": f"{len(query.starts())} of {query.rows.block_cells} cells",
        "version": version("scperformer"),
    }


def _call_parts(parts: Parts, adapted: Adapted, cfg: PredictConfig) -> tuple[int, float]:
    """Call the cells of all parts that are not finished; return the number of these cells, and seconds."""
    query = adapted.query
    starts = query.starts()
    start_time = time.perf_counter()
    to_call = [part for part in range(len(starts)) if not parts.has(part)]
    num_cells = sum(min(query.rows.shape[0] - starts[part], query.rows.block_cells) for part in to_call)
    name = default_output(query.path, "").name
    # The arrays of a block have the memory of the last block's: clearing new pages took a sixth of the CPU time.
    with progress(name, total=num_cells, unit="cells") as shown, freed_memory(KEPT):
        for part in to_call:
            parts.write(part, call_block(adapted, starts[part], cfg, shown.update))
    return num_cells, time.perf_counter() - start_time
