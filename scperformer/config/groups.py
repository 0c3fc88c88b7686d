"""The options of training by group: one dataclass per folder of conf/, with types, defaults and ranges.

The comments at the options are the text of docs/configuration.md (`python docs/make_configuration.py` writes it).
"""

from dataclasses import dataclass
from typing import Any

from scperformer.config.checks import (
    ABOVE_ZERO,
    ABOVE_ZERO_OR_NULL,
    BELOW_ONE,
    NAME,
    ONE_OR_MORE,
    SHARE,
    ZERO_OR_MORE,
    Options,
    one_of,
    option,
    require,
)

AUTO = "auto"
WEIGHTS = one_of("none", "sqrt", "balanced")
PRECISION = one_of("32-true", "bf16-mixed")


@dataclass(kw_only=True)
class DataConfig(Options):
    """Which cells and genes of a reference are kept, how it is normalised and split."""

    prefix = "data."
    target_sum: float = option(1e4, ABOVE_ZERO)  # counts per cell after normalisation
    min_genes: int = option(50, ZERO_OR_MORE)  # reference cells that express fewer genes are dropped
    min_cells: int = option(3, ZERO_OR_MORE)  # genes that fewer reference cells express are dropped
    # share of the labelled cells that is held out for early stopping; not used with `data.split=column`
    val_fraction: float = option(0.1, (lambda share: 0 < share < 1, "a share between 0 and 1"))
    # how labelled cells are split into training and validation: stratified (at random within each label), group (whole
    # donors or batches) or column (a column names the side of each cell); see docs/training.md#which-cells-validate
    split: str = option("stratified", one_of("stratified", "group", "column"))
    split_key: str | None = None  # obs column of the groups, or of the sides `train`, `val` and `test` (left alone)
    # labels with fewer than `data.min_cells_per_label` cells: keep, merge (into one label), drop (their cells) or error
    rare_labels: str = option("keep", one_of("keep", "merge", "drop", "error"))
    min_cells_per_label: int = option(2, ONE_OR_MORE)  # a label with fewer cells is rare
    rare_label_name: str = option("other", NAME)  # with `data.rare_labels=merge`: the label that they become
    # true: load all cells; false: leave them on disk during training; auto: by size; see
    # docs/training.md#more-cells-than-memory
    in_memory: Any = AUTO
    # how often an epoch shows cells of rare labels: none (as they are), sqrt, or balanced (all labels equally)
    balance: str = option("none", WEIGHTS)

    def __post_init__(self) -> None:
        if self.in_memory in ("true", "false"):  # quoted words, as Python callers may give them
            self.in_memory = self.in_memory == "true"
        known = self.in_memory == AUTO or isinstance(self.in_memory, bool)
        require(known, "data.in_memory", self.in_memory, "true, false or auto")
        super().__post_init__()
        has_key, needs_key = self.split_key is not None, self.split != "stratified"
        expected = f"an obs column for data.split={self.split}" if needs_key else "null, or data.split=group or column"
        require(has_key == needs_key, "data.split_key", self.split_key, expected)


@dataclass(kw_only=True)
class TokensConfig(Options):
    """How the expression of a gene becomes a token, and which genes become tokens."""

    prefix = "tokens."
    name: str = option("continuous", one_of("scbert", "bins", "continuous"))  # continuous, bins or scbert
    num_bins: int = option(5, (lambda num: 1 <= num <= 1000, "1 to 1000"))  # highest bin (scbert: 5)
    bins_per_log2: float = option(1.0, ABOVE_ZERO)  # bins per doubling of 1 + expression (scbert: 1)
    # full: every gene is a token; skip: expressed genes only; memory: expressed genes are tokens, and the others are
    # keys and values (with `attention=favor` or `attention=rbf`)
    unexpressed: str = option("skip", one_of("full", "skip", "memory"))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == "scbert":
            require(self.num_bins == 5, "tokens.num_bins", self.num_bins, "5 with tokens=scbert (else tokens=bins)")
            require(self.bins_per_log2 == 1, "tokens.bins_per_log2", self.bins_per_log2, "1 with tokens=scbert")


