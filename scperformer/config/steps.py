"""Every option of every step, with its type, default and range: one dataclass per command; groups.py has the parts.

The YAML files in conf/ fill these; compose.py turns one into the other. Nothing here knows Hydra.
"""

from dataclasses import dataclass, field
from typing import Any

from scperformer.config.checks import require, require_choice
from scperformer.config.groups import (
    AUTO,
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

ORIENTATIONS = ("auto", "cells_by_genes", "genes_by_cells")
INPUT_KINDS = ("auto", "counts", "linear", "log1p")
INPUT_BASES = ("auto", "e", "2", "10")
INIT_MODES = ("full", "last_layer", "head")
SPECIES = ("auto", "human", "mouse")
# Measured: docs/inputs.md#genes says how accuracy falls with this share.
MIN_OVERLAP = 0.2
ANALYSES = ("spectrum", "approximation")


@dataclass(kw_only=True)
class _InputOptions:
    """What every step that reads expression can be told instead of detecting it."""

    inputs: list[str] = field(default_factory=list)  # the positional files
    orientation: str = "auto"  # of tables of text: cells_by_genes or genes_by_cells
    source: str = "auto"  # X, raw or layers/NAME
    input_kind: str = "auto"  # counts, linear (TPM, corrected counts) or log1p
    input_total: float | None = None  # what log1p data were normalised to, when it cannot be seen
    input_base: str = "auto"  # of the logarithm, when it cannot be seen: e, 2 or 10
    species: str = "auto"  # of the file: auto, human or mouse; told and other than the model's, orthologs are used

    def __post_init__(self) -> None:
        known = self.source in ("auto", "X", "raw") or self.source.startswith("layers/")
        require(known, "source", self.source, "auto, X, raw or layers/NAME")
        require_choice("orientation", self.orientation, ORIENTATIONS)
        require_choice("input_kind", self.input_kind, INPUT_KINDS)
        require_choice("input_base", self.input_base, INPUT_BASES)
        require_choice("species", self.species, SPECIES)
        if self.input_total is not None:
            require(self.input_total > 0, "input_total", self.input_total, "a number above 0")


def _check_inputs(inputs: list[str], command: str, most: int | None = None) -> None:
    expected = "at least one file" if most is None else "exactly one file"
    ok = len(inputs) >= 1 and (most is None or len(inputs) <= most)
    if not ok:
        found = f"{len(inputs)} input files" if inputs else "no input file"
        raise InputError(found, expected, f"name it, as in 'scperformer {command} sample.h5ad'")


@dataclass(kw_only=True)
class CheckConfig(_InputOptions):
    """Say what files hold and whether a model can annotate them."""

    model_path: str | None = None  # None: $SCPERFORMER_MODEL, else the packaged model
    label_key: str | None = None  # given: check that the file can serve as a reference instead
    min_overlap: float = MIN_OVERLAP  # share of the model's informative expression that the file's genes must carry
    doublets: str = "auto"  # look for likely doublets: auto (few cells only), true or false
    json: bool = False  # print the findings as JSON and nothing else; also --json
    output: str | None = None  # a JSON file with the same findings
    overwrite: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_inputs(self.inputs, "check")
        self.doublets = self.doublets.lower()  # of a word true Hydra makes True
        require_choice("doublets", self.doublets, ("auto", "true", "false"))
        require(0 <= self.min_overlap <= 1, "min_overlap", self.min_overlap, "a share from 0 to 1")


@dataclass(kw_only=True)
class PreprocessConfig(_InputOptions):
    """Filter, normalise and log-transform a file."""

    data: DataConfig = field(default_factory=DataConfig)
    model_path: str | None = None  # given: align the genes to this model's
    output: str | None = None  # None: <input>.prepared.h5ad beside the input
    overwrite: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_inputs(self.inputs, "preprocess", most=1)


@dataclass(kw_only=True)
class NetworkConfig(_InputOptions):
    """What the steps that train a network have in common: where they write, the network, and how it is trained."""

    output: str | None = None  # the model folder; None: <first input>.model (train) or .encoder (pretrain) beside it
    overwrite: bool = False
    resume: bool = False  # continue a run that was cut off
    seed: int = 0
    init: str | None = None  # a model folder whose encoder is the start: of `pretrain`, or of an earlier `train`
    data: DataConfig = field(default_factory=DataConfig)
    tokens: TokensConfig = field(default_factory=TokensConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    attention: dict[str, Any] = field(default_factory=lambda: {"name": "favor"})  # and the options of that mechanism
    head: HeadConfig = field(default_factory=HeadConfig)  # `pretrain` has none: but presets of the model may choose one
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.seed < 2**32, "seed", self.seed, "0 to 2**32 - 1")
        without_vectors = self.model.positions == "gene2vec" and self.model.gene2vec_path is None
        if self.model.deep and without_vectors and self.init is None:
            expected = "a file of gene vectors for model.positions=gene2vec"
            raise InputError("no model.gene2vec_path", expected, "name the file, or choose model.positions=gene")


@dataclass(kw_only=True)
class TrainConfig(NetworkConfig):
    """Train a model on a labelled reference."""

    label_key: str
    estimate: bool = False  # only say how long it would take and how much memory; also --estimate
    init_mode: str = "full"  # what of `init` learns on: full, last_layer (and the final norm) or head (nothing of it)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_inputs(self.inputs, "train")
        require_choice("init_mode", self.init_mode, INIT_MODES)
        if self.init is None:
            require(self.init_mode == "full", "init_mode", self.init_mode, "init=FOLDER beside it")


@dataclass(kw_only=True)
class PretrainConfig(NetworkConfig):
    """Train an encoder on unlabelled cells to predict hidden expression."""

    genes_path: str | None = None  # a text file with the genes of the encoder, one id in each line
    masking: MaskingConfig = field(default_factory=MaskingConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_inputs(self.inputs, "pretrain")
        require(self.model.deep, "model.deep", self.model.deep, "true with pretrain, which trains the encoder")
        both = self.init is not None and self.genes_path is not None
        require(not both, "genes_path", self.genes_path, "no genes_path beside init, which has its genes")
        # Only `train` counts the bytes of its steps.
        require(self.trainer.batch_size != AUTO, "trainer.batch_size", AUTO, "a whole number above 0 with pretrain")


@dataclass(kw_only=True)
class PredictConfig(_InputOptions):
    """Annotate the cells of one or more files."""

    model_path: str | None = None  # None: $SCPERFORMER_MODEL, else the packaged model
    output: str | None = None  # .h5ad, .zarr, or a table: .csv, .tsv (.gz), .parquet; None: beside each input
    outputs: list[str] = field(default_factory=list)  # several files: the output of each, in the order of the files
    output_format: str = "h5ad"  # without output: h5ad, zarr, csv, tsv or parquet, as <input>.annotated.FORMAT
    overwrite: bool = False
    resume: bool = False  # keep the parts that a run which was cut off had finished
    keep_going: bool = False  # annotate the other files when one is refused; the exit code is 2 all the same
    error_files: bool = False  # with keep_going: write why a file is refused into OUTPUT.error, and exit with 0
    share: str | None = None  # K/N: call only the Kth of N shares of the cells; the output is a folder for `shares`
    shares: list[str] = field(default_factory=list)  # all the folders that `share` made of the file: nothing is called
    key_added: str = "scperformer"  # prefix of everything written
    batch_size: int = 64  # cells, on a GPU; on a CPU the length of the cells decides
    threads: int = 1
    device: str = "auto"  # auto, cpu or cuda
    precision: str = "32-true"  # 32-true, or bf16-mixed on a GPU or a CPU that computes in bfloat16
    min_overlap: float = MIN_OVERLAP  # share of the model's informative expression that the file's genes must carry
    min_confidence: float = 0.0  # cells below it are flagged as unknown

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_inputs(self.inputs, "predict")
        many = len(self.inputs) > 1 and self.output is not None
        require(
            not many, "output", self.output, "no output option with several files (outputs=[...] names one for each)"
        )
        if self.outputs:
            require(self.output is None, "output", self.output, "no output beside outputs")
            fit = len(self.outputs) == len(self.inputs)
            require(fit, "outputs", self.outputs, f"{len(self.inputs)} outputs, one per input file")
        require(self.keep_going or not self.error_files, "error_files", "true", "keep_going=true beside it")
        self._check_shares()
        require_choice("output_format", self.output_format, ("h5ad", "zarr", "csv", "tsv", "parquet"))
        require(bool(self.key_added.strip()), "key_added", repr(self.key_added), "a name")
        require("/" not in self.key_added, "key_added", repr(self.key_added), "a name without '/'")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "1 or more")
        require(self.threads >= 1, "threads", self.threads, "1 or more")
        require_choice("device", self.device, ("auto", "cpu", "cuda"))
        require_choice("precision", self.precision, ("32-true", "bf16-mixed"))
        require(0 <= self.min_overlap <= 1, "min_overlap", self.min_overlap, "a share from 0 to 1")
        require(0 <= self.min_confidence <= 1, "min_confidence", self.min_confidence, "a probability from 0 to 1")

    def _check_shares(self) -> None:
        if self.share is not None:
            number, slash, count = self.share.partition("/")
            known = bool(slash) and all(part.isascii() and part.isdigit() for part in (number, count))
            require(known and 1 <= int(number) <= int(count), "share", self.share, "K/N with K from 1 to N, as in 2/8")
            require(not self.shares, "shares", self.shares, "no shares beside share, which makes one of them")
        if self.shares:
            require(len(self.inputs) == 1, "shares", self.shares, "one input file, which they were made of")


@dataclass(kw_only=True)
class EvaluateConfig:
    """Compare annotations with the truth, beside logistic regression."""

    inputs: list[str] = field(default_factory=list)  # annotated files
    truth_key: str  # obs column, or column of truth_path, with the true labels
    truth_path: list[str] | None = None  # CSV/TSV tables (first column: cell) when the truth is not in the files
    key_added: str = "scperformer"
    output: str | None = None  # a folder; None: <first input>.evaluation beside it
    overwrite: bool = False

    def __post_init__(self) -> None:
        _check_inputs(self.inputs, "evaluate")
        if self.truth_path is not None:
            ok = len(self.truth_path) == len(self.inputs)
            require(ok, "truth_path", self.truth_path, f"{len(self.inputs)} tables, one per input file")


@dataclass(kw_only=True)
class ReportConfig:
    """One self-contained HTML page about annotated files."""

    inputs: list[str] = field(default_factory=list)  # annotated files
    evaluation: str | None = None  # the folder that evaluate wrote
    key_added: str = "scperformer"
    output: str | None = None  # None: report.html beside the first input
    overwrite: bool = False
    title: str = "Cell-type annotation"
    max_cells: int = 20000  # cells drawn in the UMAP; more are subsampled
    seed: int = 0

    def __post_init__(self) -> None:
        _check_inputs(self.inputs, "report")
        require(self.max_cells >= 10, "max_cells", self.max_cells, "10 or more")
        require(0 <= self.seed < 2**32, "seed", self.seed, "0 to 2**32 - 1")


@dataclass(kw_only=True)
class AnalyzeConfig(_InputOptions):
    """Look into the attention of a trained model on real cells."""

    analysis: str | None = None  # the first plain word: spectrum or approximation
    model_path: str | None = None  # None: $SCPERFORMER_MODEL, else the packaged model
    output: str | None = None  # a folder; None: <input>.<analysis> beside the input
    overwrite: bool = False
    min_overlap: float = MIN_OVERLAP  # share of the model's informative expression that the file's genes must carry
    num_cells: int = 8  # cells looked at, chosen by the seed
    max_tokens: int = 2048  # of a cell with more tokens, as many chosen by the seed are looked at
    sizes: list[int] = field(default_factory=lambda: [16, 32, 64, 128, 256, 512])  # approximation: of each mechanism
    num_draws: int = 3  # approximation: of each mechanism's random parts
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        if self.analysis not in ANALYSES:
            found = "no analysis" if self.analysis is None else f"analysis '{self.analysis}'"
            raise InputError(found, " or ".join(ANALYSES), "name it first: 'scperformer analyze spectrum sample.h5ad'")
        super().__post_init__()
        _check_inputs(self.inputs, f"analyze {self.analysis}", most=1)
        require(0 <= self.min_overlap <= 1, "min_overlap", self.min_overlap, "a share from 0 to 1")
        require(self.max_tokens >= 2, "max_tokens", self.max_tokens, "2 or more")
        for name in ("num_cells", "num_draws", "threads"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more")
        require(bool(self.sizes) and min(self.sizes) >= 1, "sizes", self.sizes, "whole numbers of 1 or more")
        require(0 <= self.seed < 2**32, "seed", self.seed, "0 to 2**32 - 1")


MODELS_ACTIONS = ("import", "list")


@dataclass(kw_only=True)
class ModelsConfig:
    """Import a model from somewhere else, or list the models that are there."""

    action: str | None = None  # the first plain word: import or list
    inputs: list[str] = field(default_factory=list)  # import: a model folder, or an archive of one
    output: str | None = None  # the folder of models; None: $SCPERFORMER_MODELS, else in the user's folder of data
    overwrite: bool = False  # import: replace a model of the same name

    def __post_init__(self) -> None:
        if self.action not in MODELS_ACTIONS:
            found = "no action" if self.action is None else f"action '{self.action}'"
            raise InputError(found, " or ".join(MODELS_ACTIONS), "name it first: 'scperformer models import FOLDER'")
        if self.action == "import":
            _check_inputs(self.inputs, "models import", most=1)
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
