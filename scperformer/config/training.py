"""The options of training, by group, and of the reference on which a model is trained."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from scperformer.base.errors import InputError
from scperformer.config.options import (
    ABOVE_ZERO,
    AUTO,
    BELOW_ONE,
    LINE,
    ONE_OR_MORE,
    ONTOLOGY,
    SEED,
    THREADS,
    ZERO_OR_MORE,
    ExpressionOptions,
    Options,
    choice,
    fixed,
    option,
    require,
    span,
)

Mechanism: TypeAlias = dict[str, Any]  # the name of an attention mechanism, with its options

TYPE = "type"  # column of the labels of a list of marker genes
SEED_HELP = (
    "seed of every random choice: split, weights, projections, order, masked values, dropout"
)


@dataclass(kw_only=True)
class DataConfig(Options):
    """Which cells and genes of a reference are kept, and its split: set for shallow cells, donors and test cells."""

    target_sum: float = fixed(1e4, ABOVE_ZERO)  # counts per cell after scanpy.pp.normalize_total
    min_genes: int = option(
        50, "drop cells that express fewer genes (scanpy.pp.filter_cells)", ZERO_OR_MORE
    )
    min_cells: int = option(
        3, "drop genes that fewer cells express (scanpy.pp.filter_genes)", ZERO_OR_MORE
    )
    # share of the labelled cells that is held out for early stopping; not used with `data.split=column`
    val_fraction: float = fixed(0.1, (lambda share: 0 < share < 1, "a share between 0 and 1"))
    split: str = choice(
        *("stratified", "group", "column"),
        help="validation split; stratified: at random within labels; group: whole donors or batches; column: as "
        "`data.split_key` says; see docs/training.md#which-cells-validate",
    )
    split_seed: int | None = option(
        None, "seed of validation cells and folds; if null, `seed`", SEED
    )
    split_key: str | None = option(
        None, "obs column of the groups, or of the sides `train`, `val` and `test` (left alone)"
    )
    min_cells_per_label: int = option(1, "labels with fewer cells are left out", ONE_OR_MORE)
    in_memory: bool | str = option(
        AUTO,
        "load all cells, or leave them on disk; auto: by size; see docs/large_references.md#cells-on-disk",
        (lambda value: value == AUTO or isinstance(value, bool), "true, false or auto"),
    )

    def seed_of_split(self, seed: int) -> int:
        """Return the seed of validation cells and folds, given the seed of all else."""
        return seed if self.split_seed is None else self.split_seed

    def __post_init__(self) -> None:
        if self.in_memory in ("true", "false"):  # as quoted words, or from Python
            self.in_memory = self.in_memory == "true"
        super().__post_init__()
        has_key = self.split_key is not None
        needs_key = self.split in ("group", "column")
        expected = (
            f"an obs column for data.split={self.split}"
            if needs_key
            else "null, or data.split=group or column"
        )
        require(has_key == needs_key, "data.split_key", self.split_key, expected)


@dataclass(kw_only=True)
class TokensConfig(Options):
    """How genes become tokens: set by method developers, with attention between tokens."""

    name: str = fixed(choice("continuous", "bins", "scbert"))  # kind of token
    num_bins: int = fixed(5, span(1, 1000))  # highest bin (scbert: 5)
    unexpressed: str = choice(
        *("skip", "full", "all", "memory"),
        help="unexpressed genes; full: tokens, too; all: also absent genes; memory: keys and values alone",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name == "scbert":
            require(
                self.num_bins == 5,
                "tokens.num_bins",
                self.num_bins,
                "5 with tokens=scbert (else tokens=bins)",
            )

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
    """Size and structure of the encoder, and which branches are on: set by method developers."""

    dim: int = option(32, "width of the tokens", ONE_OR_MORE)
    depth: int = option(
        1, "number of layers; 0 only with `model.positions=coexpression`", span(0, 1000)
    )
    num_heads: int = option(2, "attention heads", ONE_OR_MORE)
    head_dim: int | None = option(
        16,
        "width of a head; if null, dim / num_heads; always dim with `model.positions=coexpression`",
        ONE_OR_MORE,
    )
    norm: str = choice(
        *("pre", "post", "batch"),
        help="layer norm before attention and feed-forward, or after the residual sums; batch: batch norm there",
    )
    # hidden width of feed-forward; None: 4 x `model.dim`
    feedforward: int | None = fixed(None, ONE_OR_MORE)
    activation: str = fixed(choice("gelu", "relu"))  # of the feed-forward network
    positions: str = choice(
        *("gene", "gene2vec", "sinusoidal", "sinusoidal_split", "none", "coexpression"),
        help="how a token encodes its gene; gene: a learned vector; gene2vec: a fixed one from a file; sinusoidal: "
        "fixed sines and cosines in turn, or the sines first (sinusoidal_split); none: not at all; coexpression: a "
        "vector from the singular value decomposition of the reference, and the genes are read by the vector of the "
        "cell alone, as in model=performer (with `head=weighted`)",
    )
    gene2vec_path: str | None = option(
        None,
        "a text file of genes with `model.dim` numbers each, as from gene2vec; missing genes get 0",
    )
    dropout: float = option(0.1, "dropout rate in the encoder", BELOW_ONE)
    chunk_tokens: int | None = option(
        None,
        "tokens at a time in `favor` and `rbf` layers, to save memory on a CPU; if null, all",
        ONE_OR_MORE,
    )
    checkpointing: bool = option(
        False, "recompute activations in the backward pass: less memory, a third more time"
    )
    gene_dropout: float = option(
        0.6,
        "share of a cell's genes that each training step drops from the encoder's input",
        BELOW_ONE,
    )
    linear: bool = option(True, "the linear branch, on normalised expression, beside the encoder")
    # input of the linear branch: expression raised to each of these powers, every cell scaled to the same length
    linear_powers: list[float] = fixed(
        [0.5, 2.0], (lambda powers: min(powers, default=0) > 0, "above 0")
    )
    encoder: bool = option(True, "the encoder; false: the linear branch only")

    def __post_init__(self) -> None:
        super().__post_init__()
        by_cell = self.positions == "coexpression"
        if by_cell:
            self.head_dim = self.dim
        if self.head_dim is None:
            expected = f"a divisor of model.dim={self.dim}, or a number for model.head_dim"
            require(self.dim % self.num_heads == 0, "model.num_heads", self.num_heads, expected)
            self.head_dim = self.dim // self.num_heads
        expected = "false with model.norm=batch, whose running means would count each step twice"
        require(
            self.norm != "batch" or not self.checkpointing, "model.checkpointing", True, expected
        )
        require(
            self.linear or self.encoder,
            "model.encoder",
            self.encoder,
            "model.linear or model.encoder on",
        )
        require(
            self.depth > 0 or by_cell,
            "model.depth",
            self.depth,
            "1 or more, or model.positions=coexpression",
        )

    @property
    def uses_cross_attention(self) -> bool:
        """Whether the encoder only needs sums over the genes of a cell: it has no tokens that query each other."""
        return self.encoder and self.positions == "coexpression"


@dataclass(kw_only=True)
class HeadConfig(Options):
    """How the encoded tokens of a cell become one vector and then labels: set by method developers."""

    # kind of head; conv: scBERT's; weighted: by expression, with model=performer or pooled
    name: str = fixed(choice("mean", "cls", "conv", "weighted"))
    hidden: list[int] = option(
        [],
        "widths of hidden layers before the labels",
        (lambda widths: min(widths, default=1) >= 1, "widths of 1 or more"),
    )
    dropout: float = fixed(0.0, BELOW_ONE)  # dropout rate of these hidden layers


@dataclass(kw_only=True)
class OptimConfig(Options):
    """Loss, optimiser and learning-rate schedule: set by method developers."""

    lr: float = option(3e-3, "highest learning rate", ABOVE_ZERO)
    weight_decay: float = fixed(0.01, ZERO_OR_MORE)  # weight decay of AdamW
    # share of the target that is spread over all labels
    label_smoothing: float = fixed(0.0, BELOW_ONE)
    class_weights: str = choice("sqrt", "none", "balanced", help="weight of a label in the loss")
    gradient_clip: float = fixed(1.0, ZERO_OR_MORE)  # longest gradient; 0: off


@dataclass(kw_only=True)
class TrainerConfig(Options):
    """Where and how long to train: set for GPUs, clusters and attention between tokens."""

    accelerator: str = choice(
        "auto", "cpu", "gpu", help="device that trains; auto: CUDA, else MPS, else the CPU"
    )
    devices: int = option(1, "processes per machine", ONE_OR_MORE)
    num_nodes: int = option(1, "machines", ONE_OR_MORE)
    precision: str = choice(
        *("auto", "32-true", "bf16-mixed"),
        help="number format in training; auto: bf16-mixed on a GPU that computes in bfloat16, else 32-true",
    )
    threads: int = option(
        1, "CPU threads of torch; two spinning threads can be slower than one", THREADS
    )
    max_epochs: int = option(30, "maximum number of epochs", ONE_OR_MORE)
    max_steps: int = option(
        600,
        "maximum number of training steps, instead of epochs, with model=performer or pooled",
        ONE_OR_MORE,
    )
    patience: int = option(
        10, "epochs without a better macro-F1 before training stops", ONE_OR_MORE
    )
    batch_size: int = option(32, "cells per step and device", ONE_OR_MORE)


@dataclass(kw_only=True)
class LoggerConfig(Options):
    """Which training logs are written into the run folder."""

    csv: bool = fixed(True)  # `csv/version_0/metrics.csv` in the run folder
    tensorboard: bool = fixed(True)  # `tensorboard/version_0/` in the run folder
    # Weights & Biases, if installed: `wandb/` in the run folder; sent with WANDB_MODE=online
    wandb: bool = fixed(False)
    # MLflow, if installed: `mlflow.db` in the run folder, or at MLFLOW_TRACKING_URI
    mlflow: bool = fixed(False)


@dataclass(kw_only=True)
class DataOptions(ExpressionOptions):
    """Options of the steps that prepare cells for training."""

    data: DataConfig = field(default_factory=DataConfig)


@dataclass(kw_only=True)
class ReferenceOptions(DataOptions):
    """The labels of a reference, and what belongs to them."""

    seed: int = option(0, SEED_HELP, SEED)
    label_key: str | None = option(
        None,
        "obs column of the labels; if null, the last of `label_keys`, the column of `curate`, or the names of rows of "
        "profiles",
    )
    labels: str | None = option(
        None,
        "a table with a row for each cell, its name first: its columns are added to obs; see docs/training.md",
    )
    types: str | None = option(
        None,
        "a list of marker genes: the cells that show them clearly are the reference, and overrule a label_key; "
        "see docs/markers.md",
    )
    label_keys: list[str] = option(
        [], "for atlases: obs columns of labels, the coarsest first, such as [lineage,type,subtype]"
    )
    ontology: str = option(
        "packaged",
        "source of Cell Ontology ids: packaged (our table), none, or a CL file (.obo)",
        ONTOLOGY,
    )
    ontology_key: str | None = option(
        None,
        "obs column with ids of the labels; if null, LABEL_KEY_ontology_term_id where it exists",
    )
    label_map: str | None = option(
        None,
        "a table that renames labels (old, new), and so joins some; see docs/labels.md#spellings",
    )
    batch_key: str | None = option(
        None,
        "obs column of the donor or study, of which whole ones are held out to estimate accuracy",
    )
    unlabelled: list[str] = option(
        [],
        "files without labels, such as the query: `model=performer` learns gene vectors from them, too",
    )
    genes_path: str | None = option(
        None, "for gene panels: a file with the only genes of the model; see docs/panels.md"
    )
    profiles: str = choice(
        *("auto", "true", "false"),
        help="whether rows are profiles or bulk samples; see docs/training.md#profiles-in-place-of-cells",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        last = self.label_keys[-1] if self.label_keys else self.label_key
        if self.label_key is None:
            self.label_key = TYPE if last is None and self.types is not None else last
        require(
            not self.label_keys or self.label_key == last,
            "label_key",
            self.label_key,
            f"{last}, the last of label_keys, or left out",
        )


@dataclass(kw_only=True)
class NetworkOptions(DataOptions):
    """Options of the steps that train a network: where they write, the network, and how it is trained.

    conf/train.yaml and conf/pretrain.yaml have the presets that replace these defaults if none is chosen.
    """

    output: str | None = option(
        None, "if null, INPUT.model (`train`) or INPUT.encoder (`pretrain`) beside the first input"
    )
    resume: bool = option(False, "continue an interrupted run")
    seed: int = option(0, SEED_HELP, SEED)
    genes_path: str | None = option(
        None,
        "a file of the only genes of the model, one a line, a table or JSON; see docs/panels.md",
    )
    init: str | None = option(
        None, "a model folder with attention between tokens to start from; see docs/pretraining.md"
    )
    tokens: TokensConfig = field(default_factory=TokensConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    # with the options of the mechanism
    attention: Mechanism = field(default_factory=lambda: {"name": "favor"})
    head: HeadConfig = field(default_factory=HeadConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    logger: LoggerConfig = field(default_factory=LoggerConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        without_vectors = self.model.positions == "gene2vec" and self.model.gene2vec_path is None
        if self.model.encoder and without_vectors and self.init is None:
            expected = "a file of gene vectors for model.positions=gene2vec"
            remedy = "name the file, or choose model.positions=gene"
            raise InputError("no-gene-vectors", "no model.gene2vec_path", expected, remedy)


@dataclass(kw_only=True)
class TrainOptions(NetworkOptions, ReferenceOptions):
    """Train a model on a labelled reference."""

    studies: str = choice(
        *("auto", "true", "false"),
        help="train a model for each file, or with true for each batch of one file, and join them",
    )
    tissue: str | None = option(
        None,
        "tissue of the reference, such as blood; the model card and `models list` show it",
        LINE,
    )
    relabel_reference: bool = option(
        True,
        "give cells with the markers of a sibling type its label, such as CD8 T cells among CD4 T cells",
    )
    keep_cells: int = option(
        8000,
        "reference cells in the model folder, for refits; 0 if cells must not leave your institute",
        span(0, 50_000),
    )
    init_mode: str = choice(
        *("full", "last_layer", "head"),
        help="part of the `init` encoder that is trained; last_layer: with the final norm; head: none",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        is_coexpression = self.model.positions == "coexpression"
        is_weighted = self.head.name == "weighted"
        # Beside `init`, model=performer may be the default only: the model of `init` replaces it.
        is_settled_later = self.init is not None and is_coexpression
        head_fits = not self.model.encoder or is_coexpression == is_weighted or is_settled_later
        expected = "weighted with model=performer or pooled, or another head with model=tiny, base or scbert"
        require(head_fits, "head.name", self.head.name, expected)
        uses_unlabelled = self.model.encoder and is_coexpression and self.init is None
        expected = "no files without model=performer or pooled, and none beside init"
        require(uses_unlabelled or not self.unlabelled, "unlabelled", self.unlabelled, expected)
        if self.init is None:
            require(self.init_mode == "full", "init_mode", self.init_mode, "init=FOLDER beside it")


@dataclass(kw_only=True)
class PretrainOptions(NetworkOptions):
    """Train an encoder on unlabelled cells to predict masked expression; its `head` is not used."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self.model.encoder,
            "model.encoder",
            self.model.encoder,
            "true with pretrain, which trains the encoder",
        )
        expected = "attention between tokens with pretrain: model=tiny, base or scbert"
        require(
            not self.model.uses_cross_attention, "model.positions", self.model.positions, expected
        )
        both = self.init is not None and self.genes_path is not None
        require(
            not both,
            "genes_path",
            self.genes_path,
            "no genes_path beside init, which has its genes",
        )
