"""`scperformer predict`: annotate the cells of files."""

from pathlib import Path
from typing import TYPE_CHECKING

from scperformer.config.annotation import PredictConfig

if TYPE_CHECKING:
    from scperformer.adaptation.fitted import Model

USAGE = "predict FILE..."
EXAMPLES = """\
  scperformer predict sample.h5ad                       # finds the tissue -> sample.annotated.h5ad
  scperformer predict sample.h5ad tissue=pancreas
  scperformer predict sample.h5ad types=markers.csv     # by marker genes of your own; beside tissue=NAME for some types
  scperformer predict sample.h5ad model_path=my_model output=out.h5ad
  scperformer predict run1.h5ad run2.h5ad model_path=my_model min_confidence=0.5
  scperformer predict runs/*.h5ad output_dir=annotated keep_going=true    # go on if some files are refused
  scperformer predict runs/*.h5ad output_dir=annotated resume=true        # go on after an interruption
  scperformer predict sample.h5ad clusters=leiden deny_labels=[DC,Platelet]   # also a label of each cluster
  scperformer predict runs/*.h5ad output='calls/{sample}.csv'             # tables
  scperformer predict seurat.rds output=calls.rds       # an object of R, and a data.frame for it
  scperformer predict sample.h5ad clusters=auto markers_output=clusters.tsv   # a table of clusters, to name them
  scperformer predict panel.h5ad model_path=my_model adapt=false   # the model as it is, whatever the file lacks"""


def run(cfg: PredictConfig, model: "Model | None" = None) -> list[Path]:
    """Annotate files, and return the paths of their outputs."""
    from scperformer.tasks.predict import annotate_files

    return annotate_files(cfg, model)
