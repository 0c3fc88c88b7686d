"""Every option of every step, with its type, default and range: one dataclass per step; groups.py has the groups.

The comments at the options are the text of docs/configuration.md (`python docs/make_configuration.py` writes it).
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from scperformer.config.checks import (
    ABOVE_ZERO,
    NAME,
    ONE_OR_MORE,
    SEED,
    SHARE,
    Options,
    one_of,
    option,
    require,
)
from scperformer.config.groups import (
    AUTO,
    PRECISION,
    DataConfig,
    HeadConfig,
    LoggerConfig,
    MaskingConfig,
    ModelConfig,
    OptimConfig,
    TokensConfig,
    TrainerConfig,
)
from scperformer.errors import InputError

SOURCE = (lambda source: source in ("auto", "X", "raw") or source.startswith("layers/"), "auto, X, raw or layers/NAME")


@dataclass(kw_only=True)
class _FileOptions(Options):
    """Options of the steps that take files."""

    step: ClassVar[str]  # the first words of the command, for messages
    takes_one: ClassVar[bool] = False

    inputs: list[str] = field(default_factory=list)  # the files, given as plain words of the command
    overwrite: bool = False  # replace an output of this step that exists

    def __post_init__(self) -> None:
        num = len(self.inputs)
        if num == 0 or (self.takes_one and num > 1):
            expected = "exactly one file" if self.takes_one else "at least one file"
            remedy = f"name it, as in 'scperformer {self.step} sample.h5ad'"
            raise InputError(f"{num} input files" if num else "no input file", expected, remedy)
        super().__post_init__()


@dataclass(kw_only=True)
class ExpressionOptions(_FileOptions):
    """Options that replace the detection of a file's content."""

    # of tables of text: cells_by_genes or genes_by_cells; see docs/inputs.md#files
    orientation: str = option("auto", one_of("auto", "cells_by_genes", "genes_by_cells"))
    source: str = option("auto", SOURCE)  # place of the expression: X, raw or layers/NAME
    # kind of the values: counts, linear (TPM, corrected counts) or log1p
    input_kind: str = option("auto", one_of("auto", "counts", "linear", "log1p"))
    input_total: float | None = option(None, ABOVE_ZERO)  # total of a cell before the logarithm, such as 10000
    input_base: str = option("auto", one_of("auto", "e", "2", "10"))  # base of the logarithm: e, 2 or 10
    # human or mouse; genes of the other species than the model's are matched by orthologs; see docs/inputs.md#genes
    species: str = option("auto", one_of("auto", "human", "mouse"))


@dataclass(kw_only=True)
class _ModelOptions(ExpressionOptions):
    """Options of the steps that apply a model to cells."""

    # a model folder, or the name of an imported model; null: $SCPERFORMER_MODEL, else the packaged model
    model_path: str | None = None
    # least share of the model's informative expression that the genes of the file must carry; see docs/inputs.md#genes
    min_overlap: float = option(0.2, SHARE)


@dataclass(kw_only=True)
class CheckConfig(_ModelOptions):
    """Describe files, and check whether a model can annotate them."""

    step = "check"
    label_key: str | None = None  # check instead whether `train` would accept these labels
    # look for likely doublets: auto (in up to 3,000 cells), true (up to 20,000) or false
    doublets: str = option("auto", one_of("auto", "true", "false"))
    json: bool = False  # print the findings as JSON and nothing else; `--json` is the same
    output: str | None = None  # a file with the same JSON

    def __post_init__(self) -> None:
        self.doublets = self.doublets.lower()  # Hydra turns the word true into True
        super().__post_init__()


@dataclass(kw_only=True)
class PreprocessConfig(ExpressionOptions):
    """Filter, normalise and log-transform a file."""

    step = "preprocess"
    takes_one = True
    data: DataConfig = field(default_factory=DataConfig)
    model_path: str | None = None  # align the genes to those of this model
    output: str | None = None  # null: INPUT.prepared.h5ad beside the input


