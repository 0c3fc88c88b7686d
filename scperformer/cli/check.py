"""`scperformer check`: describe files, and check if a model can annotate them."""

import json
from typing import TYPE_CHECKING

from scperformer.base.errors import InputError
from scperformer.base.outputs import new_file
from scperformer.base.progress import say
from scperformer.config.steps import CheckConfig

if TYPE_CHECKING:
    from scperformer.results.check import Checked

USAGE = "check FILE..."
EXAMPLES = """\
  scperformer check sample.h5ad
  scperformer check *.h5ad model_path=my_model
  scperformer check filtered_feature_bc_matrix counts.csv.gz seurat.rds
  scperformer check reference.h5ad label_key=cell_type
  scperformer check sample.h5ad output=check.json       # also as JSON, for programs"""


def run(cfg: CheckConfig) -> "list[Checked]":
    """Print the findings about each file and the next command; with `output`, also write the findings as JSON."""
    from scperformer.io.own_files import require_replaceable
    from scperformer.results.check import check_all

    if cfg.output is not None:
        require_replaceable(cfg.output, cfg.overwrite)
    checks = check_all(cfg.inputs, cfg, say)
    if cfg.output is not None:
        text = json.dumps({"model": checks.model, "files": checks.files}, indent=1, allow_nan=False)
        with new_file(cfg.output, cfg.overwrite) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    if refused := [result["file"] for result in checks.files if result["problem"] is not None]:
        more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
        names = f"{', '.join(refused[:3])}{more}"
        found = f"{len(refused)} of {len(checks.files)} files cannot be used as they are: {names}"
        remedy = "see the problem and the remedy of each file above"
        raise InputError("files-refused", found, "files without a problem", remedy)
    return checks.files
