"""The options of each step by its name; those of `predict`, `train` and `pretrain` are in files of their own."""

from dataclasses import dataclass, field, fields

from scperformer.base.errors import InputError
from scperformer.config.annotation import PredictConfig
from scperformer.config.options import (
    LINE,
    ONE_OR_MORE,
    SEED,
    SHARE,
    THREADS,
    ExpressionOptions,
    FileOptions,
    ModelOptions,
    Options,
    TissueOptions,
    choice,
    fixed,
    is_option,
    option,
    require,
    span,
)
from scperformer.config.training import DataOptions, Mechanism, PretrainOptions, TrainOptions

KEY_HELP = "prefix of the annotation, as `key_added` of predict"
SAMPLE_SEED_HELP = "seed of the random sample"


@dataclass(kw_only=True)
class AdaptConfig(ModelOptions):
    """Adapt a model to the genes and the depth of a file, or to a list of genes."""

    takes_one = True
    output: str | None = option(None, "if null, INPUT.adapted beside the input")

    @property
    def adapts(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.model_path is not None,
            "model_path",
            self.model_path,
            "the model, as the first word",
        )


CONTRACT = "contract"  # the analysis that needs no cells


@dataclass(kw_only=True)
class AnalyzeConfig(ModelOptions):
    """Analyse the attention of a trained model on real cells, or check that a mechanism keeps its contract."""

    takes_one = True
    model_path: str | None = option(
        None, "if null, $SCPERFORMER_MODEL, else the packaged model pbmc3k"
    )
    analysis: str = fixed(
        choice("spectrum", "approximation", CONTRACT, help="the first plain word")
    )
    # the mechanism of `contract`, with its options
    attention: Mechanism = field(default_factory=dict)
    output: str | None = option(
        None, "a folder; if null, INPUT.spectrum or INPUT.approximation beside the input"
    )
    cells: int = option(
        8, "number of cells, a random sample of those that express any gene", ONE_OR_MORE
    )
    max_tokens: int = option(
        2048, "maximum number of tokens of a cell", (lambda num: num >= 2, "2 or more")
    )
    seed: int = option(0, SAMPLE_SEED_HELP, SEED)
    threads: int = option(1, "CPU threads of torch", THREADS)

    def __post_init__(self) -> None:
        if self.analysis != CONTRACT:
            super().__post_init__()
        else:
            # without the checks of FileOptions: the contract needs no cells
            Options.__post_init__(self)
        if bool(self.attention) != (self.analysis == CONTRACT) or (self.attention and self.inputs):
            found = f"analyze {self.analysis} {' '.join(self.inputs)}".rstrip()
            found += (
                f" attention={self.attention['name']}"
                if self.attention
                else " without attention=NAME"
            )
            expected = "'analyze contract' with attention=NAME and no file, or another analysis with a file alone"
            raise InputError(
                "analysis-arguments", found, expected, "'scperformer analyze --help' shows examples"
            )


@dataclass(kw_only=True)
class CheckConfig(TissueOptions):
    """Describe files, and check whether a model can annotate them."""

    label_key: str | None = option(
        None, "before training: check whether `train` would accept these labels"
    )
    output: str | None = option(None, "a file for the findings as JSON, for programs")


@dataclass(kw_only=True)
class CurateConfig(FileOptions):
    """Name the clusters of an annotated file."""

    takes_one = True
    names: str = option(
        help="the table of `markers_output` of predict with your names of clusters (.tsv, .csv or .xlsx); a cluster "
        "without a name keeps its calls; doublet, low quality and unknown are no types"
    )
    by: str | None = option(
        None, "who gave the names, for the record; if null, the name of the user", LINE
    )
    key_added: str = option("scperformer", KEY_HELP)
    output: str | None = option(
        None,
        ".h5ad, or a table: .csv, .tsv (both also .gz), .xlsx or .rds; if null, SAMPLE.curated.h5ad",
    )


