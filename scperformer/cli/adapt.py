"""`scperformer adapt`: adapt a model to the genes and the depth of a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from scperformer.base.outputs import require_absent
from scperformer.config.options import ModelOptions, require

USAGE = "adapt MODEL FILE"
EXAMPLES = """\
  scperformer adapt my_model sample.h5ad output=shallow_model
  scperformer adapt my_model panel.txt output=panel_model          # one gene a line"""


@dataclass(kw_only=True)
class AdaptConfig(ModelOptions):
    """Adapt a model to the genes and the depth of a file, or to a list of genes."""

    takes_one = True
    adapt: ClassVar[str] = "true"  # as `predict` has it

    output: str | None = None  # null: INPUT.adapted beside the input

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.model_path is not None, "model_path", self.model_path, "the model, as the first word")


def run(cfg: AdaptConfig) -> Path:
    """Load a model, adapt it to a file or to a text file of genes, and write it; return its folder."""
    from scperformer.io.read import default_output
    from scperformer.model.folder import MODEL
    from scperformer.model.load import load_model
    from scperformer.training.adapt import write_adapted

    output = Path(cfg.output) if cfg.output else default_output(cfg.inputs[0], ".adapted")
    require_absent(output, cfg.overwrite, MODEL)
    return write_adapted(load_model(cfg.model_path), cfg.inputs[0], output, cfg)
