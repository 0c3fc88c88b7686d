"""Annotate the cells of an AnnData or of a file with a model.

The steps for a file: open it, find its cells with the genes of the model (`find_query`), adapt the model to them
(`adapt_model`), call each block of cells (`predict_block`), make the annotation from the calls (`make_annotation`), and
write a copy of the file with it (`write_annotation`).
"""

import json
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from anndata import AnnData

from scperformer.annotation.adapt import Adapted, adapt_model
from scperformer.annotation.annotate import Annotation, make_annotation
from scperformer.annotation.columns import require_not_annotated
from scperformer.annotation.label_options import find_label_options
from scperformer.annotation.markers import cluster_markers
from scperformer.annotation.outputs import identity_of, model_hash
from scperformer.annotation.predictions import Predictions, predict_block
from scperformer.annotation.tissue_model import find_tissue
from scperformer.annotation.which_tissue import tissue_text
from scperformer.annotation.write import write_annotation, write_text
from scperformer.base.memory import KEPT, freed_memory
from scperformer.base.outputs import new_file, scratch_folder
from scperformer.base.progress import progress
from scperformer.cells.batches import likely_batches, read_query_batches
from scperformer.cells.query import Expression, find_expression, find_query
from scperformer.config.annotation import AnnotationOptions
from scperformer.io.h5ad import BackedH5ad
from scperformer.io.read import default_output, fingerprint, open_cells
from scperformer.model.load import Model

log = logging.getLogger(__name__)


def annotate_cells(adata: AnnData, model: Model | None, cfg: AnnotationOptions, whole: AnnData | None = None) -> str:
    """Add the annotation to an AnnData in memory, and return a paragraph about it; errors as `scperformer predict`.

    Depth and batch effect come from all its cells, or from the whole sample `whole`.
    """
    require_not_annotated(adata, cfg.key_added, replace=cfg.replace_annotation)
    start = time.perf_counter()
    model, tissue, expression = model_for(adata, model, cfg)
    options = find_label_options(adata, model.saved, cfg)
    adapted = _adapted_to(adata, model, cfg, whole=whole, expression=expression)
    blocks = predict_all(adapted, cfg)
    seconds = time.perf_counter() - start
    annotation = make_annotation(adata, adapted, options, cfg.key_added, lambda: blocks, seconds, tissue)
    annotation.record |= {"config_json": _as_json(cfg)}
    annotation.write_into(adata)
    return annotation.text


def model_for(
    cells: AnnData | BackedH5ad, model: Model | None, cfg: AnnotationOptions, path: str = "the data"
) -> tuple[Model, dict[str, Any], Expression | None]:
    """Return the model for an open file, and if it was not given, how the tissue was found, and the expression."""
    if model is not None:
        return model, {}, None
    expression = find_expression(cells, cfg, path)
    model, tissue = find_tissue(cells, cfg, path, expression)
    log.info("%s: tissue %s", path, tissue_text(tissue))
    return model, tissue, expression


def _as_json(cfg: AnnotationOptions) -> str:
    """Return the options of a run for its record, with the names of files without their folders."""
    return json.dumps(asdict(cfg) | {"inputs": [Path(name).name for name in cfg.inputs]})


def embed_cells(
    cells: AnnData | BackedH5ad,
    model: Model | None,
    cfg: AnnotationOptions,
    path: str = "the data",
    whole: AnnData | None = None,
) -> np.ndarray:
    """Return the embedding of the cells of an open file by a model, adapted as for `annotate_file`: float32, N x D.

    These are the vectors of the encoder also where it has no influence on the labels; without an encoder, the logits.
    """
    model, _, expression = model_for(cells, model, cfg, path)
    if not model.saved.has_encoder:
        log.warning("model %s has no encoder: the embedding is the logits of the linear branch", model.saved.name)
    adapted = _adapted_to(cells, model, cfg, path, whole, expression)
    return np.concatenate([calls.embedding for calls in predict_all(adapted, cfg)])