@dataclass(kw_only=True)
class EvaluateConfig(FileOptions):
    """Compare annotations with the true labels, beside logistic regression."""

    truth_key: str = option(help="obs column, or column of `truth_path`, with the true labels")
    truth_path: list[str] | None = option(
        None, "tables of the true labels by cell, one for each file; if null, the labels are in obs"
    )
    key_added: str = option("scperformer", KEY_HELP)
    output: str | None = option(None, "a folder; if null, FIRST_INPUT.evaluation beside it")

    def __post_init__(self) -> None:
        super().__post_init__()
        has_all = self.truth_path is None or len(self.truth_path) == len(self.inputs)
        require(
            has_all, "truth_path", self.truth_path, f"{len(self.inputs)} tables, one per input file"
        )


@dataclass(kw_only=True)
class ExplainConfig(ExpressionOptions):
    """Find the genes on which the calls of an annotated file depend."""

    takes_one = True
    model_path: str | None = option(
        None, "if null, the model that the annotation records, else as for `predict`"
    )
    key_added: str = option("scperformer", KEY_HELP)
    output: str | None = option(None, "a folder; if null, INPUT.explanation beside the input")
    label: str | None = option(
        None, "explain the logit of this label in all cells; if null, of the label of each cell"
    )
    cells: int | str = option(
        200, "cells of each label, a random sample; fewer for slow encoders, or all"
    )
    seed: int = option(0, SAMPLE_SEED_HELP, SEED)

    def __post_init__(self) -> None:
        super().__post_init__()
        is_number = (
            isinstance(self.cells, int) and not isinstance(self.cells, bool) and self.cells >= 1
        )
        require(
            is_number or self.cells == "all", "cells", self.cells, "a whole number above 0, or all"
        )

    @property
    def num_cells(self) -> int | None:
        """The largest number of cells of each label; None: all."""
        return None if self.cells == "all" else int(self.cells)


@dataclass(kw_only=True)
class ImportOptions(FileOptions):
    """Options of `models import` that the file does not contain."""

    name: str | None = option(
        None, "import: the name of the model; if null, its own or that of the file", LINE
    )
    genes: str | None = option(
        None,
        "import: a text file with the genes of a scBERT checkpoint, one in each line, or an h5ad file",
    )
    labels: str | None = option(None, "import: a file with the labels of a scBERT checkpoint")
    reference: str | None = option(
        None, "import: labelled cells, for confidences, novelty, expected accuracy and refits"
    )
    label_key: str | None = option(None, "import: the obs column of `reference` with the labels")
    batch: str | None = option(
        None, "import: the batch of all cells, for a scANVI model that encodes batches", LINE
    )
    species: str | None = option(
        None, "import: species of the model's genes; if null, it is inferred", LINE
    )
    tissue: str | None = option(None, "import: tissue of the model's cells", LINE)
    licence: str | None = option(None, "import: licence of the model", LINE)
    output: str | None = option(
        None, "if null, $SCPERFORMER_MODELS, else `scperformer/models` in the user's data folder"
    )


@dataclass(kw_only=True)
class ModelsConfig(ImportOptions):
    """List models and tissues, describe one, or import a model."""

    action: str = fixed(choice("list", "show", "import", help="the first plain word"))

    def __post_init__(self) -> None:
        # without the checks of FileOptions: the number of inputs depends on the action
        Options.__post_init__(self)
        wanted = {"list": "none", "show": "a name", "import": "a model folder, archive or file"}[
            self.action
        ]
        several = len(self.inputs) > 1 and (
            self.action == "show" or (self.action == "import" and self.name is None)
        )
        if len(self.inputs) != (self.action != "list") and not several:
            found = f"{len(self.inputs)} words after 'models {self.action}'"
            raise InputError(
                "models-arguments", found, wanted, "'scperformer models --help' shows examples"
            )
        has_both = (self.reference is None) == (self.label_key is None)
        require(
            has_both, "label_key", self.label_key, "reference=FILE and label_key=COLUMN together"
        )


@dataclass(kw_only=True)
class PreprocessConfig(ModelOptions, DataOptions):
    """Filter, normalise and log-transform a file."""

    takes_one = True
    model_path: str | None = option(None, "align the genes to this model")
    output: str | None = option(None, "if null, INPUT.prepared.h5ad beside the input")


