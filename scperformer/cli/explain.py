"""`scperformer explain`: find the genes on which calls depend."""

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scperformer.base.outputs import require_absent
from scperformer.config.options import SEED, ExpressionOptions, option, require

if TYPE_CHECKING:
    from anndata import AnnData

    from scperformer.annotation.fitted import Model
    from scperformer.results.explain import Explanation

log = logging.getLogger(__name__)

USAGE = "explain ANNOTATED"
EXAMPLES = """\
  scperformer explain sample.annotated.h5ad                        # -> sample.annotated.explanation/
  scperformer explain sample.annotated.h5ad cells=all output=why
  scperformer explain sample.annotated.h5ad label=NK               # what speaks for or against this label"""


@dataclass(kw_only=True)
class ExplainConfig(ExpressionOptions):
    """Find the genes on which the calls of an annotated file depend."""

    takes_one = True
    model_path: str | None = None  # null: the recorded model of the annotation, else as for `predict`
    key_added: str = "scperformer"  # prefix of the annotation, if predict had another
    output: str | None = None  # a folder; null: INPUT.explanation beside the input
    label: str | None = None  # explain the logit of this label in all cells; null: of the label of each cell
    cells: int | str = 200  # cells of each label, a random sample; fewer for slow encoders, or all
    seed: int = option(0, SEED)  # seed of the samples, for another sample

    def __post_init__(self) -> None:
        super().__post_init__()
        is_number = isinstance(self.cells, int) and not isinstance(self.cells, bool) and self.cells >= 1
        require(is_number or self.cells == "all", "cells", self.cells, "a whole number above 0, or all")

    @property
    def num_cells(self) -> int | None:
        """The largest number of cells of each label; None: all."""
        return None if self.cells == "all" else int(self.cells)


def run(cfg: ExplainConfig) -> Path:
    """Write the folder of an explanation and return its path, by default `<input>.explanation` next to the input."""
    from scperformer.io.read import default_output

    start = time.perf_counter()
    output = cfg.output or str(default_output(cfg.inputs[0], ".explanation"))
    explain_sample(replace(cfg, output=output))
    log.info("explained in %.1f s", time.perf_counter() - start)
    return Path(output)


def explain_sample(cfg: ExplainConfig, cells: "AnnData | None" = None, model: "Model | None" = None) -> "Explanation":
    """Explain an annotated file, or cells in memory; write a folder if `cfg.output` names one."""
    from scperformer.annotation.load import load_model
    from scperformer.results.explain import EXPLANATION, explain_cells, write_explanation
    from scperformer.results.read_annotations import of_cells, read_annotated

    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite, EXPLANATION)
    [sample] = read_annotated(cfg.inputs, cfg.key_added) if cells is None else [of_cells(cells, cfg.key_added)]
    if model is None and cfg.model_path is not None:
        model = load_model(cfg.model_path)
    explanation = explain_cells(sample, cfg, model, label=cfg.label, num_cells=cfg.num_cells, seed=cfg.seed)
    if cfg.output is not None:
        write_explanation(explanation, Path(cfg.output), sample.name, overwrite=cfg.overwrite)
    return explanation
