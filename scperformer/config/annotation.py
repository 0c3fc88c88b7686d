"""The options of annotation: of `predict`, and of the steps that annotate cells to compare with."""

from dataclasses import dataclass, field

from scperformer.config.options import (
    BELOW_ONE,
    NAME,
    ONE_OR_MORE,
    ONTOLOGY,
    SHARE,
    THREADS,
    ModelOptions,
    choice,
    option,
    require,
)


@dataclass(kw_only=True)
class AnnotationOptions(ModelOptions):
    """How a model is applied to cells, and which labels they get."""

    key_added: str = option("scperformer", NAME)  # prefix of everything that is written
    replace_annotation: bool = False  # replace an annotation of the same prefix that a file has
    batch_size: int = option(64, ONE_OR_MORE)  # cells per batch on a GPU; on a CPU the length of the cells decides
    threads: int = option(1, THREADS)  # CPU threads of torch, each with a batch of its own: more need more memory
    device: str = choice("auto", "cpu", "cuda")  # where the network runs; auto: a GPU that torch can use, else the CPU
    precision: str = choice("32-true", "bf16-mixed")  # bf16-mixed: on a GPU or a CPU that computes in bfloat16
    # expected false-positive rate of the unknown flag: share of cells like the reference's that get it; 0: off
    unknown_fpr: float = option(0.05, BELOW_ONE)
    # how far a file is from the reference as a whole changes its calls, confidences and unknown flags; false: it does
    # not; see docs/trust.md#cells-of-another-study
    shift: str = choice("auto", "false")
    # cells with a lower confidence are flagged as unknown, too, unless a parent in the model's label tree reaches it
    min_confidence: float = option(0.0, SHARE)
    # also give each cell a set of labels that contains the true one with probability 1 - alpha; see docs/trust.md
    alpha: float | None = option(None, (lambda alpha: 0 < alpha < 1, "a number between 0 and 1"))
    # the only labels that can occur; see docs/labels.md#constraints
    allow_labels: list[str] = field(default_factory=list)
    deny_labels: list[str] = field(default_factory=list)  # labels that cannot occur
    # shares of labels that confidences assume; em: estimated on all cells of the file, on which calls then depend
    prior: str = choice("reference", "em")
    # also one label per cluster, by majority: an obs column, or auto (many small clusters); see docs/labels.md#clusters
    clusters: str | None = None
    # also mark cells of low quality and score doublets, both among the cells of the file; see docs/labels.md#quality
    quality: bool = False
    # source of ontology ids and label tree instead of the model, as in `train`
    ontology: str | None = option(None, ONTOLOGY)
    # fit the model anew to the genes and the depth of a file, on the cells that it stores; auto: if a file has below
    # 98 % of the informative expression or below 75 % of the depth; see docs/panels.md
    adapt: str = choice("auto", "true", "false")
    # the file of a whole sample, for files with some of its cells: depth and batch effect are then those of the whole,
    # and so are labels and probabilities; see docs/trust.md#parts-of-a-sample
    condition_of: str | None = None
    adapted_folder: str | None = None  # keep adapted models in this folder, and take them from there; null: nowhere

    def __post_init__(self) -> None:
        self.adapt = self.adapt.lower()  # Hydra turns the word true into True
        self.shift = self.shift.lower()
        super().__post_init__()
        is_name = "/" not in self.key_added and self.key_added not in (".", "..")
        require(is_name, "key_added", repr(self.key_added), "a name without '/'")
        changes_probabilities = bool(self.allow_labels or self.deny_labels) or self.prior == "em"
        expected = "no alpha beside allow_labels, deny_labels or prior=em: its sets are for probabilities as they are"
        require(self.alpha is None or not changes_probabilities, "alpha", self.alpha, expected)
