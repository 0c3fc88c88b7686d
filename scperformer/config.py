"""Every option, with its type, default and range: one dataclass per config group and one per step.

The YAML files in conf/ fill these; compose.py turns one into the other. Nothing here knows Hydra.
"""

from dataclasses import dataclass, field
from typing import Any

from scperformer.errors import InputError
from scperformer.options import require, require_choice

INPUT_KINDS = ("auto", "counts", "linear", "log1p")
ANALYSES = ("spectrum", "approximation")


# --- groups: one per folder of conf/ -------------------------------------------------------------------------


@dataclass(kw_only=True)
class DataConfig:
    """Which cells and genes of a reference are kept, how it is normalised and split."""

    target_sum: float = 1e4  # counts per cell after normalisation
    min_genes: int = 50  # reference cells that express fewer genes are dropped
    min_cells: int = 3  # genes expressed in fewer reference cells are dropped
    val_fraction: float = 0.1  # share of the labelled cells that early stopping looks at
    rare_labels: str = "error"  # a label with fewer than min_cells_per_label cells: error or drop
    min_cells_per_label: int = 2

    def __post_init__(self) -> None:
        require(self.target_sum > 0, "data.target_sum", self.target_sum, "a number above 0")
        require(self.min_genes >= 0, "data.min_genes", self.min_genes, "0 or more")
        require(self.min_cells >= 0, "data.min_cells", self.min_cells, "0 or more")
        require(0 < self.val_fraction < 1, "data.val_fraction", self.val_fraction, "a share between 0 and 1")
        require_choice("data.rare_labels", self.rare_labels, ("error", "drop"))
        require(self.min_cells_per_label >= 2, "data.min_cells_per_label", self.min_cells_per_label, "2 or more")


@dataclass(kw_only=True)
class TokensConfig:
    """How the expression of a gene becomes a token, and which genes become tokens."""

    name: str = "continuous"  # scbert, bins or continuous
    num_bins: int = 5  # highest bin (scbert: 5)
    bins_per_log2: float = 1.0  # bins per doubling of 1 + expression (scbert: 1)
    unexpressed: str = "skip"  # full: all genes are tokens; skip: expressed ones; memory: the rest are keys and values

    def __post_init__(self) -> None:
        require_choice("tokens.name", self.name, ("scbert", "bins", "continuous"))
        require_choice("tokens.unexpressed", self.unexpressed, ("full", "skip", "memory"))
        require(1 <= self.num_bins <= 1000, "tokens.num_bins", self.num_bins, "1 to 1000")
        require(self.bins_per_log2 > 0, "tokens.bins_per_log2", self.bins_per_log2, "a number above 0")
        if self.name == "scbert":
            require(
                self.num_bins == 5,
                "tokens.num_bins",
                self.num_bins,
                "5 with tokens=scbert (else tokens=bins)",
            )
            require(self.bins_per_log2 == 1, "tokens.bins_per_log2", self.bins_per_log2, "1 with tokens=scbert")


@dataclass(kw_only=True)
class ModelConfig:
    """Size and make of the encoder, and which branches are on."""

    dim: int = 32
    depth: int = 1
    num_heads: int = 2
    head_dim: int | None = 16  # null: dim / num_heads
    feedforward_factor: int = 4
    activation: str = "gelu"  # of the feed-forward networks: gelu or relu
    norm: str = "pre"  # layer norm before attention and feed-forward, or post: after their residual sums
    positions: str = "gene"  # how a token says which gene it is: gene (learned), gene2vec, sinusoidal or none
    gene2vec_path: str | None = None  # with positions=gene2vec: a text file, each line a gene and its dim numbers
    dropout: float = 0.1
    chunk_tokens: int | None = None  # tokens at a time where the mechanism allows it: same result, less memory
    checkpointing: bool = False  # recompute activations in the backward pass instead of keeping them
    gene_dropout: float = 0.6  # share of a cell's genes that each training step hides from the encoder
    wide: bool = True  # a linear branch on normalised expression beside the encoder
    deep: bool = True  # the encoder itself; off leaves the wide branch alone

    def __post_init__(self) -> None:
        for name in ("dim", "depth", "num_heads", "feedforward_factor"):
            require(getattr(self, name) >= 1, f"model.{name}", getattr(self, name), "1 or more")
        if self.head_dim is None:
            divides = self.dim % self.num_heads == 0
            expected = f"a divisor of model.dim={self.dim}, or a number for model.head_dim"
            require(divides, "model.num_heads", self.num_heads, expected)
            self.head_dim = self.dim // self.num_heads
        require(self.head_dim >= 1, "model.head_dim", self.head_dim, "1 or more")
        require_choice("model.activation", self.activation, ("gelu", "relu"))
        require_choice("model.norm", self.norm, ("pre", "post"))
        require_choice("model.positions", self.positions, ("gene", "gene2vec", "sinusoidal", "none"))
        if self.chunk_tokens is not None:
            require(self.chunk_tokens >= 1, "model.chunk_tokens", self.chunk_tokens, "1 or more, or null")
        require(0 <= self.dropout < 1, "model.dropout", self.dropout, "0 or more and below 1")
        require(0 <= self.gene_dropout < 1, "model.gene_dropout", self.gene_dropout, "0 or more and below 1")
        require(self.wide or self.deep, "model.deep", self.deep, "model.wide or model.deep on")


