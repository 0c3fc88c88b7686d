"""Rules for the values of options, and the options of training by group.

Each group is a dataclass, NAMEConfig; the folder conf/NAME holds its presets. The comments at the options are the text
of the help, and of the tables that docs/conf.py puts into docs/configuration.md.
"""

import os
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from math import isfinite
from typing import Any, ClassVar, get_args, get_origin, get_type_hints

from scperformer.base.errors import InputError
from scperformer.base.inputs import special_kind
from scperformer.base.messages import MAX_NAME_LENGTH, did_you_mean, name_problem

AUTO = "auto"  # the value of options that the program may choose itself

Rule = tuple[Callable[[Any], bool], str]  # a check of a value, and the text that says which values pass it
ABOVE_ZERO: Rule = (lambda value: value > 0, "a number above 0")
ZERO_OR_MORE: Rule = (lambda value: value >= 0, "0 or more")
ONE_OR_MORE: Rule = (lambda value: value >= 1, "1 or more")
BELOW_ONE: Rule = (lambda value: 0 <= value < 1, "0 or more and below 1")
SHARE: Rule = (lambda value: 0 <= value <= 1, "a share from 0 to 1")
MAX_THREADS = max(64, 4 * (os.cpu_count() or 1))  # no program is faster with more; a billion of them abort it
THREADS: Rule = (lambda value: 1 <= value <= MAX_THREADS, f"1 to {MAX_THREADS} on this machine")
SEED: Rule = (lambda value: 0 <= value < 2**32, "0 to 2**32 - 1")
NAME: Rule = (lambda value: bool(value.strip()), "a name")
LINE: Rule = (
    lambda value: name_problem(value) is None,
    f"a name in one line of at most {MAX_NAME_LENGTH:,} characters",
)


def option(default: Any, rule: Rule) -> Any:
    """Return a field of an `Options` class with a default value and a rule for its values; None is never checked."""
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={"rule": rule})
    return field(default=default, metadata={"rule": rule})


def choice(*values: str) -> Any:
    """Return a field of an `Options` class that is one of `values`; the first is the default."""
    return option(values[0], (lambda value: value in values, f"one of {', '.join(values)}"))


def choices_of(entry: Field) -> list[str]:
    """Return the values that a field can have if `choice` has made it, else an empty list."""
    _, expected = entry.metadata.get("rule", (None, ""))
    return expected.removeprefix("one of ").split(", ") if expected.startswith("one of ") else []


def require(ok: bool, option: str, value: object, expected: str, near: str = "") -> None:
    """Raise an InputError about the value of an option unless `ok`; it names the option and the values it can have.

    `near` is a hint at the value that was probably meant, such as "did you mean 'mean'? ", or nothing.
    """
    if not ok:
        shown = repr(value) if isinstance(value, str) and not value.strip() else value  # quotes show blank text
        raise InputError(f"{option}={shown}", expected, f"{near}set {option} accordingly")


def checked(schema: type, values: dict[str, Any], prefix: str) -> Any:
    """Make a dataclass from plain values, such as JSON; refuse unknown names, other types and values out of range.

    Unlike `config_from`, it converts nothing. `prefix` stands before each name in errors, such as `attention.`.
    """
    types = get_type_hints(schema)
    for name, value in values.items():
        if name not in types:
            known = ", ".join(f"{prefix}{entry.name}" for entry in fields(schema)) or "none"
            raise InputError(f"option {prefix}{name}", f"an option that exists ({known})", "leave it out")
        kind = list if get_origin(types[name]) is list else types[name]
        kinds = (int, kind) if float in (kind, *get_args(kind)) else kind  # whole numbers are numbers, too
        ok = isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))
        require(ok, f"{prefix}{name}", value, f"a value of type {getattr(kind, '__name__', kind)}")
        require(not isinstance(value, float) or isfinite(value), f"{prefix}{name}", value, "a finite number")
    return schema(**values)


