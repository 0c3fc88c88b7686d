"""`scperformer preprocess`: filter, normalise and log-transform a file."""

import logging
import time
from pathlib import Path

from scperformer.config.steps import PreprocessConfig

log = logging.getLogger(__name__)

USAGE = "preprocess FILE"
EXAMPLES = """\
  scperformer preprocess reference.h5ad output=prepared.h5ad
  scperformer preprocess sample.h5ad source=layers/counts data.min_genes=200
  scperformer preprocess sample.h5ad model_path=my_model    # genes aligned to the model's"""


def run(cfg: PreprocessConfig) -> Path:
    """Write a prepared copy of a file, as a reference or, with `model_path`, with a model's genes; return its path."""
    from scperformer.cells.opened import whole_cells
    from scperformer.cells.preprocess import prepare_for_model, prepare_reference
    from scperformer.io.h5ad import PREPARED_KEY, write_h5ad
    from scperformer.io.own_files import require_replaceable
    from scperformer.io.read import default_output, origins, require_readable

    start = time.perf_counter()
    path = Path(cfg.inputs[0])
    require_readable(path)
    output = Path(cfg.output) if cfg.output is not None else default_output(path, ".prepared.h5ad")
    require_replaceable(output, cfg.overwrite)
    make = prepare_reference if cfg.model_path is None else prepare_for_model
    prepared = make(whole_cells(path, cfg))
    record = prepared.uns[PREPARED_KEY]
    absent = (
        f", {record['genes_absent']} genes of model {record['model']} absent"
        if "model" in record
        else ""
    )
    cells = f"{record['cells']} cells ({record['cells_dropped']} dropped)"
    genes = f"{record['genes']} genes ({record['genes_dropped']} dropped{absent})"
    log.info("kept %s and %s, %g counts per cell", cells, genes, record["target_sum"])
    [made_of], digest = origins([path])  # of a file that was prepared before, its own origin
    prepared.uns[PREPARED_KEY] |= {"path": made_of, "sha256": digest}
    write_h5ad(prepared, output, cfg.overwrite)
    log.info("wrote %s in %.1f s", output, time.perf_counter() - start)
    return output
