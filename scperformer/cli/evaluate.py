"""`scperformer evaluate`: compare with true labels, beside logistic regression."""

from dataclasses import replace
from pathlib import Path

from scperformer.config.steps import EvaluateConfig

USAGE = "evaluate ANNOTATED... truth_key=COLUMN"
EXAMPLES = """\
  scperformer evaluate sample.annotated.h5ad truth_key=cell_type output=evaluation
  scperformer evaluate a.h5ad b.h5ad truth_key=cell_type truth_path=[a.csv,b.csv] output=evaluation"""


def run(cfg: EvaluateConfig) -> Path:
    """Score annotated files against true labels; write the evaluation folder and return its path."""
    from scperformer.tasks.results import evaluate_cells, first_annotated

    output = Path(cfg.output or Path(first_annotated(cfg.inputs)).with_suffix(".evaluation"))
    evaluate_cells(replace(cfg, output=str(output)))
    return output
