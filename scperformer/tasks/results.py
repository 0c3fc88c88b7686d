"""Evaluate, explain and report annotated files, or annotated cells in memory, and write the result.

What a step needs is imported when it runs: the others would load torch, pictures or a page for nothing.
"""

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scperformer.base.messages import listed
from scperformer.base.outputs import FAILED_SUFFIX, new_file, require_absent
from scperformer.config.steps import EvaluateConfig, ExplainConfig, ReportConfig

if TYPE_CHECKING:
    from anndata import AnnData

    from scperformer.adaptation.fitted import Model
    from scperformer.results.evaluate import Evaluation
    from scperformer.results.explain import Explanation
    from scperformer.results.read_annotations import Annotated, Failed
    from scperformer.results.report import Report

log = logging.getLogger(__name__)


def first_annotated(inputs: list[str]) -> str:
    """Return the first input that is an annotation, after which outputs are named, not the reason of a failure."""
    return next((path for path in inputs if not path.endswith(FAILED_SUFFIX)), inputs[0])


def _samples(
    cfg: EvaluateConfig | ExplainConfig | ReportConfig,
    cells: "AnnData | None",
    failed: "list[Failed] | None" = None,
) -> "list[Annotated]":
    from scperformer.results.read_annotations import of_cells, read_annotated

    return (
        read_annotated(cfg.inputs, cfg.key_added, failed)
        if cells is None
        else [of_cells(cells, cfg.key_added)]
    )


def evaluate_cells(cfg: EvaluateConfig, cells: "AnnData | None" = None) -> "Evaluation":
    """Score annotated files, or cells in memory; write a folder if `cfg.output` names one."""
    from scperformer.results.evaluate import EVALUATION, evaluate_samples, write_evaluation

    if failed := [path for path in cfg.inputs if path.endswith(FAILED_SUFFIX)]:
        log.warning("skipping failed samples: %s", listed(failed))
        rest = [place for place, path in enumerate(cfg.inputs) if path not in failed]
        tables = None if cfg.truth_path is None else [cfg.truth_path[place] for place in rest]
        cfg = replace(cfg, inputs=[cfg.inputs[place] for place in rest], truth_path=tables)
    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite, EVALUATION)
    samples = _samples(cfg, cells)
    evaluation = evaluate_samples(samples, cfg.truth_key, cfg.truth_path)
    if cfg.output is not None:
        write_evaluation(evaluation, Path(cfg.output), cfg.overwrite)
    return evaluation


def explain_sample(
    cfg: ExplainConfig, cells: "AnnData | None" = None, model: "Model | None" = None
) -> "Explanation":
    """Explain an annotated file, or cells in memory; write a folder if `cfg.output` names one."""
    from scperformer.adaptation.load import load_model
    from scperformer.results.explain import EXPLANATION, explain_cells, write_explanation

    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite, EXPLANATION)
    [sample] = _samples(cfg, cells)
    if model is None and cfg.model_path is not None:
        model = load_model(cfg.model_path)
    explanation = explain_cells(sample, cfg, model)
    if cfg.output is not None:
        write_explanation(explanation, Path(cfg.output), sample.name, overwrite=cfg.overwrite)
    return explanation


def write_page(
    cfg: ReportConfig, evaluation: "Evaluation | None" = None, cells: "AnnData | None" = None
) -> "tuple[Path, Report]":
    """Write the report on annotated files, or cells and an evaluation in memory; return its path and what it shows."""
    from scperformer.io.excel import require_openpyxl, write_workbook
    from scperformer.io.own_files import require_replaceable
    from scperformer.io.read import default_output
    from scperformer.results.evaluate import read_evaluation
    from scperformer.results.report import render, require_same_samples

    start = time.perf_counter()
    output = Path(cfg.output or default_output(first_annotated(cfg.inputs), ".report.html"))
    require_replaceable(output, cfg.overwrite)
    require_openpyxl(output)
    failed: list[Failed] = []
    samples = _samples(cfg, cells, failed)
    if cfg.evaluation is not None:
        evaluation = read_evaluation(cfg.evaluation)
    if evaluation is not None:
        require_same_samples(evaluation, samples)
    report = render(samples, failed, evaluation, cfg)
    with new_file(output, cfg.overwrite) as temporary:
        if output.suffix == ".xlsx":
            write_workbook(temporary, report.tables)
        else:
            # File names need not be valid Unicode: invalid characters become character references.
            temporary.write_text(report.page, encoding="utf-8", errors="xmlcharrefreplace")
    text = (
        f"{sum(len(sample.obs) for sample in samples):,} cells in {len(samples)} sample"
        + "s" * (len(samples) > 1)
    )
    megabytes = output.stat().st_size / 1e6
    log.info(
        "report on %s: %s (%.1f MB, %.0f s)", text, output, megabytes, time.perf_counter() - start
    )
    return output, report
