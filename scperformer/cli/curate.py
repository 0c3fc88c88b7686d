"""`scperformer curate`: name the clusters of an annotated file yourself."""

from pathlib import Path

from scperformer.config.steps import CurateConfig

USAGE = "curate ANNOTATED names=TABLE"
EXAMPLES = """\
  scperformer curate sample.annotated.h5ad names=clusters.tsv    # -> sample.curated.h5ad
  scperformer curate sample.annotated.h5ad names=clusters.xlsx output=labels.csv by=Ada
the table is of 'scperformer predict sample.h5ad clusters=auto markers_output=clusters.tsv': fill in the column `name`;
'scperformer train sample.curated.h5ad output=mine' makes a model of the names"""


def run(cfg: CurateConfig) -> Path:
    """Write the file with the names of its clusters as labels, and return its path."""
    from scperformer.tasks.curate import curate_file

    return curate_file(cfg)