@dataclass(kw_only=True)
class Options:
    """Base class of options: the rule of each field is checked when an instance is made, and no text is a device."""

    prefix: ClassVar[str | None] = None  # before names in messages; None: the name of the group, as in `data.split`

    @classmethod
    def word(cls) -> str:
        """Return the name of the group or step on the command line: `data` for DataConfig."""
        return cls.__name__.removesuffix("Config").lower()

    def __post_init__(self) -> None:
        prefix = f"{self.word()}." if self.prefix is None else self.prefix
        for entry in fields(self):
            value = getattr(self, entry.name)
            for text in value if isinstance(value, list) else [value]:
                # Each of `inputs` is refused where it is read, as other inputs may be used.
                if isinstance(text, str) and entry.name != "inputs" and (kind := special_kind(text)):
                    expected = "a name, or the path of a file or folder"
                    raise InputError(f"{prefix}{entry.name}={text}, {kind}", expected, "copy its content into a file")
            if "rule" in entry.metadata and value is not None:
                fits, expected = entry.metadata["rule"]
                near = did_you_mean(value, choices_of(entry))
                require(fits(value), f"{prefix}{entry.name}", value, expected, near)


@dataclass(kw_only=True)
class DataConfig(Options):
    """Which cells and genes of a reference are kept, how it is normalised and split."""

    target_sum: float = option(1e4, ABOVE_ZERO)  # counts per cell after normalisation (scanpy.pp.normalize_total)
    # reference cells that express fewer genes are dropped (scanpy.pp.filter_cells)
    min_genes: int = option(50, ZERO_OR_MORE)
    # genes that fewer reference cells express are dropped (scanpy.pp.filter_genes)
    min_cells: int = option(3, ZERO_OR_MORE)
    # share of the labelled cells that is held out for early stopping; not used with `data.split=column`
    val_fraction: float = option(0.1, (lambda share: 0 < share < 1, "a share between 0 and 1"))
    # validation cells; stratified: at random within labels; group: whole donors or batches; column: those it names;
    split: str = choice("stratified", "group", "column")  # see docs/training.md#which-cells-validate
    split_key: str | None = None  # obs column of the groups, or of the sides `train`, `val` and `test` (left alone)
    rare_labels: str = choice("keep", "merge", "drop", "error")  # labels of fewer than `data.min_cells_per_label` cells
    min_cells_per_label: int = option(2, ONE_OR_MORE)  # a label with fewer cells is rare
    # true: load all cells; false: leave them on disk; auto: by size; see docs/training.md#more-cells-than-memory
    in_memory: Any = AUTO

    def __post_init__(self) -> None:
        if self.in_memory in ("true", "false"):  # as quoted words, or from Python
            self.in_memory = self.in_memory == "true"
        known = self.in_memory == AUTO or isinstance(self.in_memory, bool)
        require(known, "data.in_memory", self.in_memory, "true, false or auto")
        super().__post_init__()
        has_key = self.split_key is not None
        needs_key = self.split != "stratified"
        expected = f"an obs column for data.split={self.split}" if needs_key else "null, or data.split=group or column"
        require(has_key == needs_key, "data.split_key", self.split_key, expected)


@dataclass(kw_only=True)
class TokensConfig(Options):
    """How the expression of a gene becomes a token, and which genes become tokens."""

    name: str = choice("continuous", "bins", "scbert")  # kind of token
    num_bins: int = option(5, (lambda num: 1 <= num <= 1000, "1 to 1000"))  # highest bin (scbert: 5)
    # unexpressed genes; full: they are tokens, too; all: and genes that a file lacks, too, as in scBERT; memory: only
    # keys and values (with `attention=favor` or `rbf`)
    unexpressed: str = choice("skip", "full", "all", "memory")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == "scbert":
            require(self.num_bins == 5, "tokens.num_bins", self.num_bins, "5 with tokens=scbert (else tokens=bins)")

    @property
    def every_gene(self) -> bool:
        """Whether unexpressed genes are tokens."""
        return self.unexpressed in ("full", "all")

    @property
    def bins_per_log2(self) -> float:
        """Bins per doubling of 1 + expression."""
        return 4.0 if self.name == "bins" else 1.0


