"""`scperformer report`: make one HTML page about annotated files."""

from dataclasses import dataclass
from pathlib import Path

from scperformer.config.options import SEED, FileOptions, option

USAGE = "report ANNOTATED..."
EXAMPLES = """\
  scperformer report sample.annotated.h5ad output=report.html
  scperformer report a.h5ad b.h5ad evaluation=evaluation output=report.html"""


@dataclass(kw_only=True)
class ReportConfig(FileOptions):
    """Make one self-contained HTML page about annotated files."""

    evaluation: str | None = None  # the folder that `evaluate` has written
    key_added: str = "scperformer"  # prefix of the annotation to read
    output: str | None = None  # null: report.html beside the first input
    max_cells: int = option(12000, (lambda num: num >= 10, "10 or more"))  # cells on the map; of more, a random sample
    sample_key: str | None = None  # obs column with the sample of each cell; null: each file is a sample
    seed: int = option(0, SEED)  # seed of the map and of the choice of its cells


def run(cfg: ReportConfig) -> Path:
    """Write one HTML page about annotated files, and return its path; errors as `make_report`."""
    from scperformer.results.report import make_report

    return make_report(cfg)[0]
