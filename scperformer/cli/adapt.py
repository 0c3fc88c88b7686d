"""`scperformer adapt`: adapt a model to the genes and the depth of a file."""

from pathlib import Path

from scperformer.config.steps import AdaptConfig

USAGE = "adapt MODEL FILE"
EXAMPLES = """\
  scperformer adapt my_model sample.h5ad output=shallow_model
  scperformer adapt my_model panel.txt output=panel_model          # one gene a line"""


def run(cfg: AdaptConfig) -> Path:
    """Adapt a model to a file or to a text file of genes, and write it; return its folder."""
    from scperformer.tasks.adapt import write_adapted

    return write_adapted(cfg)
