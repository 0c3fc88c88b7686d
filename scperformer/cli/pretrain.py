"""`scperformer pretrain`: train an encoder on unlabelled cells."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scperformer.config.options import AUTO, require
from scperformer.config.training import MaskingConfig, NetworkConfig

if TYPE_CHECKING:
    from anndata import AnnData

USAGE = "pretrain FILE..."
EXAMPLES = """\
  scperformer pretrain corpus/*.h5ad output=my_encoder
  scperformer pretrain a.h5ad b.h5ad model=tiny tokens=scbert trainer.max_epochs=10 output=my_encoder
  scperformer pretrain a.h5ad genes_path=genes.txt masking.share=0.3
  scperformer pretrain more.h5ad init=my_encoder output=my_second_encoder"""


@dataclass(kw_only=True)
class PretrainConfig(NetworkConfig):
    """Train an encoder on unlabelled cells to predict masked expression."""

    masking: MaskingConfig = field(default_factory=MaskingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.model.encoder, "model.encoder", self.model.encoder, "true with pretrain, which trains the encoder")
        fits = self.model.positions != "coexpression" or self.model.queries == "cell"
        require(fits, "model.queries", self.model.queries, "cell with pretrain and model.positions=coexpression")
        require(self.model.depth > 0, "model.depth", self.model.depth, "1 or more with pretrain")
        both = self.init is not None and self.genes_path is not None
        require(not both, "genes_path", self.genes_path, "no genes_path beside init, which has its genes")
        # Only `train` measures the memory of its steps.
        require(self.trainer.batch_size != AUTO, "trainer.batch_size", AUTO, "a whole number above 0 with pretrain")


def run(cfg: PretrainConfig, cells: "Sequence[AnnData] | None" = None) -> Path:
    """Pretrain on the files `cfg.inputs` or on cells in memory; write the model folder and return its path."""
    from scperformer.io.read import default_output
    from scperformer.lab.pretrain import pretrain_cells
    from scperformer.model.inference import torch_state_kept

    output = Path(cfg.output) if cfg.output else default_output(cfg.inputs[0], ".encoder")
    with torch_state_kept():  # other libraries change the number of threads, too, when they are imported
        return pretrain_cells(cells, cfg, output)