@dataclass(kw_only=True)
class ModelConfig(Options):
    """Size and structure of the encoder, and which branches are on."""

    dim: int = option(32, ONE_OR_MORE)  # width of the tokens
    # number of layers; 0: only with `model.positions=coexpression`
    depth: int = option(1, (lambda num: 0 <= num <= 1000, "0 to 1000"))
    # whose vectors query the genes; tokens: those of the expressed genes; cell: the vector of the cell alone, so that a
    # layer costs one product with a table of the genes (with `model.positions=coexpression`, as in model=performer)
    queries: str = choice("tokens", "cell")
    num_heads: int = option(2, ONE_OR_MORE)  # attention heads
    # width of a head; null: `model.dim` / `model.num_heads`; with `model.queries=cell` it is `model.dim`
    head_dim: int | None = option(16, ONE_OR_MORE)
    # with `model.queries=cell`: a feed-forward network after what is read; other layers always have one
    feedforward: bool = True
    norm: str = choice("pre", "post")  # layer norm before attention and feed-forward, or after their residual sums
    # how a token encodes its gene; gene: a learned vector; gene2vec: a fixed one from a file; coexpression: a vector
    # from the singular value decomposition of the reference, with layers that start at 0 (with `head=weighted`)
    positions: str = choice("gene", "gene2vec", "sinusoidal", "none", "coexpression")
    # a text file of genes with `model.dim` numbers each; or an array (.npy), with the genes of its rows in a text file
    # of the same name (.txt) beside it, one in each line; missing genes get 0
    gene2vec_path: str | None = None
    dropout: float = option(0.1, BELOW_ONE)  # dropout rate in the encoder
    # tokens at a time in `favor` and `rbf` layers: the same result with less memory; null: all at once; no effect on a
    # GPU with Triton, which needs no more memory for all of them
    chunk_tokens: int | None = option(None, ONE_OR_MORE)
    checkpointing: bool = False  # recompute activations in the backward pass: less memory, a third more time
    # share of a cell's genes that each training step drops from the encoder's input; none under `conditions`
    gene_dropout: float = option(0.6, BELOW_ONE)
    linear: bool = True  # the linear branch, on normalised expression, beside the encoder
    # input of the linear branch: expression raised to each of these powers, every cell scaled to the same length
    linear_powers: list[float] = option([0.5, 2.0], (lambda powers: min(powers, default=0) > 0, "numbers above 0"))
    encoder: bool = True  # the encoder; false: the linear branch only

    def __post_init__(self) -> None:
        super().__post_init__()
        by_cell = self.queries == "cell"
        fits = not by_cell or self.positions == "coexpression"
        require(fits, "model.queries", self.queries, "tokens, or model.positions=coexpression")
        if by_cell:
            self.head_dim = self.dim
        if self.head_dim is None:
            expected = f"a divisor of model.dim={self.dim}, or a number for model.head_dim"
            require(self.dim % self.num_heads == 0, "model.num_heads", self.num_heads, expected)
            self.head_dim = self.dim // self.num_heads
        require(self.linear or self.encoder, "model.encoder", self.encoder, "model.linear or model.encoder on")
        fits = self.depth > 0 or self.positions == "coexpression"
        require(fits, "model.depth", self.depth, "1 or more, or model.positions=coexpression")

    @property
    def reads_genes(self) -> bool:
        """Whether the encoder only needs sums over the genes of a cell: it has no tokens that query each other."""
        return self.encoder and self.positions == "coexpression" and (self.queries == "cell" or self.depth == 0)


@dataclass(kw_only=True)
class HeadConfig(Options):
    """How the encoded tokens of a cell become one vector and then labels."""

    name: str = choice("mean", "cls", "conv", "weighted")  # kind of head; conv: scBERT's; weighted: by expression
    # widths of hidden layers before the labels
    hidden: list[int] = option([], (lambda widths: min(widths, default=1) >= 1, "widths of 1 or more"))
    dropout: float = option(0.0, BELOW_ONE)  # dropout rate of these hidden layers


