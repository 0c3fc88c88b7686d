"""`scperformer explain`: find the genes on which calls depend."""

import logging
import time
from dataclasses import replace

from scperformer.config.steps import ExplainConfig

log = logging.getLogger(__name__)

USAGE = "explain ANNOTATED"
EXAMPLES = """\
  scperformer explain sample.annotated.h5ad                        # -> sample.annotated.explanation/
  scperformer explain sample.annotated.h5ad cells=all output=why
  scperformer explain sample.annotated.h5ad label=NK               # what speaks for or against this label"""


def run(cfg: ExplainConfig) -> None:
    """Write the folder of an explanation."""
    from scperformer.io.read import default_output
    from scperformer.tasks.results import explain_sample

    start = time.perf_counter()
    explain_sample(
        replace(cfg, output=cfg.output or str(default_output(cfg.inputs[0], ".explanation")))
    )
    log.info("explained in %.1f s", time.perf_counter() - start)
