"""`scperformer train`: train a model on a labelled reference."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scperformer.config.options import LINE, ZERO_OR_MORE, choice, option, require
from scperformer.config.training import NetworkConfig, ReferenceOptions

if TYPE_CHECKING:
    from anndata import AnnData

USAGE = "train REFERENCE label_key=COLUMN"
EXAMPLES = """\
  scperformer train reference.h5ad label_key=cell_type output=my_model
  scperformer train reference.h5ad label_key=cell_type model=tiny trainer.max_epochs=5
  scperformer train reference.h5ad label_key=cell_type -m model=performer,tiny seed=0,1
  scperformer train reference.h5ad label_key=cell_type output=my_model resume=true
  scperformer train reference.h5ad label_key=cell_type data.split=group data.split_key=donor
  scperformer train reference.h5ad label_key=cell_type init=my_encoder init_mode=last_layer
  scperformer train reference.h5ad label_key=cell_type genes_path=panel.txt            # a model for one panel
  scperformer train reference.h5ad label_keys=[lineage,cell_type]       # a tree: unsafe calls back off
presets: model=performer|pooled|tiny|base|scbert  tokens=continuous|bins|scbert  attention=favor|softmax
         head=weighted|mean|cls|conv  trainer=auto|cpu|gpu|ddp  logger=all|csv|none|wandb|mlflow"""


@dataclass(kw_only=True)
class TrainConfig(NetworkConfig, ReferenceOptions):
    """Train a model on a labelled reference."""

    # train a model for each study and join them; auto: with several files; true: also for the batches of one file
    studies: str = choice("auto", "true", "false")
    # with several studies: a CSV or TSV file with a label and its joint label in each row; see docs/training.md
    label_map: str | None = None
    # tissue of the reference, such as blood; the model card and `models list` show it
    tissue: str | None = option(None, LINE)
    # reference cells stored in the model folder, for refits to genes and depth; 0: cells simulated from the profiles of
    # the labels
    keep_cells: int = option(20000, ZERO_OR_MORE)
    # full: the model card also has the expected accuracy with fewer genes or a lower depth, and how many cells of each
    # label a model without this label flags as unknown; takes some minutes
    card: str = choice("short", "full")
    # part of the `init` encoder that is trained; last_layer: and the final norm; head: none
    init_mode: str = choice("full", "last_layer", "head")

    def __post_init__(self) -> None:
        self.studies = self.studies.lower()  # Hydra turns the word true into True
        super().__post_init__()
        is_coexpression = self.model.positions == "coexpression"
        is_weighted = self.head.name == "weighted"
        # Beside `init`, model=performer may be the default only: the model of `init` replaces it.
        is_settled_later = self.init is not None and is_coexpression
        head_fits = not self.model.encoder or is_coexpression == is_weighted or is_settled_later
        expected = "weighted with model=performer or pooled, or another head with model=tiny, base or scbert"
        require(head_fits, "head.name", self.head.name, expected)
        has_studies = self.studies == "true" or (self.studies == "auto" and len(self.inputs) > 1)
        require(has_studies or self.label_map is None, "label_map", self.label_map, "several files, or studies=true")
        uses_unlabelled = self.model.encoder and is_coexpression
        expected = "no files without model=performer or pooled"
        require(uses_unlabelled or not self.unlabelled, "unlabelled", self.unlabelled, expected)
        expected = "no files beside init, from which the vectors of genes are taken"
        require(self.init is None or not self.unlabelled, "unlabelled", self.unlabelled, expected)
        require(self.keep_cells > 0 or self.card == "short", "card", self.card, "short with keep_cells=0")
        if self.init is None:
            require(self.init_mode == "full", "init_mode", self.init_mode, "init=FOLDER beside it")


def run(cfg: TrainConfig, cells: "AnnData | None" = None) -> Path:
    """Train a model on the files `cfg.inputs` or on cells in memory; write the model folder and return its path."""
    from scperformer.io.read import default_output
    from scperformer.model.inference import torch_state_kept
    from scperformer.training.studies import train_studies, trains_studies
    from scperformer.training.train import train_cells

    output = Path(cfg.output) if cfg.output else default_output(cfg.inputs[0], ".model")
    with torch_state_kept():  # other libraries change the number of threads, too, when they are imported
        if trains_studies(cfg, len(cfg.inputs) if cells is None else 1):
            return train_studies(cells, cfg, output)
        encoder = None
        if cfg.init is not None or (cfg.model.encoder and not cfg.model.reads_genes):
            from scperformer.lab.supervised import TokenEncoder

            encoder = TokenEncoder(cfg)
        return train_cells(cells, cfg, output, encoder)