@dataclass(kw_only=True)
class ModelConfig(Options):
    """Size and structure of the encoder, and which branches are on."""

    prefix = "model."
    dim: int = option(32, ONE_OR_MORE)  # width of the tokens
    depth: int = option(1, ONE_OR_MORE)  # number of layers
    num_heads: int = option(2, ONE_OR_MORE)  # attention heads
    head_dim: int | None = option(16, ONE_OR_MORE)  # width of a head; null: `model.dim` / `model.num_heads`
    # hidden width of the feed-forward part of a layer, in multiples of `model.dim`
    feedforward_factor: int = option(4, ONE_OR_MORE)
    activation: str = option("gelu", one_of("gelu", "relu"))  # of the feed-forward part: gelu or relu
    # pre: layer norm before attention and feed-forward; post: after their residual sums
    norm: str = option("pre", one_of("pre", "post"))
    # how a token encodes its gene: gene (a learned vector), gene2vec (a fixed one from a file), sinusoidal or none
    positions: str = option("gene", one_of("gene", "gene2vec", "sinusoidal", "none"))
    # with `model.positions=gene2vec`: a text file, each line a gene and its `model.dim` numbers; missing genes get 0
    gene2vec_path: str | None = None
    dropout: float = option(0.1, BELOW_ONE)  # share of numbers that training sets to 0, in the encoder
    # tokens at a time in `favor` and `rbf` layers: same result, less memory; null: all at once
    chunk_tokens: int | None = option(None, (lambda num: num >= 1, "1 or more, or null"))
    # recompute activations in the backward pass instead of keeping them: less memory, a third more time
    checkpointing: bool = False
    # share of a cell's genes that each training step hides from the encoder
    gene_dropout: float = option(0.6, BELOW_ONE)
    wide: bool = True  # the linear branch, on normalised expression, beside the encoder
    # input of the linear branch: expression raised to each of these powers, every cell scaled to the same length
    wide_powers: list[float] = option(
        [0.5, 2.0], (lambda powers: bool(powers) and min(powers) > 0, "one or more numbers above 0")
    )
    deep: bool = True  # the encoder; false: the linear branch only

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_dim is None:
            expected = f"a divisor of model.dim={self.dim}, or a number for model.head_dim"
            require(self.dim % self.num_heads == 0, "model.num_heads", self.num_heads, expected)
            self.head_dim = self.dim // self.num_heads
        require(self.wide or self.deep, "model.deep", self.deep, "model.wide or model.deep on")


@dataclass(kw_only=True)
class HeadConfig(Options):
    """How the encoded tokens of a cell become one vector and then labels."""

    prefix = "head."
    name: str = option("mean", one_of("cls", "mean", "conv"))  # mean, cls or conv (scBERT's)
    # widths of hidden layers before the labels
    hidden: list[int] = option([], (lambda widths: all(width >= 1 for width in widths), "widths of 1 or more"))
    # share of numbers that training sets to 0, in the hidden layers of the head
    dropout: float = option(0.0, BELOW_ONE)


@dataclass(kw_only=True)
class MaskingConfig(Options):
    """The values that pretraining masks, and the loss of their prediction."""

    prefix = "masking."
    # share of a cell's expressed genes whose values are to be predicted
    share: float = option(0.15, (lambda share: 0 < share <= 1, "a share above 0, up to 1"))
    mask_share: float = option(0.9, SHARE)  # share of these values that the encoder sees as the mask
    # share of these values that are replaced by the value of another gene of the batch; the rest is not changed
    random_share: float = option(0.0, SHARE)
    class_weights: str = option("none", WEIGHTS)  # with bins: weight of a bin in the loss: none, sqrt or balanced
    tied: bool = False  # with bins: the output layer is the embedding's table of bins
    loss: str = option("squared", one_of("squared", "huber"))  # with continuous tokens: squared or huber error

    def __post_init__(self) -> None:
        super().__post_init__()
        expected = f"at most {1 - self.mask_share:g} beside masking.mask_share={self.mask_share:g}"
        require(self.mask_share + self.random_share < 1 + 1e-9, "masking.random_share", self.random_share, expected)


