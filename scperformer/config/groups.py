"""The options of training by group, with their types, defaults and ranges: one dataclass per folder of conf/."""

from dataclasses import dataclass, field
from typing import Any

from scperformer.config.checks import require, require_choice

AUTO = "auto"


@dataclass(kw_only=True)
class DataConfig:
    """Which cells and genes of a reference are kept, how it is normalised and split."""

    target_sum: float = 1e4  # counts per cell after normalisation
    min_genes: int = 50  # reference cells that express fewer genes are dropped
    min_cells: int = 3  # genes expressed in fewer reference cells are dropped
    val_fraction: float = 0.1  # share of the labelled cells that early stopping looks at
    split: str = "stratified"  # stratified (by chance within labels), group (whole groups) or column (as it says)
    split_key: str | None = None  # obs column of the groups, or of the sides: train, val, test (left alone)
    rare_labels: str = "keep"  # labels with fewer than min_cells_per_label cells: keep, merge, drop or error
    min_cells_per_label: int = 2
    rare_label_name: str = "other"  # with rare_labels=merge: the label that they become
    in_memory: Any = AUTO  # true: all cells are loaded; false: they stay on disk during training; auto: by size
    balance: str = "none"  # how often cells of rare labels are seen: none (as they are), sqrt or balanced (alike)

    def __post_init__(self) -> None:
        require(self.target_sum > 0, "data.target_sum", self.target_sum, "a number above 0")
        require(self.min_genes >= 0, "data.min_genes", self.min_genes, "0 or more")
        require(self.min_cells >= 0, "data.min_cells", self.min_cells, "0 or more")
        require(0 < self.val_fraction < 1, "data.val_fraction", self.val_fraction, "a share between 0 and 1")
        require_choice("data.split", self.split, ("stratified", "group", "column"))
        has_key, needs_key = self.split_key is not None, self.split != "stratified"
        expected = f"an obs column for data.split={self.split}" if needs_key else "null, or data.split=group or column"
        require(has_key == needs_key, "data.split_key", self.split_key, expected)
        require_choice("data.rare_labels", self.rare_labels, ("keep", "merge", "drop", "error"))
        require(self.min_cells_per_label >= 1, "data.min_cells_per_label", self.min_cells_per_label, "1 or more")
        if self.in_memory in ("true", "false"):  # quoted words, as Python callers may give them
            self.in_memory = self.in_memory == "true"
        ok = self.in_memory == AUTO or isinstance(self.in_memory, bool)
        require(ok, "data.in_memory", self.in_memory, "true, false or auto")
        require_choice("data.balance", self.balance, ("none", "sqrt", "balanced"))
        require(bool(self.rare_label_name.strip()), "data.rare_label_name", repr(self.rare_label_name), "a name")


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
    wide_powers: list[float] = field(default_factory=lambda: [0.5, 2.0])  # its views: expression to each of these
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
        ok = bool(self.wide_powers) and min(self.wide_powers) > 0
        require(ok, "model.wide_powers", self.wide_powers, "one or more numbers above 0")
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
class MaskingConfig:
    """Which values pretraining hides, and how their prediction is judged."""

    share: float = 0.15  # of the expressed genes of a cell: these are to be predicted
    mask_share: float = 0.9  # of them: shown as the mask
    random_share: float = 0.0  # of them: shown with the value of another gene; the rest is shown as it is
    class_weights: str = "none"  # none, sqrt or balanced: weight of a bin in the loss
    tied: bool = False  # with bins: the output layer is the embedding's table of bins
    loss: str = "squared"  # with continuous tokens: squared or huber

    def __post_init__(self) -> None:
        require(0 < self.share <= 1, "masking.share", self.share, "a share above 0, up to 1")
        for name in ("mask_share", "random_share"):
            require(0 <= getattr(self, name) <= 1, f"masking.{name}", getattr(self, name), "a share from 0 to 1")
        total = self.mask_share + self.random_share
        expected = f"at most {1 - self.mask_share:g} beside masking.mask_share={self.mask_share:g}"
        require(total < 1 + 1e-9, "masking.random_share", self.random_share, expected)
        require_choice("masking.class_weights", self.class_weights, ("none", "sqrt", "balanced"))
        require_choice("masking.loss", self.loss, ("squared", "huber"))


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
    wide_c: float = 0.1  # inverse penalty of that logistic regression
    wide_class_weights: str = "auto"  # weight of a label in it: none, sqrt, balanced or auto (the likelier of two)
    wide_gene_weights: str = "auto"  # which genes its penalty spares: signal, standard, none or auto
    wide_lr_factor: float = 0.0  # a wide branch that starts fitted learns on at this share of lr; 0: stays
    deep_loss_weight: float = 1.0  # with both branches: weight of the loss of the encoder's logits alone
    deep_min_gain: float = 2.0  # with both: standard errors by which the encoder must lower the held-out loss to count
    init_lr_factor: float = 0.03  # an encoder that starts from init learns at this share of lr
    gradient_clip: float = 1.0

    def __post_init__(self) -> None:
        require(self.init_lr_factor > 0, "optim.init_lr_factor", self.init_lr_factor, "a number above 0")
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
        require_choice("optim.wide_class_weights", self.wide_class_weights, ("auto", "none", "sqrt", "balanced"))
        require_choice("optim.wide_gene_weights", self.wide_gene_weights, ("auto", "signal", "standard", "none"))
        require_choice("optim.wide_start", self.wide_start, ("logistic", "zero"))
        require(self.wide_c > 0, "optim.wide_c", self.wide_c, "a number above 0")
        require(self.wide_lr_factor >= 0, "optim.wide_lr_factor", self.wide_lr_factor, "0 or more")
        require(self.deep_min_gain >= 0, "optim.deep_min_gain", self.deep_min_gain, "0 or more")
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
    batch_size: Any = 32  # cells per step and device; auto: as many as fit into memory
    memory_gib: float | None = None  # with auto: GiB that the steps of each process may take; null: what is free
    progress_bar: bool = True  # on a terminal only

    def __post_init__(self) -> None:
        require_choice("trainer.accelerator", self.accelerator, ("cpu", "gpu", "auto"))
        require_choice("trainer.strategy", self.strategy, ("auto", "ddp"))
        require_choice("trainer.precision", self.precision, ("32-true", "bf16-mixed"))
        for name in ("devices", "num_nodes", "threads", "max_epochs", "patience"):
            require(getattr(self, name) >= 1, f"trainer.{name}", getattr(self, name), "1 or more")
        size = self.batch_size
        whole = isinstance(size, int) and not isinstance(size, bool)
        require(size == AUTO or (whole and size >= 1), "trainer.batch_size", size, "a whole number above 0, or auto")
        if self.memory_gib is not None:
            require(self.memory_gib > 0, "trainer.memory_gib", self.memory_gib, "a number above 0, or null")
        # The processes must come to the same size, and what is free may differ between them.
        alone = self.devices * self.num_nodes == 1
        known = alone or size != AUTO or self.memory_gib is not None
        require(known, "trainer.memory_gib", None, "a number, with trainer.batch_size=auto and several processes")


@dataclass(kw_only=True)
class LoggerConfig:
    """Which training logs are written into the run folder."""

    csv: bool = True
    tensorboard: bool = True
