"""`scperformer report`: make one HTML page about annotated files."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scperformer.base.outputs import FAILED_SUFFIX, new_file, require_absent
from scperformer.config.options import SEED, FileOptions, option

if TYPE_CHECKING:
    from anndata import AnnData

    from scperformer.results.evaluate import Evaluation

log = logging.getLogger(__name__)

USAGE = "report ANNOTATED..."
EXAMPLES = """\
  scperformer report sample.annotated.h5ad          # -> sample.annotated.report.html
  scperformer report a.h5ad b.h5ad evaluation=evaluation output=report.html"""


@dataclass(kw_only=True)
class ReportConfig(FileOptions):
    """Make one self-contained HTML page about annotated files."""

    evaluation: str | None = None  # the folder that `evaluate` has written
    key_added: str = "scperformer"  # prefix of the annotation, if predict had another
    output: str | None = None  # null: FIRST_INPUT.report.html beside it
    cells: int = option(12000, (lambda num: num >= 10, "10 or more"))  # cells on the map; fewer for speed
    sample_key: str | None = None  # obs column with the sample of each cell; null: each file is a sample
    seed: int = option(0, SEED)  # seed of the map, for another one


def run(cfg: ReportConfig) -> Path:
    """Write one HTML page about annotated files, and return its path."""
    return write_page(cfg)[0]


def write_page(
    cfg: ReportConfig, evaluation: "Evaluation | None" = None, cells: "AnnData | None" = None
) -> tuple[Path, str]:
    """Write the page, also of cells and evaluations in memory; return its path and the HTML of its first screen."""
    from scperformer.io.read import default_output
    from scperformer.results.evaluate import read_evaluation
    from scperformer.results.read_annotations import Failed, of_cells, read_annotated
    from scperformer.results.report import render, require_same_samples

    start = time.perf_counter()
    first = next((path for path in cfg.inputs if not path.endswith(FAILED_SUFFIX)), cfg.inputs[0])
    output = Path(cfg.output or default_output(first, ".report.html"))
    require_absent(output, cfg.overwrite)
    failed: list[Failed] = []
    key = cfg.key_added
    samples = read_annotated(cfg.inputs, key, failed) if cells is None else [of_cells(cells, key)]
    if cfg.evaluation is not None:
        evaluation = read_evaluation(cfg.evaluation)
    if evaluation is not None:
        require_same_samples(evaluation, samples)
    page, summary = render(samples, failed, evaluation, cfg.sample_key, cfg.cells, cfg.seed)
    with new_file(output, cfg.overwrite) as temporary:
        # File names need not be valid Unicode: invalid characters become character references.
        temporary.write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
    text = f"{sum(len(sample.obs) for sample in samples):,} cells in {len(samples)} sample"
    text += "s" if len(samples) > 1 else ""
    megabytes = output.stat().st_size / 1e6
    log.info("report on %s: %s (%.1f MB, %.0f s)", text, output, megabytes, time.perf_counter() - start)
    return output, summary
