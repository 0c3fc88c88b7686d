"""Annotate cells with a model: add labels and their probabilities to an AnnData, or write them to a file.

A file on disk is annotated block by block; the calls of a block are a part, and finished parts are kept on disk.
"""

import hashlib
import json
import logging
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from anndata import AnnData

from scperformer import __version__
from scperformer.config import PredictConfig, make_config, quoted
from scperformer.dataset import keys_of, require_not_annotated
from scperformer.errors import InputError
from scperformer.files import (
    BackedH5ad,
    beside,
    fingerprint,
    open_cells,
    require_readable,
    require_unchanged,
    write_h5ad,
)
from scperformer.network import Model, choose_device, load_model
from scperformer.outputs import new_file, new_folder, require_absent
from scperformer.prediction.annotation import Annotation, call_block, make_annotation, make_query
from scperformer.prediction.parts import IDENTITY, partial_results
from scperformer.prediction.write_h5ad import add_to_h5ad
from scperformer.prediction.write_table import PARQUET, SEPARATORS, write_calls
from scperformer.prediction.write_zarr import MARKER, copy_to_zarr

log = logging.getLogger(__name__)

Fingerprint = dict[Path, tuple[int, int, int]]

FORMATS = (".h5ad", ".zarr", *SEPARATORS, PARQUET)  # endings of outputs
TABLE_ROWS = 100_000  # rows of a table that are written at a time
SECONDS_BETWEEN_LINES = 20.0  # log lines about progress
# Options that do not change any call: a resumed run may have other values of them.
NOT_IN_IDENTITY = {
    *("inputs", "model_path", "output", "outputs", "output_format", "overwrite", "resume", "keep_going", "error_files"),
    *("share", "shares", "batch_size", "threads", "device"),
}


def annotate(
    adata: AnnData,
    model: Model | None = None,
    *,
    key_added: str = "scperformer",
    overwrite: bool = False,
    overrides: Sequence[str] = (),
) -> AnnData:
    """Annotate the cells of an AnnData in place and return it.

    Parameters
    ----------
    adata
        N cells x G genes: counts or log-normalised expression in X, a layer or `.raw`.
    model
        From `load_model`; None loads $SCPERFORMER_MODEL, else the packaged model.
    key_added
        Prefix of the keys that are added (docs/formats.md lists them).
    overwrite
        Replace an earlier annotation with the same prefix.
    overrides
        More options of `predict` as on the command line, such as `["source=layers/counts", "min_confidence=0.5"]`.

    Raises
    ------
    InputError
        An option is wrong, the expression cannot be used, too few genes are shared, or the keys exist and
        `overwrite` is off.
    """
    named = ["inputs=[adata]", f"key_added={quoted(key_added)}", f"overwrite={str(overwrite).lower()}"]
    cfg = make_config("predict", [*named, *overrides])
    if cfg.output is not None or cfg.outputs:
        found = f"output={cfg.output}" if cfg.output is not None else f"outputs={cfg.outputs}"
        raise InputError(found, "no output: the AnnData itself is annotated", "leave it out")
    if model is not None and cfg.model_path is not None:
        raise InputError(f"a model and model_path={cfg.model_path}", "one of them", "leave the other out")
    if not cfg.overwrite:
        require_not_annotated(keys_of(adata), cfg.key_added)
    annotate_in_memory(adata, model or load_model(cfg.model_path), cfg)
    return adata


def annotate_in_memory(adata: AnnData, model: Model, cfg: PredictConfig, path: str = "the data") -> Annotation:
    """Add an annotation to an AnnData and return it; errors as `make_query`."""
    start = time.perf_counter()
    query = make_query(adata, model, cfg, path)
    parts = [call_block(query.block(first), model, cfg, path) for first in query.starts()]
    annotation = make_annotation(query, model, cfg, lambda: parts, time.perf_counter() - start)
    _announce(annotation, cfg, path, adata.n_obs)
    annotation.write_into(adata)
    return annotation


