"""`scperformer evaluate`: compare with true labels, beside logistic regression."""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scperformer.base.messages import listed
from scperformer.base.outputs import FAILED_SUFFIX, require_absent
from scperformer.config.options import FileOptions, require

if TYPE_CHECKING:  # pandas and anndata are slow to import
    from anndata import AnnData

    from scperformer.results.evaluate import Evaluation

log = logging.getLogger(__name__)

USAGE = "evaluate ANNOTATED... truth_key=COLUMN"
EXAMPLES = """\
  scperformer evaluate sample.annotated.h5ad truth_key=cell_type output=evaluation
  scperformer evaluate a.h5ad b.h5ad truth_key=cell_type truth_path=[a.csv,b.csv] output=evaluation"""


@dataclass(kw_only=True)
class EvaluateConfig(FileOptions):
    """Compare annotations with the true labels, beside logistic regression."""

    truth_key: str  # obs column, or column of `truth_path`, with the true labels
    # text tables with the true labels, one for each file; the first column names the cells; null: labels are in obs
    truth_path: list[str] | None = None
    key_added: str = "scperformer"  # prefix of the annotation, if predict had another
    output: str | None = None  # a folder; null: FIRST_INPUT.evaluation beside it

    def __post_init__(self) -> None:
        super().__post_init__()
        has_all = self.truth_path is None or len(self.truth_path) == len(self.inputs)
        require(has_all, "truth_path", self.truth_path, f"{len(self.inputs)} tables, one per input file")


def run(cfg: EvaluateConfig) -> Path:
    """Score annotated files against true labels; write the evaluation folder and return its path."""
    first = next((path for path in cfg.inputs if not path.endswith(FAILED_SUFFIX)), cfg.inputs[0])
    output = cfg.output or str(Path(first).with_suffix(".evaluation"))
    evaluate_cells(replace(cfg, output=output))
    return Path(output)


def evaluate_cells(cfg: EvaluateConfig, cells: "AnnData | None" = None) -> "Evaluation":
    """Score annotated files, or cells in memory; write a folder if `cfg.output` names one."""
    from scperformer.results.evaluate import EVALUATION, evaluate_samples, write_evaluation
    from scperformer.results.read_annotations import of_cells, read_annotated

    failed = [path for path in cfg.inputs if path.endswith(FAILED_SUFFIX)]
    if failed:
        log.warning("skipping failed samples: %s", listed(failed))
        rest = [place for place, path in enumerate(cfg.inputs) if path not in failed]
        tables = None if cfg.truth_path is None else [cfg.truth_path[place] for place in rest]
        cfg = replace(cfg, inputs=[cfg.inputs[place] for place in rest], truth_path=tables)
    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite, EVALUATION)
    samples = read_annotated(cfg.inputs, cfg.key_added) if cells is None else [of_cells(cells, cfg.key_added)]
    evaluation = evaluate_samples(samples, cfg.truth_key, cfg.truth_path)
    if cfg.output is not None:
        write_evaluation(evaluation, Path(cfg.output), cfg.overwrite)
    return evaluation