@dataclass(kw_only=True)
class OptimConfig(Options):
    """Loss, optimiser and learning-rate schedule."""

    prefix = "optim."
    lr: float = option(3e-3, ABOVE_ZERO)  # highest learning rate
    weight_decay: float = option(0.01, ZERO_OR_MORE)  # of AdamW; the linear branch has none
    warmup_fraction: float = option(0.1, SHARE)  # share of all steps in which the learning rate rises
    final_lr_fraction: float = option(0.05, SHARE)  # learning rate at the end of the cosine, as a share of `optim.lr`
    label_smoothing: float = option(0.0, BELOW_ONE)  # share of the target that is spread over all labels
    class_weights: str = option("sqrt", WEIGHTS)  # weight of a label in the loss: none, sqrt or balanced
    # logistic: the linear branch starts as logistic regression; zero: it starts at zero
    wide_start: str = option("logistic", one_of("logistic", "zero"))
    wide_c: float = option(0.1, ABOVE_ZERO)  # inverse penalty of that logistic regression
    # weight of a label in it: none, sqrt, balanced or auto (none or balanced, whichever has the higher likelihood in a
    # cross-validation of the training cells)
    wide_class_weights: str = option(AUTO, one_of(AUTO, "none", "sqrt", "balanced"))
    # genes with the smallest penalty in it: signal (genes that separate labels), standard (all genes alike), none
    # (genes of large variance) or auto (signal or standard, by the same cross-validation)
    wide_gene_weights: str = option(AUTO, one_of(AUTO, "signal", "standard", "none"))
    # learning rate of a linear branch that starts fitted, as a share of `optim.lr`; 0: it stays as it is
    wide_lr_factor: float = option(0.0, ZERO_OR_MORE)
    # with both branches: weight of the loss of the encoder's logits alone
    deep_loss_weight: float = option(1.0, ZERO_OR_MORE)
    # with both branches: the encoder counts if it lowers the held-out loss by more than this many standard errors
    deep_min_gain: float = option(2.0, ZERO_OR_MORE)
    # learning rate of an encoder that starts from `init`, as a share of `optim.lr`
    init_lr_factor: float = option(0.03, ABOVE_ZERO)
    gradient_clip: float = option(1.0, (lambda norm: norm >= 0, "0 (off) or more"))  # longest gradient; 0: off


@dataclass(kw_only=True)
class TrainerConfig(Options):
    """Where and how long to train."""

    prefix = "trainer."
    accelerator: str = option("cpu", one_of("cpu", "gpu", "auto"))  # cpu, gpu or auto
    devices: int = option(1, ONE_OR_MORE)  # processes per machine
    num_nodes: int = option(1, ONE_OR_MORE)  # machines
    strategy: str = option("auto", one_of("auto", "ddp"))  # auto or ddp
    precision: str = option("32-true", PRECISION)  # 32-true or bf16-mixed
    threads: int = option(1, ONE_OR_MORE)  # CPU threads of torch; two spinning threads can be slower than one
    max_epochs: int = option(30, ONE_OR_MORE)  # most passes over the training cells
    patience: int = option(10, ONE_OR_MORE)  # epochs without a better macro-F1 before training stops
    batch_size: Any = 32  # cells per step and device; auto: as many as fit into memory
    # with `trainer.batch_size=auto`: GiB that the steps of each process may take; null: the free memory
    memory_gib: float | None = option(None, ABOVE_ZERO_OR_NULL)
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
class LoggerConfig:
    """Which training logs are written into the run folder."""

    csv: bool = True  # `csv/version_0/metrics.csv` in the run folder
    tensorboard: bool = True  # `tensorboard/version_0/` in the run folder