@dataclass(kw_only=True)
class NetworkConfig(ExpressionOptions):
    """Options of the steps that train a network: where they write, the network, and how it is trained."""

    # the model folder; null: INPUT.model (`train`) or INPUT.encoder (`pretrain`) beside the first input
    output: str | None = None
    resume: bool = False  # continue an interrupted run
    # seed of every random choice: split, weights, projections, order, masked values, dropout
    seed: int = option(0, SEED)
    # a model folder (of `pretrain` or `train`) whose encoder is the start; see docs/pretraining.md
    init: str | None = None
    data: DataConfig = field(default_factory=DataConfig)
    tokens: TokensConfig = field(default_factory=TokensConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    attention: dict[str, Any] = field(default_factory=lambda: {"name": "favor"})  # with the options of the mechanism
    head: HeadConfig = field(default_factory=HeadConfig)  # not used by `pretrain`; presets of the model may choose one
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        without_vectors = self.model.positions == "gene2vec" and self.model.gene2vec_path is None
        if self.model.deep and without_vectors and self.init is None:
            expected = "a file of gene vectors for model.positions=gene2vec"
            raise InputError("no model.gene2vec_path", expected, "name the file, or choose model.positions=gene")


@dataclass(kw_only=True)
class TrainConfig(NetworkConfig):
    """Train a model on a labelled reference."""

    step = "train"
    label_key: str  # obs column with the labels
    # only estimate the time and memory of the training; `--estimate` is the same
    estimate: bool = False
    # part of the encoder of `init` that is trained further: full, last_layer (and the final norm) or head (none of it)
    init_mode: str = option("full", one_of("full", "last_layer", "head"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.init is None:
            require(self.init_mode == "full", "init_mode", self.init_mode, "init=FOLDER beside it")


@dataclass(kw_only=True)
class PretrainConfig(NetworkConfig):
    """Train an encoder on unlabelled cells to predict masked expression."""

    step = "pretrain"
    # a text file with the genes of the encoder, one id in each line; null: the genes that at least `data.min_cells`
    # cells of the files express
    genes_path: str | None = None
    masking: MaskingConfig = field(default_factory=MaskingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.model.deep, "model.deep", self.model.deep, "true with pretrain, which trains the encoder")
        both = self.init is not None and self.genes_path is not None
        require(not both, "genes_path", self.genes_path, "no genes_path beside init, which has its genes")
        # Only `train` measures the memory of its steps.
        require(self.trainer.batch_size != AUTO, "trainer.batch_size", AUTO, "a whole number above 0 with pretrain")


@dataclass(kw_only=True)
class PredictConfig(_ModelOptions):
    """Annotate the cells of one or more files."""

    step = "predict"
    output: str | None = None  # a name in .h5ad, .zarr, .csv, .tsv (both also .gz) or .parquet; null: beside each input
    outputs: list[str] = field(default_factory=list)  # with several files: a name for each of them, in their order
    # without `output`: h5ad, zarr, csv, tsv or parquet, as INPUT.annotated.FORMAT
    output_format: str = option("h5ad", one_of("h5ad", "zarr", "csv", "tsv", "parquet"))
    resume: bool = False  # continue an interrupted run, and keep its finished parts
    keep_going: bool = False  # annotate the other files when one is refused; the exit code is 2 all the same
    error_files: bool = False  # with `keep_going`: write why a file is refused into OUTPUT.error, and exit with 0
    # `K/N`, as in `2/8`: call only the second of eight shares of the cells; the output is a folder for `shares`
    share: str | None = None
    shares: list[str] = field(default_factory=list)  # all folders that `share` has made of the file, to join
    key_added: str = option("scperformer", NAME)  # prefix of everything that is written
    batch_size: int = option(64, ONE_OR_MORE)  # cells per batch on a GPU; on a CPU the length of the cells decides
    # CPU threads of torch; each works on a batch of its own, so more threads need more memory
    threads: int = option(1, ONE_OR_MORE)
    device: str = option("auto", one_of("auto", "cpu", "cuda"))  # auto, cpu or cuda
    # 32-true, or bf16-mixed on a GPU or a CPU that computes in bfloat16
    precision: str = option("32-true", PRECISION)
    # cells with a lower confidence are flagged as unknown
    min_confidence: float = option(0.0, (lambda value: 0 <= value <= 1, "a probability from 0 to 1"))

    def __post_init__(self) -> None:
        super().__post_init__()
        num = len(self.inputs)
        one = "no output option with several files (outputs=[...] names one for each)"
        require(num == 1 or self.output is None, "output", self.output, one)
        if self.outputs:
            require(self.output is None, "output", self.output, "no output beside outputs")
            require(len(self.outputs) == num, "outputs", self.outputs, f"{num} outputs, one per input file")
        require(self.keep_going or not self.error_files, "error_files", "true", "keep_going=true beside it")
        if self.share is not None:
            number, slash, count = self.share.partition("/")
            known = bool(slash) and all(part.isascii() and part.isdigit() for part in (number, count))
            require(known and 1 <= int(number) <= int(count), "share", self.share, "K/N with K from 1 to N, as in 2/8")
            require(not self.shares, "shares", self.shares, "no shares beside share, which makes one of them")
        require(num == 1 or not self.shares, "shares", self.shares, "one input file, which they were made of")
        require("/" not in self.key_added, "key_added", repr(self.key_added), "a name without '/'")


@dataclass(kw_only=True)
class EvaluateConfig(_FileOptions):
    """Compare annotations with the true labels, beside logistic regression."""

    step = "evaluate"
    truth_key: str  # obs column, or column of `truth_path`, with the true labels
    truth_path: list[str] | None = None  # CSV/TSV tables (first column: cell) when the true labels are not in the files
    key_added: str = "scperformer"  # prefix of the annotation to read
    output: str | None = None  # a folder; null: FIRST_INPUT.evaluation beside it

    def __post_init__(self) -> None:
        super().__post_init__()
        num = len(self.inputs)
        fit = self.truth_path is None or len(self.truth_path) == num
        require(fit, "truth_path", self.truth_path, f"{num} tables, one per input file")


@dataclass(kw_only=True)
class ReportConfig(_FileOptions):
    """Make one self-contained HTML page about annotated files."""

    step = "report"
    evaluation: str | None = None  # the folder that `evaluate` has written
    key_added: str = "scperformer"  # prefix of the annotation to read
    output: str | None = None  # null: report.html beside the first input
    title: str = "Cell-type annotation"  # of the page
    max_cells: int = option(20000, (lambda num: num >= 10, "10 or more"))  # cells in the UMAP; more are subsampled
    seed: int = option(0, SEED)  # of the UMAP and of the choice of its cells


ANALYSES = ("spectrum", "approximation")


@dataclass(kw_only=True)
class AnalyzeConfig(_ModelOptions):
    """Analyse the attention of a trained model on real cells."""

    step = "analyze spectrum"
    takes_one = True
    analysis: str | None = None  # the first plain word: spectrum or approximation
    output: str | None = None  # a folder; null: INPUT.spectrum or INPUT.approximation beside the input
    num_cells: int = option(8, ONE_OR_MORE)  # number of cells, a random sample of those that express any gene
    # tokens used of each cell; a random sample of them if a cell has more
    max_tokens: int = option(2048, (lambda num: num >= 2, "2 or more"))
    # approximation: values of the option that is the size of a mechanism
    sizes: list[int] = option(
        [16, 32, 64, 128, 256, 512], (lambda sizes: bool(sizes) and min(sizes) >= 1, "whole numbers of 1 or more")
    )
    num_draws: int = option(3, ONE_OR_MORE)  # approximation: how often the random parts of each mechanism are drawn
    seed: int = option(0, SEED)  # of the cells, tokens and draws
    threads: int = option(1, ONE_OR_MORE)  # CPU threads of torch

    def __post_init__(self) -> None:
        if self.analysis not in ANALYSES:
            found = "no analysis" if self.analysis is None else f"analysis '{self.analysis}'"
            raise InputError(found, " or ".join(ANALYSES), "name it first: 'scperformer analyze spectrum sample.h5ad'")
        super().__post_init__()


@dataclass(kw_only=True)
class ModelsConfig(_FileOptions):
    """Import a model from somewhere else, or list the models that are there."""

    step = "models import"
    takes_one = True
    action: str | None = None  # the first plain word: import or list
    # the folder of models; null: $SCPERFORMER_MODELS, else `scperformer/models` in the user's data folder
    output: str | None = None

    def __post_init__(self) -> None:
        if self.action not in ("import", "list"):
            found = "no action" if self.action is None else f"action '{self.action}'"
            raise InputError(found, "import or list", "name it first: 'scperformer models import FOLDER'")
        if self.action == "import":
            super().__post_init__()
        elif self.inputs:
            raise InputError(f"'{self.inputs[0]}' after 'models list'", "no file", "leave it out")


STEPS: dict[str, type] = {
    "check": CheckConfig,
    "preprocess": PreprocessConfig,
    "pretrain": PretrainConfig,
    "train": TrainConfig,
    "predict": PredictConfig,
    "evaluate": EvaluateConfig,
    "report": ReportConfig,
    "analyze": AnalyzeConfig,
    "models": ModelsConfig,
}
