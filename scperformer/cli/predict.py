"""`scperformer predict`: annotate the cells of files."""

from dataclasses import dataclass, field
from pathlib import Path

from scperformer.config.annotation import AnnotationOptions
from scperformer.config.options import choice, require

USAGE = "predict FILE..."
EXAMPLES = """\
  scperformer predict sample.h5ad                       # packaged model -> sample.annotated.h5ad
  scperformer predict sample.h5ad model_path=my_model output=out.h5ad
  scperformer predict run1.h5ad run2.h5ad model_path=my_model min_confidence=0.5
  scperformer predict runs/*.h5ad output_dir=annotated keep_going=true    # go on if some files are refused
  scperformer predict runs/*.h5ad output_dir=annotated resume=true        # go on after an interruption
  scperformer predict sample.h5ad clusters=leiden deny_labels=[DC,Platelet]   # also a label of each cluster
  scperformer predict runs/*.h5ad output='calls/{sample}.csv'             # tables
  scperformer predict panel.h5ad model_path=my_model adapt=false   # the model as it is, whatever the file lacks"""


@dataclass(kw_only=True)
class PredictConfig(AnnotationOptions):
    """Annotate the cells of one or more files."""

    # a name in .h5ad, .zarr, .csv, .tsv (both also .gz) or .parquet, in which {sample} stands for the name of each of
    # several files, such as calls/{sample}.csv; null: SAMPLE.annotated.h5ad beside each file
    output: str | None = None
    outputs: list[str] = field(default_factory=list)  # with several files: a name for each of them, in their order
    output_dir: str | None = None  # a folder for all outputs, SAMPLE.annotated.h5ad
    # a sample sheet, a table with the column path; its further columns, such as condition, become columns of obs
    sample_sheet: str | None = None
    # continue an interrupted run: files that it has finished stay as they are, and one that it has begun goes on
    resume: bool = False
    replace_annotation: bool = False  # replace an annotation of the same prefix that a file has
    # true: annotate the other files when one is refused, for which SAMPLE.failed.json holds the reason; the exit code
    # is then 2, and with ok 0
    keep_going: str = choice("false", "true", "ok")

    def __post_init__(self) -> None:
        self.keep_going = self.keep_going.lower()  # Hydra turns the word true into True
        super().__post_init__()
        num = len(self.inputs)
        expected = "a name with {sample} for several files, or output_dir=FOLDER, which takes all of them"
        require(num == 1 or "{sample}" in (self.output or "{sample}"), "output", self.output, expected)
        if self.outputs:
            require(self.output is None, "output", self.output, "no output beside outputs")
            require(len(self.outputs) == num, "outputs", self.outputs, f"{num} outputs, one per input file")
        named = self.output is not None or bool(self.outputs)
        require(self.output_dir is None or not named, "output_dir", self.output_dir, "no output or outputs beside it")


def run(cfg: PredictConfig) -> list[Path]:
    """Write an annotated copy of each file; return their paths."""
    from scperformer.annotation.predict import run_predict

    return run_predict(cfg)