@dataclass(kw_only=True)
class ReportConfig(FileOptions):
    """Make one self-contained HTML page about annotated files."""

    evaluation: str | None = option(None, "the folder that `evaluate` has written")
    key_added: str = option("scperformer", KEY_HELP)
    output: str | None = option(
        None, "a page or, if it ends in .xlsx, its tables; if null, FIRST_INPUT.report.html"
    )
    cells: int = option(
        12000, "cells on the maps; fewer for speed", (lambda num: num >= 10, "10 or more")
    )
    sample_key: str | None = option(
        None, "obs column with the sample of each cell; if null, each file is a sample"
    )
    group_key: str | None = option(
        None,
        "obs column by which samples are grouped and coloured, such as condition; if null, the first column of "
        "the sample sheet that several samples share",
    )
    genes: list[str] = option(
        [], "genes by which the map can be coloured, too, such as genes=CD8A,FOXP3"
    )
    seed: int = option(0, "seed of the map", SEED)


@dataclass(kw_only=True)
class WorkflowConfig(Options):
    """Run the workflow: a reference and many samples in, annotated samples and a report out."""

    prefix = ""

    # If null, the value of `configfile`, or of WORKFLOW_DEFAULTS.
    sample_sheet: str | None = option(
        None, "a table of the samples, as the first word; see docs/workflow.md#your-own-data"
    )
    reference: list[str] | None = option(
        None,
        "labelled files to train on; several are studies, see docs/training.md#several-studies",
    )
    label_key: str | None = option(
        None, "obs column of the reference with the labels; if null, cell_type"
    )
    model_path: str | None = option(
        None, "a trained model or its name instead of a reference; if both are null, as for predict"
    )
    tissue: str | None = option(
        None, "tissue of all samples, in place of a reference or model, as for predict"
    )
    min_confidence: float | None = option(None, "as for predict", SHARE)
    output_dir: str | None = option(None, "folder for everything that is written; if null, results")
    predict_jobs: int | None = option(
        None, "maximum number of jobs for small samples; if null, 8", ONE_OR_MORE
    )
    gpu: int | None = option(
        None,
        "GPUs of the training job; with 1 or more, each prediction asks for one; if null, 0",
        span(0, 16),
    )
    container: str | None = option(None, "an image for Apptainer; see docs/workflow.md#containers")
    # the YAML file of --config, with these keys and `overrides`
    configfile: str | None = fixed(None)
    snakemake: list[str] = fixed([])  # the words after --


@dataclass(kw_only=True)
class AppConfig(Options):
    """Open a page on this computer to drop files on."""

    prefix = ""
    port: int = option(0, "port of the page; 0: a free one", span(0, 65535))
    browser: bool = option(True, "open the page in the browser")


# Keys of a YAML file for the workflow, beside `overrides`.
WORKFLOW_KEYS = tuple(entry.name for entry in fields(WorkflowConfig) if is_option(entry))
# What the workflow does where neither the command nor a file says otherwise.
WORKFLOW_DEFAULTS = {"label_key": "cell_type", "output_dir": "results", "predict_jobs": 8, "gpu": 0}
# the steps that `overrides` may name
WORKFLOW_STEPS = ("preprocess", "train", "predict", "evaluate", "report")

_KINDS: tuple[type[Options], ...] = (
    *(
        CheckConfig,
        PreprocessConfig,
        PretrainOptions,
        TrainOptions,
        PredictConfig,
        CurateConfig,
        AdaptConfig,
    ),
    *(
        EvaluateConfig,
        ReportConfig,
        ExplainConfig,
        AnalyzeConfig,
        ModelsConfig,
        WorkflowConfig,
        AppConfig,
    ),
)
SCHEMAS = {kind.word(): kind for kind in _KINDS}
# In these steps the first plain word sets an option; in all others it is an input file.
FIRST_WORDS = {
    "adapt": "model_path",
    "analyze": "analysis",
    "models": "action",
    "workflow": "sample_sheet",
}

# The version of what the steps make of the same files and options. It is raised when a default or a method changes
# results that users have: the workflow then repeats its steps. A new option whose default changes nothing leaves it.
RESULT_VERSION = 1
