"""`scperformer report`: make one HTML page about annotated files."""

from pathlib import Path

from scperformer.config.steps import ReportConfig

USAGE = "report ANNOTATED..."
EXAMPLES = """\
  scperformer report sample.annotated.h5ad          # -> sample.annotated.report.html
  scperformer report a.h5ad b.h5ad evaluation=evaluation output=report.html"""


def run(cfg: ReportConfig) -> Path:
    """Write one HTML page about annotated files, and return its path."""
    from scperformer.tasks.results import write_page

    return write_page(cfg)[0]
