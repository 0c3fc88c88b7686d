"""`scperformer explain`: find the genes on which calls depend."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scperformer.base.outputs import require_absent
from scperformer.config.options import SEED, ExpressionOptions, option, require

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
    key_added: str = "scperformer"  # prefix of the annotation to read
    output: str | None = None  # a folder; null: INPUT.explanation beside the input
    label: str | None = None  # explain the logit of this label in all cells; null: of the label of each cell
    cells: Any = 200  # cells of each label, a random sample, or all
    seed: int = option(0, SEED)  # seed of the samples of cells and genes

    def __post_init__(self) -> None:
        super().__post_init__()
        is_number = isinstance(self.cells, int) and not isinstance(self.cells, bool) and self.cells >= 1
        require(is_number or self.cells == "all", "cells", self.cells, "a whole number above 0, or all")

    @property
    def num_cells(self) -> int | None:
        """The largest number of cells of each label; None: all."""
        return None if self.cells == "all" else self.cells


def run(cfg: ExplainConfig) -> Path:
    """Write the folder of an explanation and return its path, by default `<input>.explanation` next to the input."""
    from scperformer.io.read import default_output
    from scperformer.model.load import load_model
    from scperformer.results.explain import EXPLANATION, explain_cells, write_explanation
    from scperformer.results.read_annotations import read_annotated

    start = time.perf_counter()
    output = Path(cfg.output) if cfg.output else default_output(cfg.inputs[0], ".explanation")
    require_absent(output, cfg.overwrite, EXPLANATION)
    (annotated,) = read_annotated(cfg.inputs, cfg.key_added)
    model = None if cfg.model_path is None else load_model(cfg.model_path)
    explanation = explain_cells(annotated, cfg, model, label=cfg.label, num_cells=cfg.num_cells, seed=cfg.seed)
    write_explanation(explanation, output, cfg.key_added, annotated.name, overwrite=cfg.overwrite)
    log.info("explained in %.1f s", time.perf_counter() - start)
    return output
