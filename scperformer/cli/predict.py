"""`scperformer predict`: annotate the cells of files."""

import logging
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from scperformer.base.errors import InputError
from scperformer.base.messages import in_percent
from scperformer.base.outputs import FAILED_SUFFIX
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.options import choice, require

if TYPE_CHECKING:
    from scperformer.annotation.fitted import Model

log = logging.getLogger(__name__)

USAGE = "predict FILE..."
EXAMPLES = """\
  scperformer predict sample.h5ad                       # finds the tissue -> sample.annotated.h5ad
  scperformer predict sample.h5ad tissue=pancreas
  scperformer predict sample.h5ad model_path=my_model output=out.h5ad
  scperformer predict run1.h5ad run2.h5ad model_path=my_model min_confidence=0.5
  scperformer predict runs/*.h5ad output_dir=annotated keep_going=true    # go on if some files are refused
  scperformer predict runs/*.h5ad output_dir=annotated resume=true        # go on after an interruption
  scperformer predict sample.h5ad clusters=leiden deny_labels=[DC,Platelet]   # also a label of each cluster
  scperformer predict runs/*.h5ad output='calls/{sample}.csv'             # tables
  scperformer predict sample.h5ad markers=markers.tsv   # marker genes of clusters, for other means of labelling
  scperformer predict panel.h5ad model_path=my_model adapt=false   # the model as it is, whatever the file lacks"""


@dataclass(kw_only=True)
class PredictConfig(AnnotationOptions):
    """Annotate the cells of one or more files."""

    # .h5ad, .zarr, .csv or .tsv (both also .gz); with several files {sample} stands for the name of each, as
    # in calls/{sample}.csv; null: SAMPLE.annotated.h5ad beside each file
    output: str | None = None
    output_dir: str | None = None  # a folder for all outputs, SAMPLE.annotated.h5ad
    # a table with a row for each file: column path; sample, its name in outputs; other columns, such as condition, are
    # added to obs
    sample_sheet: str | None = None
    # continue an interrupted run; finished files stay as they are
    resume: bool = False
    # true: go on when a file is refused, with the reason in SAMPLE.failed.json and exit code 2; ok: the same with exit
    # code 0
    keep_going: str = choice("false", "true", "ok")

    def __post_init__(self) -> None:
        self.keep_going = self.keep_going.lower()  # Hydra turns the word true into True
        super().__post_init__()
        num = len(self.inputs)
        expected = "a name with {sample} for several files, or output_dir=FOLDER, which takes all of them"
        require(num == 1 or "{sample}" in (self.output or "{sample}"), "output", self.output, expected)
        expected = "a name with {sample} for several files"
        require(num == 1 or "{sample}" in (self.markers or "{sample}"), "markers", self.markers, expected)
        has_one = self.output_dir is None or self.output is None
        require(has_one, "output_dir", self.output_dir, "no output beside it")


def run(cfg: PredictConfig, model: "Model | None" = None) -> list[Path]:
    """Annotate files: write a copy of each with the annotation added, or a table; return the paths of these.

    Inputs that are annotations of other inputs are left out. Nothing is written for a file that is refused. With
    `cfg.keep_going` its error is logged and written into `<sample>.failed.json` in place of its output.
    """
    from scperformer.annotation import outputs
    from scperformer.annotation.load import load_model
    from scperformer.annotation.predict import annotate_file
    from scperformer.annotation.write import SEPARATORS
    from scperformer.base.progress import progress
    from scperformer.io.read import default_output, require_readable
    from scperformer.io.sheet import described_samples
    from scperformer.model.folder import names_model
    from scperformer.model.inference import choose_device

    files = outputs.outputs_of(cfg.inputs, cfg.output, cfg.output_dir, cfg.sample_sheet)
    tables = {} if cfg.markers is None else dict(outputs.outputs_of(cfg.inputs, cfg.markers, None, cfg.sample_sheet))
    sheet = {} if cfg.sample_sheet is None else described_samples(cfg.sample_sheet, [path for path, _ in files])
    failures = outputs.Failures(cfg.keep_going == "ok" or (cfg.keep_going == "true" and len(files) > 1))
    waiting = []
    for path, output in files:  # all are checked before the first is annotated
        with failures.of_file(path, output):
            require_readable(path)
            outputs.require_writable(output, cfg.overwrite or cfg.resume)
            if path in tables:
                may_stay = cfg.resume and output.exists()  # `is_finished` refuses an output of another run
                outputs.require_writable(tables[path], cfg.overwrite or may_stay, list(SEPARATORS), "markers")
                require(tables[path] != output, "markers", tables[path], "another file than the output")
            waiting.append((path, output))
    if model is None and names_model(cfg.model_path, cfg.tissue):
        model = load_model(cfg.model_path)
    choose_device(cfg.device, cfg.precision)  # a missing GPU is an error of the run, not of each file
    if cfg.resume:
        digest = outputs.model_hash(model)
        finished = [outputs.is_finished(*pair, digest, cfg, sheet.get(pair[0], {})) for pair in waiting]
        waiting = [pair for pair, is_done in zip(waiting, finished, strict=True) if not is_done]
    if num_finished := len(files) - len(waiting) - len(failures.errors):
        log.info("%d of %d files are finished and stay as they are", num_finished, len(files))

    path_of_content: dict[str, str] = {}  # by the SHA-256 of an input
    num_annotated = num_cells = num_unknown = 0
    with progress("annotating", total=len(waiting), unit="files") as shown:
        for path, output in waiting:
            shown.set_description_str(f"annotating {default_output(path, '').name}", refresh=False)
            with failures.of_file(path, output):
                annotation = annotate_file(path, output, model, cfg, sheet.get(path, {}), tables.get(path))
                log.info("written: %s", output)
                outputs.failed_file(output).unlink(missing_ok=True)  # an earlier run may have left it
                num_annotated += 1
                num_cells += len(annotation.obs)
                num_unknown += annotation.record.num_unknown
                if (same := path_of_content.setdefault(annotation.record.input.sha256, path)) != path:
                    log.warning("%s has the same content as %s: a report of both counts its cells twice", path, same)
            shown.update()
    if num_annotated > 1:
        text = f"{num_annotated} files annotated: {num_cells:,} cells, {in_percent(num_unknown / num_cells)} unknown"
        if cfg.output_dir is not None:
            text += f"; next: scperformer report {shlex.quote(cfg.output_dir)}/*.annotated.h5ad"
        log.info("%s", text)
    if failures.errors and cfg.keep_going != "ok":
        found = f"{len(failures.errors)} of {len(files)} files that cannot be annotated: {', '.join(failures.errors)}"
        remedy = f"see the error of each of them above, and in {files[0][1].parent}/*{FAILED_SUFFIX}"
        raise InputError("files-failed", found, "files that can be annotated", remedy)
    return [output for _, output in files]
