"""Annotate the cells of an AnnData or of a file with a model.

A `Session` has the steps: find the expression of opened cells and the genes of the model (`find_query`), adapt the
model to them (`Model.adapt`), predict each block of cells (`Adapted.predict_block`), and make the annotation of the
predictions (`annotation_of`). `write_annotation` writes a copy of the file with it.
"""

import json
import logging
import time
from contextlib import ExitStack, closing
from dataclasses import asdict, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from anndata import AnnData

from scperformer.adaptation.adapted import Adapted
from scperformer.adaptation.fitted import Model
from scperformer.adaptation.predictions import Blocks, Predictions
from scperformer.adaptation.record import Record, TissueRecord
from scperformer.adaptation.tissue_model import find_tissue
from scperformer.adaptation.which_tissue import tissue_text
from scperformer.annotation.annotate import Annotation, annotation_of
from scperformer.annotation.clusters_to_check import with_sampled_cells
from scperformer.annotation.columns import require_not_annotated
from scperformer.annotation.label_options import find_label_options
from scperformer.annotation.markers import cluster_table
from scperformer.annotation.write import write_annotation, write_any_table
from scperformer.base.memory import GIVEN_BACK, KEPT, freed_memory
from scperformer.base.outputs import new_file, scratch_folder
from scperformer.base.parallel import cores_wanted, map_in_order, usable_cores
from scperformer.base.progress import progress
from scperformer.cells.batches import LIKELY, likely_batches, read_query_batches
from scperformer.cells.opened import OpenedCells, open_cells
from scperformer.cells.query import Query, find_query
from scperformer.config.annotation import AnnotationOptions, PredictConfig
from scperformer.io.read import checksum, default_output, fingerprint
from scperformer.model.tissues import collection

log = logging.getLogger(__name__)

# Options that change nothing in an annotation, or whose effect is in the identity in another way.
WITHOUT_EFFECT = {
    *("inputs", "model_path", "output", "output_dir", "sample_sheet", "full_sample", "key_added"),
    *("overwrite", "resume", "keep_going", "adapted_folder"),
    *("batch_size", "threads", "device"),
}


class Session:
    """Opened cells, and the model for them: the given one, or the model of their tissue."""

    def __init__(self, cells: OpenedCells, model: Model | None, options: AnnotationOptions):
        self.cells = cells
        self.options = options
        self.tissue: TissueRecord | None = None  # how it was found, without a model
        if model is None:
            model, self.tissue = find_tissue(cells, options.tissue)
            log.info("%s: tissue %s", cells.path, tissue_text(self.tissue))
        self.model = model

    @cached_property
    def query(self) -> Query:
        """The cells with the genes of the model."""
        return find_query(self.cells, self.model.saved)

    def adapted(self, whole: AnnData | None = None) -> Adapted:
        """Adapt the model to the cells, or to all cells of which they are some: `whole`, or `options.full_sample`."""
        query = self.query
        options = self.options
        key = options.batch_key
        if key is not None:
            query = replace(query, batches=read_query_batches(self.cells, key))
        elif options.finds_shift and (likely := likely_batches(self.cells)) is not None:
            log.info("%s: %s", query.path, LIKELY.format(likely))
        source = options.full_sample if whole is None else whole
        if source is None:
            return self.model.adapt(query, query, options)
        with open_cells(source, options) as all_cells:
            if whole is not None:
                all_cells.path = "full_sample"
            sample = find_query(all_cells, self.model.saved)
            if key is not None:
                sample = replace(sample, batches=read_query_batches(all_cells, key))
                query = replace(
                    query, batches=read_query_batches(self.cells, key, sample.batches.names)
                )
            return self.model.adapt(query, sample, options)

    def as_recorded(self, record: Record) -> Adapted:
        """Adapt the model by the numbers of an earlier annotation of the cells."""
        return self.model.adapt_as_recorded(self.query, self.options, record)

    def annotate(
        self, name: str, whole: AnnData | None = None, scratch: Path | None = None
    ) -> Annotation:
        """Annotate the cells, which have a name while they are predicted.

        Predictions are kept in memory, or in a folder. Depth and batch effect are as in `adapted`.
        """
        labels = find_label_options(
            self.cells, self.model.saved, self.options, self.model.min_confidence
        )
        adapted = with_sampled_cells(self.adapted(whole))
        start = time.perf_counter()
        blocks = predict_all(adapted, name, scratch)
        seconds = time.perf_counter() - start
        # at its end all that is free: the library of UMAP takes 200 MB
        with freed_memory(GIVEN_BACK):
            annotation = annotation_of(adapted, blocks, labels, seconds, self.tissue)
        if self.options.umap:
            with freed_memory(GIVEN_BACK):
                annotation.add_umap(adapted.query)
        return annotation