@dataclass(kw_only=True)
class HeadConfig:
    """How the encoded tokens of a cell become one vector and then labels."""

    name: str = "mean"  # cls, mean or conv (scBERT's)
    hidden: list[int] = field(default_factory=list)  # widths of hidden layers before the labels
    dropout: float = 0.0

    def __post_init__(self) -> None:
        require_choice("head.name", self.name, ("cls", "mean", "conv"))
        require(all(width >= 1 for width in self.hidden), "head.hidden", self.hidden, "widths of 1 or more")
        require(0 <= self.dropout < 1, "head.dropout", self.dropout, "0 or more and below 1")


@dataclass(kw_only=True)
class OptimConfig:
    """Loss, optimiser and learning-rate schedule."""

    lr: float = 3e-3
    weight_decay: float = 0.01
    warmup_fraction: float = 0.1  # share of all steps in which the learning rate rises
    final_lr_fraction: float = 0.05  # where the cosine ends, as a share of lr
    label_smoothing: float = 0.0
    class_weights: str = "sqrt"  # none, sqrt or balanced: weight of a label in the loss
    wide_start: str = "logistic"  # the wide branch starts as logistic regression, or at zero
    wide_c: float = 0.1  # inverse penalty of that (class-balanced) logistic regression
    wide_lr_factor: float = 0.1  # a wide branch that starts fitted learns on at this share of lr; 0: stays
    deep_loss_weight: float = 1.0  # with both branches: weight of the loss of the encoder's logits alone
    gradient_clip: float = 1.0

    def __post_init__(self) -> None:
        require(self.lr > 0, "optim.lr", self.lr, "a number above 0")
        require(self.weight_decay >= 0, "optim.weight_decay", self.weight_decay, "0 or more")
        for name in ("warmup_fraction", "final_lr_fraction"):
            require(0 <= getattr(self, name) <= 1, f"optim.{name}", getattr(self, name), "0 to 1")
        require(
            0 <= self.label_smoothing < 1,
            "optim.label_smoothing",
            self.label_smoothing,
            "0 or more and below 1",
        )
        require_choice("optim.class_weights", self.class_weights, ("none", "sqrt", "balanced"))
        require_choice("optim.wide_start", self.wide_start, ("logistic", "zero"))
        require(self.wide_c > 0, "optim.wide_c", self.wide_c, "a number above 0")
        require(self.wide_lr_factor >= 0, "optim.wide_lr_factor", self.wide_lr_factor, "0 or more")
        require(self.deep_loss_weight >= 0, "optim.deep_loss_weight", self.deep_loss_weight, "0 or more")
        require(self.gradient_clip >= 0, "optim.gradient_clip", self.gradient_clip, "0 (off) or more")


@dataclass(kw_only=True)
class TrainerConfig:
    """Where and how long to train."""

    accelerator: str = "cpu"  # cpu, gpu or auto
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"  # auto or ddp
    precision: str = "32-true"  # 32-true or bf16-mixed
    threads: int = 1  # CPU threads of torch; two spinning threads can be slower than one
    max_epochs: int = 30
    patience: int = 10  # epochs without a better macro-F1 before training stops
    batch_size: int = 32
    progress_bar: bool = True  # on a terminal only

    def __post_init__(self) -> None:
        require_choice("trainer.accelerator", self.accelerator, ("cpu", "gpu", "auto"))
        require_choice("trainer.strategy", self.strategy, ("auto", "ddp"))
        require_choice("trainer.precision", self.precision, ("32-true", "bf16-mixed"))
        for name in ("devices", "num_nodes", "threads", "max_epochs", "patience", "batch_size"):
            require(getattr(self, name) >= 1, f"trainer.{name}", getattr(self, name), "1 or more")


