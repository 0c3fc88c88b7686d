"""`scperformer pretrain`: train an encoder on unlabelled cells."""

from pathlib import Path

from scperformer.config.training import PretrainOptions as PretrainConfig

USAGE = "pretrain FILE..."
EXAMPLES = """\
  scperformer pretrain corpus/*.h5ad output=my_encoder
  scperformer pretrain a.h5ad b.h5ad model=base tokens=scbert trainer.max_epochs=10 output=my_encoder
  scperformer pretrain a.h5ad genes_path=genes.txt
  scperformer pretrain more.h5ad init=my_encoder output=my_second_encoder"""


def run(cfg: PretrainConfig) -> Path:
    """Pretrain on files; write the model folder and return its path."""
    from scperformer.tasks.train import pretrain_encoder

    return pretrain_encoder(cfg)