def predict_all(adapted: Adapted, name: str, scratch: Path | None = None) -> Blocks:
    """Predict all cells of a query, block by block; the predictions stay in memory, or in the folder `scratch`."""
    query = adapted.query
    kept = []
    files = []
    starts = query.starts()
    with (
        progress(name, total=query.cells.n_obs, unit="cells") as shown,
        adapted.ready() as in_threads,
    ):
        threads = usable_cores() if in_threads else 1
        predictions = map_in_order(
            lambda start: adapted.predict_block(start, shown.update), starts, threads
        )
        with closing(predictions):
            for start, block in zip(starts, predictions, strict=True):
                if scratch is None:
                    kept.append(block)
                else:
                    files.append(block.save(scratch / f"{start}.npz"))
    return (lambda: kept) if scratch is None else (lambda: map(Predictions.load, files))


def annotate_cells(
    adata: AnnData, model: Model | None, options: AnnotationOptions, whole: AnnData | None = None
) -> Annotation:
    """Add the annotation to an AnnData in memory, and return it; errors as `scperformer predict`.

    Depth and batch effect come from all its cells, or from the whole sample `whole`.
    """
    cells = OpenedCells(adata, options)
    _require_place(cells, options)
    with cores_wanted(options.threads):
        annotation = Session(cells, model, options).annotate("annotating", whole)
    annotation.write_into(adata)
    return annotation


def _require_place(cells: OpenedCells, options: AnnotationOptions) -> None:
    """Refuse cells that have entries of the names that the annotation would get, unless these may be replaced."""
    umap = options.umap and not options.overwrite
    require_not_annotated(cells, options.key_added, replace=options.overwrite, umap=umap)


def embed_cells(
    cells: OpenedCells,
    model: Model | None,
    options: AnnotationOptions,
    whole: AnnData | None = None,
) -> np.ndarray:
    """Return the embedding of opened cells by a model, adapted as for `annotate_file`: float32, N x D.

    These are the vectors of the encoder also where it has no influence on the labels; without an encoder, the logits.
    """
    with cores_wanted(options.threads):
        session = Session(cells, model, options)
        if not session.model.has_encoder:
            text = "model %s has no encoder: the embedding is the logits of the linear branch"
            log.warning(text, session.model.saved.name)
        blocks = predict_all(session.adapted(whole), "embedding")
    return np.concatenate([block.embedding for block in blocks()])


def annotate_file(
    path: str,
    output: Path,
    given: Model | None,
    options: PredictConfig,
    sample: dict[str, str],
    markers: Path | None = None,
) -> Annotation:
    """Annotate a file, and write a copy of it or a table; the predictions of each block are on disk until then.

    `given` is the model; if None, the tissue of the file is found. `sample` has columns that all its cells get, with
    their values; `markers` is the table of clusters to write.
    """
    seen = fingerprint(path)
    # The arrays of a block get the memory of the last one.
    kept = freed_memory(KEPT)
    with (
        cores_wanted(options.threads),
        open_cells(path, options) as cells,
        scratch_folder(output) as scratch,
        kept,
    ):
        if output.suffix in (".h5ad", ".zarr"):
            _require_place(cells, options)
        session = Session(cells, given, options)
        annotation = session.annotate(default_output(path, "").name, scratch=scratch)
        record = annotation.record
        identity = identity_of(
            options,
            model_hash(given, options.types),
            cells.sha256,
            record.coverage.of_sha256 or "",
            sample,
        )
        record.run.identity = json.dumps(identity)
        if sample:
            annotation.describe(sample, cells.keys()["obs"] | {cells.index_name or "index"}, path)
        # the markers appear after the annotation, by which a resumed run knows them
        with ExitStack() as both:
            if markers is not None:
                temporary = both.enter_context(new_file(markers, overwrite=options.overwrite))
                write_any_table(
                    temporary, markers.name, iter([cluster_table(session.query, annotation)])
                )
            write_annotation(
                annotation, cells, output, overwrite=options.overwrite, scratch=scratch, seen=seen
            )
        if markers is not None:
            log.info("written: %s", markers)
    return annotation


def model_hash(given: Model | None, types: str | None = None) -> str:
    """Return what identifies the models of a run: the given model, a list of marker genes, or the packaged tissues."""
    if types is not None:
        return f"{checksum(types)} {collection().hash}"
    return collection().hash if given is None else given.saved.hash


def identity_of(
    cfg: AnnotationOptions,
    of_model: str,
    sha256: str,
    full_sample_sha256: str,
    sample: dict[str, str],
) -> dict[str, Any]:
    """Return everything that the annotation of a file depends on, as JSON has it.

    Checksums are of the file, and of the file `full_sample` ("" without); `sample` has the columns that a sheet adds.
    """
    identity = {name: value for name, value in asdict(cfg).items() if name not in WITHOUT_EFFECT}
    identity |= {"input": sha256, "model": of_model, "version": version("scperformer")}
    identity |= {"full_sample": full_sample_sha256, "sheet": sample}
    return dict(json.loads(json.dumps(identity)))
