"""Adapt a model to the genes and the depth of a file, and write it as a model of its own."""

import logging
from dataclasses import replace
from pathlib import Path

from anndata import AnnData

from scperformer.adaptation.coverage import Coverage, find_coverage
from scperformer.adaptation.fitted import Model, accuracy_beside
from scperformer.adaptation.load import load_model
from scperformer.base.errors import InputError
from scperformer.base.outputs import require_absent
from scperformer.cells.opened import open_cells
from scperformer.cells.query import find_query
from scperformer.config.steps import AdaptConfig
from scperformer.io.gene_lists import is_gene_list, read_genes
from scperformer.io.gene_overlap import find_panel
from scperformer.io.read import default_output
from scperformer.model.folder import MODEL, load_reference_cells, write_model
from scperformer.model.inference import torch_state_kept

log = logging.getLogger(__name__)


def write_adapted(
    cfg: AdaptConfig, model: Model | None = None, cells: AnnData | None = None
) -> Path:
    """Adapt a model to a file, to a text file of genes or to cells in memory, and write it; return its folder."""
    output = Path(cfg.output) if cfg.output else default_output(cfg.inputs[0], ".adapted")
    require_absent(output, cfg.overwrite, MODEL)
    model = model or load_model(cfg.model_path)
    reference_cells = load_reference_cells(model.saved, model.path)
    if reference_cells is None:
        found = f"a model that keeps no cells ({model.path})"
        raise InputError("no-kept-cells", found, "kept cells", model.how_to_complete)
    path = cfg.inputs[0]
    if cells is None and is_gene_list(path):
        genes = read_genes(path, model.saved.genes)
        coverage = Coverage(
            find_panel(genes, model.saved.genes, "model", species=cfg.species, path=path), None
        )
    else:
        with open_cells(path if cells is None else cells, cfg) as opened:
            coverage = find_coverage(find_query(opened, model.saved))
    with torch_state_kept():
        adapted = model.refit(reference_cells, coverage)
    write_model(
        replace(adapted, name=output.name.removesuffix(".adapted")), output, overwrite=cfg.overwrite
    )
    accuracy = accuracy_beside(adapted.metrics.known_accuracy, model.saved.metrics.known_accuracy)
    log.info(
        "written: %s; on reference cells with its %s genes: %s",
        output,
        f"{len(adapted.genes):,}",
        accuracy,
    )
    return output
