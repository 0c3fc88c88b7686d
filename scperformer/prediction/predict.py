"""Annotate cells with a model: add labels and their probabilities to an AnnData, or write them to a file.

A file on disk is annotated block by block; the calls of a block are a part, and finished parts are kept on disk.
"""

import hashlib
import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from anndata import AnnData

from scperformer.base.errors import DiskFull, InputError
from scperformer.base.outputs import FAILED_SUFFIX, new_file, require_absent
from scperformer.base.progress import progress, say
from scperformer.cells import find_query, require_not_annotated, require_regular
from scperformer.config import PredictConfig
from scperformer.files import BackedH5ad, default_output, fingerprint, open_cells, require_readable, require_unchanged
from scperformer.fitting import Adapted, adapt_model
from scperformer.network import Model, choose_device, load_model
from scperformer.prediction.annotation import make_annotation
from scperformer.prediction.calls import PARTS, Calls, call_block, partial_results, parts_of
from scperformer.prediction.label_options import add_quality, find_rules
from scperformer.prediction.write import FORMATS, STORE, write_annotation

log = logging.getLogger(__name__)

# Options that do not change any call: a resumed run, or one that joins shares, may have other values of them. The parts
# keep probabilities, scores and draws; flags, sets and names are made from these when all parts are there.
NOT_IN_IDENTITY = {
    *("inputs", "model_path", "output", "outputs", "output_format", "overwrite", "resume", "keep_going", "failed_ok"),
    "json",
    *("share", "shares", "batch_size", "threads", "device", "adapted_folder"),
    *("allow_labels", "deny_labels", "prior", "clusters", "ontology", "quality"),
    *("false_alarms", "min_confidence", "alpha", "conformal", "key_added"),
}


def call_all(adapted: Adapted, cfg: PredictConfig) -> list[Calls]:
    """Call all cells of a query, in memory, a block at a time."""
    model = adapted.model
    query = adapted.query
    with progress("annotating", total=query.rows.shape[0], unit="cells") as shown:
        return [call_block(query.block(first), model, cfg, query, shown.update) for first in query.starts()]


def annotate_cells(adata: AnnData, model: Model, cfg: PredictConfig) -> None:
    """Add the annotation to an AnnData in memory; errors as `run_predict`."""
    if not cfg.overwrite:
        require_not_annotated(adata, cfg.key_added)
    start = time.perf_counter()
    rules = find_rules(adata, model.saved, cfg)
    query = find_query(adata, model.saved, cfg)
    if cfg.quality:
        add_quality(rules, adata, query)
    adapted = adapt_model(model, query, cfg)
    parts = call_all(adapted, cfg)
    seconds = time.perf_counter() - start
    make_annotation(adapted, cfg, lambda: parts, rules=rules, num_called=adata.n_obs, seconds=seconds).write_into(adata)


def embed_cells(cells: AnnData | BackedH5ad, model: Model, cfg: PredictConfig, path: str = "the data") -> np.ndarray:
    """Return the embedding of the cells of an open file by a model, adapted as for `run_predict`: float32, N x D."""
    adapted = adapt_model(model, find_query(cells, model.saved, cfg, path), cfg)
    return np.concatenate([calls.embedding for calls in call_all(adapted, cfg)])


def _annotate_file(path: str, output: Path, model: Model, cfg: PredictConfig) -> dict[str, Any]:
    """Annotate a file of any size, one block of cells at a time, and return what is there now, as for `--json`.

    Finished parts are kept on disk.
    """
    seen = fingerprint(path)
    with open_cells(path, cfg.orientation) as cells:
        if output.suffix in (".h5ad", ".zarr"):
            require_regular(cells, path)
            if not cfg.overwrite:
                require_not_annotated(cells, cfg.key_added, path)
        rules = find_rules(cells, model.saved, cfg, path)
        query = find_query(cells, model.saved, cfg, path)
        if cfg.quality and cfg.share is None:
            add_quality(rules, cells, query)
        adapted = adapt_model(model, query, cfg)
        query = adapted.query
        starts = query.starts()
        options = asdict(cfg)
        # The calls depend on these values: an interrupted run is resumed only if they are the same.
        identity = {
            "input": query.sha256,
            "model": model.saved.hash,
            "options": json.dumps({name: options[name] for name in options if name not in NOT_IN_IDENTITY}),
            "genes": hashlib.sha256(query.plan.mapping.target.tobytes()).hexdigest(),  # changes with the table of names
            "expression": query.plan.findings.text,
            "condition": adapted.record["key"] if adapted.record["adapted"] else "",
            "blocks": f"{len(starts)} of {query.rows.block_cells} cells",
            "version": version("scperformer"),
        }
        shares = [Path(folder) for folder in cfg.shares]
        with partial_results(output, identity, len(starts), resume=cfg.resume, shares=shares) as partial:
            start = time.perf_counter()
            todo = [part for part in parts_of(cfg.share, len(starts)) if not partial.has(part)]
            num_called = sum(min(query.rows.shape[0] - starts[part], query.rows.block_cells) for part in todo)
            with progress(Path(path).name, total=num_called, unit="cells") as shown:
                for part in todo:
                    partial.write(part, call_block(query.block(starts[part]), adapted.model, cfg, query, shown.update))
            if cfg.share is not None:
                require_unchanged(path, seen)
                log.info("%s, share %s: %d cells called", path, cfg.share, num_called)
                partial.keep_as(output, cfg.overwrite)
                written = {"share": cfg.share, "num_cells": num_called}
            else:
                seconds = time.perf_counter() - start
                scratch = partial.folder
                annotation = make_annotation(
                    adapted, cfg, partial.read, rules=rules, num_called=num_called, seconds=seconds
                )
                write_annotation(annotation, cells, path, output, overwrite=cfg.overwrite, scratch=scratch, seen=seen)
                written = annotation.summary()
    log.info("written: %s", output)
    return {"file": path, "output": str(output), "sha256": query.sha256, **written}