@dataclass(kw_only=True)
class ConditionsConfig(Options):
    """Random genes and depths under which layers of attention are trained; fitted branches adapt to a file instead."""

    # cells are thinned to a random share of their counts, this one at least; 1: no thinning
    lowest_depth: float = option(1.0, (lambda share: 0 < share <= 1, "a share above 0, up to 1"))
    panel_share: float = option(0.0, SHARE)  # share of groups of 8 cells that have the genes of a random panel only
    # the genes of a panel, in lines of text or as a table or JSON: any model is made for these genes alone
    genes: str | None = None

    @property
    def on(self) -> bool:
        """Whether any cell is changed."""
        return self.lowest_depth < 1 or self.panel_share > 0


@dataclass(kw_only=True)
class MaskingConfig(Options):
    """The values that pretraining masks, and the loss of their prediction."""

    # share of a cell's expressed genes whose values are to be predicted; with model=performer of all genes
    share: float = option(0.15, (lambda share: 0 < share <= 1, "a share above 0, up to 1"))
    mask_share: float = option(0.9, SHARE)  # share of these that the encoder sees as the mask; the others are unchanged
    loss: str = choice("squared", "huber")  # kind of error, with continuous tokens


@dataclass(kw_only=True)
class OptimConfig(Options):
    """Loss, optimiser and learning-rate schedule."""

    lr: float = option(3e-3, ABOVE_ZERO)  # highest learning rate
    weight_decay: float = option(0.01, ZERO_OR_MORE)  # weight decay of AdamW
    warmup_fraction: float = option(0.1, SHARE)  # share of all steps in which the learning rate rises
    final_lr_fraction: float = option(0.05, SHARE)  # learning rate at the end of the cosine, as a share of `optim.lr`
    label_smoothing: float = option(0.0, BELOW_ONE)  # share of the target that is spread over all labels
    class_weights: str = choice("sqrt", "none", "balanced")  # weight of a label in the loss
    init_lr_factor: float = option(0.03, ABOVE_ZERO)  # learning rate of an encoder from `init`, relative to `optim.lr`
    gradient_clip: float = option(1.0, ZERO_OR_MORE)  # longest gradient; 0: off


@dataclass(kw_only=True)
class TrainerConfig(Options):
    """Where and how long to train."""

    accelerator: str = choice("auto", "cpu", "gpu")  # device that trains; auto: CUDA, else MPS, else the CPU
    devices: int = option(1, ONE_OR_MORE)  # processes per machine
    num_nodes: int = option(1, ONE_OR_MORE)  # machines
    # of numbers in training; auto: bf16-mixed on a CUDA GPU that computes in bfloat16, else 32-true
    precision: str = choice("auto", "32-true", "bf16-mixed")
    threads: int = option(1, THREADS)  # CPU threads of torch; two spinning threads can be slower than one
    max_epochs: int = option(30, ONE_OR_MORE)  # most passes over the training cells
    # steps of training where they are counted instead of epochs: with `model.queries=cell`
    max_steps: int = option(600, ONE_OR_MORE)
    patience: int = option(10, ONE_OR_MORE)  # epochs without a better macro-F1 before training stops
    batch_size: Any = 32  # cells per step and device; auto: as many as fit into memory
    memory_gib: float | None = option(None, ABOVE_ZERO)  # GiB per process with `batch_size=auto`; null: the free memory
    progress_bar: bool = True  # on a terminal only

    def __post_init__(self) -> None:
        super().__post_init__()
        size = self.batch_size
        whole = isinstance(size, int) and not isinstance(size, bool)
        require(size == AUTO or (whole and size >= 1), "trainer.batch_size", size, "a whole number above 0, or auto")
        # All processes must choose the same size, but their free memory may differ.
        known = self.devices * self.num_nodes == 1 or size != AUTO or self.memory_gib is not None
        require(known, "trainer.memory_gib", None, "a number, with trainer.batch_size=auto and several processes")


@dataclass(kw_only=True)
class LoggerConfig(Options):
    """Which training logs are written into the run folder."""

    csv: bool = True  # `csv/version_0/metrics.csv` in the run folder
    tensorboard: bool = True  # `tensorboard/version_0/` in the run folder
    wandb: bool = False  # Weights & Biases, if installed: `wandb/` in the run folder; sent with WANDB_MODE=online
    mlflow: bool = False  # MLflow, if installed: `mlflow.db` in the run folder, or at MLFLOW_TRACKING_URI
