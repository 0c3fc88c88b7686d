"""`scperformer train`: train a model on a labelled reference."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from scperformer.base.errors import InputError
from scperformer.config.training import TrainOptions as TrainConfig

if TYPE_CHECKING:
    from anndata import AnnData

USAGE = "train REFERENCE label_key=COLUMN"
EXAMPLES = """\
  scperformer train reference.h5ad label_key=cell_type output=my_model
  scperformer train sample.h5ad types=markers.csv output=my_model       # marker genes in place of labels
  scperformer train reference.h5ad label_key=cell_type --estimate       # time and memory, without training
  scperformer train filtered_feature_bc_matrix labels=labels.csv label_key=cell_type   # labels in a table
  scperformer train reference.h5ad label_key=cell_type model=tiny trainer.max_epochs=5
  scperformer train reference.h5ad label_key=cell_type output=my_model resume=true
  scperformer train reference.h5ad label_key=cell_type data.split=group data.split_key=donor
  scperformer train reference.h5ad label_key=cell_type init=my_encoder init_mode=last_layer
  scperformer train reference.h5ad label_key=cell_type genes_path=panel.txt            # a model for one panel
  scperformer train reference.h5ad label_keys=[lineage,cell_type]       # a tree: unsafe calls back off
presets: model=performer|pooled|tiny|base|scbert|linformer  tokens=continuous|bins|scbert  attention=favor|softmax
         head=weighted|mean|cls|conv  trainer=auto|cpu|gpu|ddp  logger=all|csv|none|wandb|mlflow"""


def run(cfg: TrainConfig, cells: "AnnData | None" = None) -> Path:
    """Train a model on files; write the model folder and return its path."""
    from scperformer.tasks.train import train_model

    return train_model(cfg, cells)


def print_estimate(cfg: TrainConfig) -> None:
    """Print the time and memory of a training, from the sizes of its files: a line for each model."""
    from scperformer.training.estimate import cost_of_files
    from scperformer.training.studies import trains_studies

    if cfg.model.encoder and not cfg.model.uses_cross_attention:
        found = "--estimate with attention between tokens"
        raise InputError("no-estimate", found, "model=performer or pooled", "leave one out")
    parts = [replace(cfg, inputs=[name], label_map=None, studies="false") for name in cfg.inputs]
    for part in parts if trains_studies(cfg, len(parts)) else [cfg]:
        print(f"{', '.join(part.inputs)}: {cost_of_files(part)}")