def _without_own_outputs(cfg: PredictConfig) -> PredictConfig:
    """Leave out inputs that are annotations of other inputs: `predict *.h5ad` finds them when it runs again."""
    own = {default_output(path, f".annotated{ending}"): path for path in cfg.inputs for ending in FORMATS}
    left_out = {} if cfg.outputs else {path: own[Path(path)] for path in cfg.inputs if Path(path) in own}
    for path, source in left_out.items():
        log.info("%s is left out: it is the annotation of %s", path, source)
    return replace(cfg, inputs=[path for path in cfg.inputs if path not in left_out])


def _outputs_of(cfg: PredictConfig) -> list[Path]:
    """Return the output of each input, refusing two inputs that have the same."""
    ending = f".annotated.{cfg.output_format}" if cfg.share is None else f".share-{cfg.share.replace('/', '-of-')}"
    named = cfg.outputs or ([cfg.output] if cfg.output else [])
    outputs = [Path(name) for name in named] or [default_output(path, ending) for path in cfg.inputs]
    if cfg.output_dir is not None:
        outputs = [Path(cfg.output_dir) / output.name for output in outputs]
    for number, output in enumerate(outputs):
        if output in outputs[:number]:
            raise InputError(f"two inputs give {output}", "one input per output", "leave one of them out")
    return outputs


def _sample(output: Path) -> str:
    """Return the name of the sample of an output."""
    ending = next((ending for ending in FORMATS if output.name.endswith(ending)), "")
    return output.name.removesuffix(ending).removesuffix(".annotated")


def _failed_file(output: Path) -> Path:
    """Return the file with the reason why there is no output; `report` shows it as a row."""
    return output.with_name(f"{_sample(output)}{FAILED_SUFFIX}")


def _require_place(output: Path, cfg: PredictConfig) -> None:
    """Refuse an output that cannot be written, or whose name does not end like one of the formats."""
    if cfg.share is not None:
        require_absent(output, cfg.overwrite, PARTS)
        return
    require_absent(output, cfg.overwrite, STORE if output.suffix == ".zarr" else None)
    if not output.name.endswith(FORMATS):
        raise InputError(f"output={output}", f"a name that ends in {', '.join(FORMATS)}", "rename it")
    if output.suffix == ".parquet" and find_spec("pyarrow") is None:
        found = f"output={output} without the package pyarrow"
        remedy = "pip install pyarrow, or write .csv"
        raise InputError(found, "pyarrow, which writes Parquet files", remedy)


def run_predict(cfg: PredictConfig, model: Model | None = None) -> list[Path]:
    """Annotate files: write a copy of each with the annotation added, or a table.

    Without a model, it is the one that `cfg.model_path` names.

    Returns
    -------
    The paths of the annotations: `cfg.output` or `cfg.outputs`, or `<input>.annotated.h5ad` beside each input or in
    `cfg.output_dir`. Inputs that are annotations of other inputs are left out.

    Raises
    ------
    InputError
        A file or the model cannot be used, or an output exists; nothing is written for that file. With `cfg.keep_going`
        the error of a file is logged and written into `<sample>.failed.json` in place of its output, and one error is
        raised after the other files; with `cfg.failed_ok` nothing is raised.
    """
    refused: dict[str, str] = {}  # an input: why

    @contextmanager
    def about(path: str, output: Path) -> Iterator[None]:
        """Keep an error about one file from stopping the others, with keep_going."""
        try:
            yield
        except InputError as error:
            alone = len(cfg.inputs) == 1 and not cfg.failed_ok
            if not cfg.keep_going or alone or isinstance(error, DiskFull):
                raise
            log.error("%s: %s", path, error)
            refused[path] = str(error)
            if not output.exists():  # it stays as it is
                content = {"sample": _sample(output), "input": path, "error": str(error)}
                with new_file(_failed_file(output), overwrite=True) as temporary:
                    temporary.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")

    cfg = _without_own_outputs(cfg)
    outputs = _outputs_of(cfg)
    ready = []
    for path, output in zip(cfg.inputs, outputs, strict=True):  # all of them before the first one is annotated
        with about(path, output):
            require_readable(path)
            _require_place(output, cfg)
            ready.append((path, output))
    model = model or load_model(cfg.model_path)
    choose_device(cfg.device, cfg.precision)  # a missing GPU is not an error of each file
    annotated: dict[str, str] = {}  # SHA-256 of a file: its path
    written: list[dict[str, Any]] = []
    with progress("annotating", total=len(ready), unit="files") as files:
        for path, output in ready:
            files.text = Path(path).name
            with about(path, output):
                if cfg.output_dir is not None:
                    output.parent.mkdir(parents=True, exist_ok=True)
                written.append(_annotate_file(path, output, model, cfg))
                _failed_file(output).unlink(missing_ok=True)  # of an earlier run
                if (same := annotated.setdefault(written[-1]["sha256"], path)) != path:
                    log.warning("%s has the same content as %s: a report of both counts its cells twice", path, same)
            files.update()
    if cfg.json:
        failed = [{"file": path, "error": error} for path, error in refused.items()]
        say(json.dumps({"files": written, "failed": failed}, indent=1, allow_nan=False))
    if refused and not cfg.failed_ok:
        found = f"{len(refused)} of {len(outputs)} files that cannot be annotated: {', '.join(refused)}"
        remedy = f"see the error of each of them above, and in {_failed_file(outputs[0]).parent}/*{FAILED_SUFFIX}"
        raise InputError(found, "files that can be annotated", remedy)
    return outputs
