"""`scperformer adapt`: adapt a model to the genes and the depth of a file."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scperformer.base.errors import InputError
from scperformer.base.outputs import require_absent
from scperformer.config.options import ModelOptions, require

if TYPE_CHECKING:
    from anndata import AnnData

    from scperformer.annotation.coverage import Coverage
    from scperformer.annotation.fitted import Model
    from scperformer.model.saved_model import SavedModel

log = logging.getLogger(__name__)

USAGE = "adapt MODEL FILE"
EXAMPLES = """\
  scperformer adapt my_model sample.h5ad output=shallow_model
  scperformer adapt my_model panel.txt output=panel_model          # one gene a line"""


@dataclass(kw_only=True)
class AdaptConfig(ModelOptions):
    """Adapt a model to the genes and the depth of a file, or to a list of genes."""

    takes_one = True
    output: str | None = None  # null: INPUT.adapted beside the input

    @property
    def adapts(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.model_path is not None, "model_path", self.model_path, "the model, as the first word")


def run(cfg: AdaptConfig, model: "Model | None" = None, cells: "AnnData | None" = None) -> Path:
    """Adapt a model to a file, to a text file of genes or to cells in memory, and write it; return its folder."""
    from scperformer.annotation.fitted import accuracy_beside, known_accuracy
    from scperformer.annotation.load import load_model
    from scperformer.io.read import default_output
    from scperformer.model.folder import MODEL, load_reference_cells, write_model
    from scperformer.model.inference import torch_state_kept

    output = Path(cfg.output) if cfg.output else default_output(cfg.inputs[0], ".adapted")
    require_absent(output, cfg.overwrite, MODEL)
    model = model or load_model(cfg.model_path)
    reference_cells = load_reference_cells(model.saved, model.path)
    if reference_cells is None:
        found = f"a model that keeps no cells ({model.path})"
        raise InputError("no-kept-cells", found, "kept cells", model.saved.how_to_complete)
    with torch_state_kept():
        adapted = model.refit(reference_cells, _coverage_of(cells, model.saved, cfg))
    write_model(replace(adapted, name=output.name.removesuffix(".adapted")), output, overwrite=cfg.overwrite)
    accuracy = accuracy_beside(known_accuracy(adapted), known_accuracy(model.saved))
    log.info("written: %s; on reference cells with its %s genes: %s", output, f"{len(adapted.genes):,}", accuracy)
    return output


def _coverage_of(cells: "AnnData | None", saved: "SavedModel", cfg: AdaptConfig) -> "Coverage":
    """Return the genes of a model that cells in memory, a file or a list has, and the depth if it is known."""
    from scperformer.annotation.coverage import Coverage, find_coverage
    from scperformer.cells.opened import open_cells
    from scperformer.cells.query import find_query
    from scperformer.io.gene_lists import is_gene_list, read_genes
    from scperformer.io.gene_overlap import find_panel

    path = cfg.inputs[0]
    if cells is None and is_gene_list(path):
        genes = read_genes(path, saved.genes)
        return Coverage(find_panel(genes, saved.genes, "model", species=cfg.species, path=path), None)
    with open_cells(path if cells is None else cells, cfg) as opened:
        return find_coverage(find_query(opened, saved))