@dataclass(kw_only=True)
class LoggerConfig:
    """Which training logs are written into the run folder."""

    csv: bool = True
    tensorboard: bool = True


# --- steps: one per command ----------------------------------------------------------------------------------


@dataclass(kw_only=True)
class _InputOptions:
    """What every step that reads expression can be told instead of detecting it."""

    inputs: list[str] = field(default_factory=list)  # the positional files
    source: str = "auto"  # X, raw or layers/NAME
    input_kind: str = "auto"  # counts, linear (TPM, corrected counts) or log1p
    input_total: float | None = None  # what log1p data were normalised to, when it cannot be seen

    def __post_init__(self) -> None:
        known = self.source in ("auto", "X", "raw") or self.source.startswith("layers/")
        require(known, "source", self.source, "auto, X, raw or layers/NAME")
        require_choice("input_kind", self.input_kind, INPUT_KINDS)
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
    label_key: str | None = None  # given: also check that the file can serve as a reference
    output: str | None = None  # a JSON file with the same findings
    overwrite: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_inputs(self.inputs, "check")


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
class TrainConfig(_InputOptions):
    """Train a model on a labelled reference."""

    label_key: str
    output: str | None = None  # the model folder; None: <input>.model beside the input
    overwrite: bool = False
    resume: bool = False  # continue a run that was cut off
    seed: int = 0
    data: DataConfig = field(default_factory=DataConfig)
    tokens: TokensConfig = field(default_factory=TokensConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    attention: dict[str, Any] = field(default_factory=lambda: {"name": "favor"})  # and the options of that mechanism
    head: HeadConfig = field(default_factory=HeadConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_inputs(self.inputs, "train", most=1)
        require(0 <= self.seed < 2**32, "seed", self.seed, "0 to 2**32 - 1")
        if self.model.deep and self.model.positions == "gene2vec" and self.model.gene2vec_path is None:
            expected = "a file of gene vectors for model.positions=gene2vec"
            raise InputError("no model.gene2vec_path", expected, "name the file, or choose model.positions=gene")


@dataclass(kw_only=True)
class PredictConfig(_InputOptions):
    """Annotate the cells of one or more files."""

    model_path: str | None = None  # None: $SCPERFORMER_MODEL, else the packaged model
    output: str | None = None  # None: <input>.annotated.h5ad beside each input
    overwrite: bool = False
    key_added: str = "scperformer"  # prefix of everything written
    batch_size: int = 64
    threads: int = 1
    device: str = "auto"  # auto, cpu or cuda
    min_overlap: float = 0.1  # share of the model's genes that a file must have
    min_confidence: float = 0.0  # cells below it are flagged as unknown

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_inputs(self.inputs, "predict")
        many = len(self.inputs) > 1 and self.output is not None
        require(not many, "output", self.output, "no output option with several files (each gets its own)")
        require(bool(self.key_added.strip()), "key_added", repr(self.key_added), "a name")
        require("/" not in self.key_added, "key_added", repr(self.key_added), "a name without '/'")
        require(self.batch_size >= 1, "batch_size", self.batch_size, "1 or more")
        require(self.threads >= 1, "threads", self.threads, "1 or more")
        require_choice("device", self.device, ("auto", "cpu", "cuda"))
        require(0 <= self.min_overlap <= 1, "min_overlap", self.min_overlap, "a share from 0 to 1")
        require(0 <= self.min_confidence <= 1, "min_confidence", self.min_confidence, "a probability from 0 to 1")


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
    min_overlap: float = 0.1  # share of the model's genes that a file must have
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


STEPS: dict[str, type] = {
    "check": CheckConfig,
    "preprocess": PreprocessConfig,
    "train": TrainConfig,
    "predict": PredictConfig,
    "evaluate": EvaluateConfig,
    "report": ReportConfig,
    "analyze": AnalyzeConfig,
}
