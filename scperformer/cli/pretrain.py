"""`scperformer pretrain`: train an encoder on unlabelled cells."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scperformer.config.training import PretrainOptions

if TYPE_CHECKING:
    from anndata import AnnData

USAGE = "pretrain FILE..."
EXAMPLES = """\
  scperformer pretrain corpus/*.h5ad output=my_encoder
  scperformer pretrain a.h5ad b.h5ad model=base tokens=scbert trainer.max_epochs=10 output=my_encoder
  scperformer pretrain a.h5ad genes_path=genes.txt
  scperformer pretrain more.h5ad init=my_encoder output=my_second_encoder"""


@dataclass(kw_only=True)
class PretrainConfig(PretrainOptions):
    """Train an encoder on unlabelled cells to predict masked expression."""


def run(cfg: PretrainConfig, cells: "Sequence[AnnData] | None" = None) -> Path:
    """Pretrain on the files `cfg.inputs` or on cells in memory; write the model folder and return its path."""
    from scperformer.io.read import default_output
    from scperformer.model.inference import torch_state_kept
    from scperformer.token_attention.pretrain import pretrain_cells

    output = Path(cfg.output) if cfg.output else default_output(cfg.inputs[0], ".encoder")
    with torch_state_kept():  # other libraries change the number of threads, too, when they are imported
        return pretrain_cells(cells, cfg, output)