def _announce(annotation: Annotation, cfg: PredictConfig, path: str, num_called: int) -> None:
    """Log one line about a file; this run called `num_called` cells in the recorded time, an earlier run the others."""
    record = annotation.uns[cfg.key_added]
    num, seconds = len(annotation.obs), record["seconds"]
    earlier = f", {num - num_called} of them before" if num_called < num else ""
    text = "%s: %d cells annotated%s in %.1f s (%.0f cells/s), %d flagged unknown"
    log.info(text, path, num, earlier, seconds, num_called / seconds, record["num_unknown"])


def parts_of(share: str | None, num_parts: int) -> range:
    """Return the numbers of the parts that belong to a share such as `2/8`; all parts for None."""
    number, count = map(int, (share or "1/1").split("/"))
    return range(num_parts * (number - 1) // count, num_parts * number // count)


def _predict_on_disk(
    cells: BackedH5ad, path: str, output: Path, model: Model, cfg: PredictConfig, seen: Fingerprint
) -> None:
    """Annotate an h5ad file of any size, one block of cells at a time; finished parts are kept on disk."""
    if not cfg.overwrite and output.suffix in (".h5ad", ".zarr"):
        require_not_annotated(cells.keys(), cfg.key_added, path)  # before the work; writing checks again
    query = make_query(cells, model, cfg, path)
    starts, options = query.starts(), asdict(cfg)
    # The calls depend on these values: an interrupted run is resumed only if they are the same.
    identity = {
        "input": query.sha256,
        "model": model.bundle.hash,
        "options": json.dumps({name: options[name] for name in options if name not in NOT_IN_IDENTITY}),
        "genes": hashlib.sha256(query.plan.mapping.target.tobytes()).hexdigest(),  # changes with the table of names
        "expression": query.findings.text,
        "blocks": f"{len(starts)} of {query.rows.block_cells} cells",
        "version": __version__,
    }
    shares = [Path(folder) for folder in cfg.shares]
    with partial_results(output, identity, len(starts), resume=cfg.resume, shares=shares) as partial:
        start = said = time.perf_counter()
        num_called = 0
        for part in parts_of(cfg.share, len(starts)):
            if not partial.has(part):
                x = query.block(starts[part])
                partial.write(part, call_block(x, model, cfg, path))
                num_called += x.shape[0]
            if time.perf_counter() - said > SECONDS_BETWEEN_LINES:
                said = time.perf_counter()
                log.info("%s: %d of %d parts", path, part + 1, len(starts))
        if cfg.share is not None:
            require_unchanged(path, seen)
            log.info("%s, share %s: %d cells called", path, cfg.share, num_called)
            partial.keep_as(output)
            return
        annotation = make_annotation(query, model, cfg, partial.read, time.perf_counter() - start)
        _announce(annotation, cfg, path, num_called)
        require_unchanged(path, seen)
        added = {"obs": annotation.obs, "obsm": annotation.obsm, "uns": annotation.uns, "overwrite": cfg.overwrite}
        if output.suffix == ".zarr":
            copy_to_zarr(path, output, **added, seen=seen)
        elif output.suffix == ".h5ad":
            add_to_h5ad(path, output, **added, overwrite_keys=cfg.overwrite, scratch=partial.folder, seen=seen)
        else:
            firsts = range(0, len(annotation.obs), TABLE_ROWS)
            blocks = (annotation.obs[first : first + TABLE_ROWS].copy() for first in firsts)
            record = annotation.uns[cfg.key_added]
            write_calls(output, cells.names, blocks, record, overwrite=cfg.overwrite, scratch=partial.folder)


def _predict_in_memory(
    adata: AnnData, path: str, output: Path, model: Model, cfg: PredictConfig, seen: Fingerprint
) -> None:
    """Annotate the cells of a file that cannot be read block by block."""
    if not cfg.overwrite:
        require_not_annotated(keys_of(adata), cfg.key_added, path)
    annotation = annotate_in_memory(adata, model, cfg, path)
    require_unchanged(path, seen)
    if output.suffix == ".h5ad":
        write_h5ad(adata, output, cfg.overwrite)
    elif output.suffix == ".zarr":
        with new_folder(output, cfg.overwrite, MARKER) as temporary, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Writing zarr v2")  # on purpose: every program reads it
            adata.write_zarr(temporary)
    else:
        names = [str(name) for name in adata.obs_names]
        record = annotation.uns[cfg.key_added]
        write_calls(output, lambda first, last: names[first:last], [annotation.obs], record, overwrite=cfg.overwrite)


def _predict_file(path: str, output: Path, model: Model, cfg: PredictConfig) -> None:
    """Open one file and annotate it, on disk or in memory."""
    seen = fingerprint(path)
    with open_cells(path, cfg.orientation) as cells:
        if isinstance(cells, BackedH5ad):
            _predict_on_disk(cells, path, output, model, cfg, seen)
        elif cfg.share is not None or cfg.shares:
            found = f"shares of {path}, which can only be read as a whole"
            raise InputError(found, "an h5ad file that anndata 0.8 or newer has written", "leave shares out")
        else:
            if cfg.resume:
                log.info("nothing to resume: %s is of a kind that is annotated as a whole", path)
            _predict_in_memory(cells, path, output, model, cfg, seen)
    log.info("written: %s", output)


def _outputs_of(cfg: PredictConfig) -> list[Path]:
    """Return the output of each input, refusing two inputs that have the same."""
    ending = f".annotated.{cfg.output_format}" if cfg.share is None else f".share-{cfg.share.replace('/', '-of-')}"
    named = cfg.outputs or ([cfg.output] if cfg.output else [])
    outputs = [Path(name) for name in named] or [beside(path, ending) for path in cfg.inputs]
    for number, output in enumerate(outputs):
        if output in outputs[:number]:
            raise InputError(f"two inputs give {output}", "one input per output", "leave one of them out")
    return outputs


def _require_place(output: Path, cfg: PredictConfig) -> None:
    """Refuse an output that cannot be written, or whose name does not end like one of the formats."""
    if cfg.share is not None:
        require_absent(output, cfg.overwrite, marker=IDENTITY)
        return
    require_absent(output, cfg.overwrite, marker=MARKER if output.suffix == ".zarr" else None)
    if not output.name.endswith(FORMATS):
        raise InputError(f"output={output}", f"a name that ends in {', '.join(FORMATS)}", "rename it")


def run_predict(cfg: PredictConfig) -> list[Path]:
    """Annotate files: write a copy of each with the annotation added, or a table.

    Returns
    -------
    The paths of the annotations: `cfg.output` or `cfg.outputs`, or `<input>.annotated.h5ad` beside each input.

    Raises
    ------
    InputError
        A file or the model cannot be used, or an output exists; nothing is written for that file. With `cfg.keep_going`
        the error of a file is logged, and one error is raised after the other files. With `cfg.error_files` it is
        written into `<output>.error` instead, and nothing is raised for it.
    """
    refused: list[str] = []

    @contextmanager
    def about(path: str, output: Path) -> Iterator[None]:
        """Keep an error about one file from stopping the others, with keep_going."""
        try:
            yield
        except InputError as error:
            if not cfg.keep_going or (len(cfg.inputs) == 1 and not cfg.error_files):
                raise
            log.error("%s: %s", path, error)
            refused.append(path)
            if cfg.error_files:
                with new_file(f"{output}.error", overwrite=True) as temporary:
                    temporary.write_text(f"{error}\n", encoding="utf-8")

    outputs, ready = _outputs_of(cfg), []
    for path, output in zip(cfg.inputs, outputs, strict=True):  # all of them before the first one is annotated
        if cfg.error_files:
            Path(f"{output}.error").unlink(missing_ok=True)  # of an earlier run
        with about(path, output):
            require_readable(path)
            _require_place(output, cfg)
            ready.append((path, output))
    model = load_model(cfg.model_path)
    choose_device(cfg.device, cfg.precision)  # a missing GPU is not an error of each file
    for path, output in ready:
        with about(path, output):
            _predict_file(path, output, model, cfg)
    if refused and not cfg.error_files:
        found = f"{len(refused)} of {len(outputs)} files that cannot be annotated: {', '.join(refused)}"
        raise InputError(found, "files that can be annotated", "see the error of each of them above")
    return outputs