def annotate_file(
    path: str,
    output: Path,
    given: Model | None,
    cfg: AnnotationOptions,
    sample: dict[str, str],
    markers: Path | None = None,
) -> Annotation:
    """Annotate a file, and write a copy of it or a table; the calls of each block of cells are on disk until then.

    `given` is the model; None: the tissue of the file is found. `sample` has columns that all its cells get, with their
    values; `markers` is the table of markers to write.
    """
    seen = fingerprint(path)
    with open_cells(path, cfg.orientation) as cells:
        if output.suffix in (".h5ad", ".zarr"):
            require_not_annotated(cells, cfg.key_added, path, replace=cfg.replace_annotation)
        model, tissue, expression = model_for(cells, given, cfg, path)
        options = find_label_options(cells, model.saved, cfg, path)
        adapted = _adapted_to(cells, model, cfg, path, expression=expression)
        query = adapted.query
        with scratch_folder(output) as scratch:
            start = time.perf_counter()
            # The arrays of a block get the memory of the last one: clearing new pages took a sixth of the CPU time.
            name = default_output(path, "").name
            with progress(name, total=query.rows.shape[0], unit="cells") as shown, freed_memory(KEPT):
                files = [scratch / f"{first}.npz" for first in query.starts()]
                for first, file in zip(query.starts(), files, strict=True):
                    np.savez(file, **vars(predict_block(adapted, first, cfg, shown.update)))

            def read() -> Iterator[Predictions]:
                for file in files:
                    with np.load(file) as arrays:
                        yield Predictions(**arrays)

            seconds = time.perf_counter() - start
            annotation = make_annotation(cells, adapted, options, cfg.key_added, read, seconds, tissue)
            annotation.record |= {"config_json": _as_json(cfg)}
            of_full_sample = adapted.record.get("of_sha256", "")
            identity = identity_of(cfg, model_hash(given), query.sha256, of_full_sample, sample)
            annotation.record["run"]["identity"] = json.dumps(identity)
            if sample:
                is_stored = isinstance(cells, BackedH5ad)
                existing = {*cells.keys()["obs"], cells.index_name} if is_stored else cells.obs.reset_index().columns
                annotation.describe(sample, existing, path)
            with ExitStack() as both:  # the markers appear after the annotation, by which a resumed run knows them
                if markers is not None:
                    temporary = both.enter_context(new_file(markers, overwrite=cfg.overwrite))
                    write_text(temporary, markers.name, iter([cluster_markers(query, annotation)]))
                write_annotation(annotation, cells, path, output, overwrite=cfg.overwrite, scratch=scratch, seen=seen)
            if markers is not None:
                log.info("written: %s", markers)
    return annotation


def _adapted_to(
    cells: AnnData | BackedH5ad,
    model: Model,
    cfg: AnnotationOptions,
    path: str = "the data",
    whole: AnnData | None = None,
    expression: Expression | None = None,
) -> Adapted:
    """Adapt a model to open cells, or to all cells of which they are some: `whole`, or the file `cfg.full_sample`."""
    query = find_query(cells, model.saved, cfg, path, expression)
    with_shift = cfg.shift != "false"
    if cfg.batch_key is not None:
        query = replace(query, batches=read_query_batches(cells, cfg.batch_key, path))
    elif with_shift and (found := likely_batches(cells)) is not None:
        log.info("%s: obs['%s'] may name batches: batch_key=%s corrects each of them apart", path, found, found)
    if cfg.full_sample is None and whole is None:
        return adapt_model(model, query, cfg, with_shift=with_shift)
    name = cfg.full_sample or "full_sample"
    with nullcontext(whole) if whole is not None else open_cells(name, cfg.orientation) as all_cells:
        of_all = find_query(all_cells, model.saved, cfg, name)
        if cfg.batch_key is not None:
            batches = read_query_batches(all_cells, cfg.batch_key, name)
            of_all = replace(of_all, batches=batches)
            query = replace(query, batches=read_query_batches(cells, cfg.batch_key, path, batches.names))
        return adapt_model(model, query, cfg, with_shift=with_shift, whole=of_all)


def predict_all(adapted: Adapted, cfg: AnnotationOptions) -> list[Predictions]:
    """Call all cells of a query, block by block; the calls stay in memory."""
    query = adapted.query
    with progress("annotating", total=query.rows.shape[0], unit="cells") as shown:
        return [predict_block(adapted, start, cfg, shown.update) for start in query.starts()]
