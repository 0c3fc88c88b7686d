"""`scperformer check`: describe files, and check if a model can annotate them."""

import json
from dataclasses import dataclass
from typing import Any

from scperformer.base.errors import InputError
from scperformer.base.outputs import new_file, require_absent
from scperformer.base.progress import say
from scperformer.config.options import TissueOptions

USAGE = "check FILE..."
EXAMPLES = """\
  scperformer check sample.h5ad
  scperformer check *.h5ad model_path=my_model
  scperformer check filtered_feature_bc_matrix counts.csv.gz sample.loom
  scperformer check reference.h5ad label_key=cell_type
  scperformer check sample.h5ad output=check.json       # also as JSON, for programs"""


@dataclass(kw_only=True)
class CheckConfig(TissueOptions):
    """Describe files, and check whether a model can annotate them."""

    label_key: str | None = None  # before training: check whether `train` would accept these labels
    output: str | None = None  # a file for the findings as JSON, for programs


def run(cfg: CheckConfig) -> list[dict[str, Any]]:
    """Print the findings about each file and the next command; with `output`, also write the findings as JSON."""
    from scperformer.results.check import check_all

    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite)
    checks = check_all(cfg.inputs, cfg, label_key=cfg.label_key, tell=say)
    results = checks.files
    if cfg.output is not None:
        text = json.dumps({"model": checks.model, "files": results}, indent=1, allow_nan=False)
        with new_file(cfg.output, cfg.overwrite) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    if refused := [result["file"] for result in results if result["problem"] is not None]:
        more = f" and {len(refused) - 3} more" if len(refused) > 3 else ""
        found = f"{len(refused)} of {len(results)} files cannot be used as they are: {', '.join(refused[:3])}{more}"
        raise InputError(
            "files-refused", found, "files without a problem", "see the problem and the remedy of each file above"
        )
    return results
