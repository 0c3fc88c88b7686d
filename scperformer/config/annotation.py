"""The options of annotation: of `predict`, and of the steps that annotate cells to compare with."""

from dataclasses import dataclass, field

from scperformer.base.messages import name_problem
from scperformer.config.options import (
    BELOW_ONE,
    NAME,
    ONE_OR_MORE,
    ONTOLOGY,
    SHARE,
    THREADS,
    TissueOptions,
    choice,
    option,
    require,
)


@dataclass(kw_only=True)
class AnnotationOptions(TissueOptions):
    """How a model is applied to cells, and which labels they get."""

    key_added: str = option("scperformer", NAME)  # prefix of all entries; another one keeps an earlier annotation
    replace_annotation: bool = False  # to annotate a file again: replace its annotation of this prefix
    batch_size: int = option(64, ONE_OR_MORE)  # cells per batch on a GPU; fewer for one with little memory
    threads: int = option(1, THREADS)  # CPU threads of torch, where cores are free
    device: str = choice("auto", "cpu", "cuda")  # where the network runs; auto: a GPU that torch can use, else the CPU
    # auto: on a GPU bf16-mixed, else tf32, if it gives 999 of 1,000 cells of the file the labels of 32-true
    precision: str = choice("auto", "32-true", "tf32", "bf16-mixed")
    # expected false-positive rate of the unknown flag; more to find new cell types, 0 to leave none unknown
    unknown_fpr: float = option(0.05, BELOW_ONE)
    # correction for the batch effect of the file; false for comparisons without it; see
    # docs/trust.md#cells-of-another-study
    shift: str = choice("auto", "false")
    # for fewer but safer labels: cells below this confidence get a parent label that reaches it, or are unknown; unset:
    # 0.5 for profiles of a tissue, and 0 for a model
    min_confidence: float | None = option(None, SHARE)
    # for statistics: a set of labels for each cell, with the true one in 1 - alpha of the cells; see docs/trust.md
    alpha: float | None = option(None, (lambda alpha: 0 < alpha < 1, "a number between 0 and 1"))
    # for files of several technologies or samples: obs column whose batch effects are corrected apart; see
    # docs/trust.md#several-batches-in-a-file
    batch_key: str | None = None
    # for sorted samples: the only labels that can occur; see docs/labels.md#constraints
    allow_labels: list[str] = field(default_factory=list)
    deny_labels: list[str] = field(default_factory=list)  # labels that the tissue cannot have
    # for labels by clusters, too: an obs column, or auto (many small clusters); see docs/labels.md#clusters
    clusters: str | None = None
    # marker genes of each cluster with its label, for cell browsers and language models: .csv or .tsv (also .gz), with
    # several files calls/{sample}.tsv; see docs/labels.md#marker-genes-of-clusters
    markers: str | None = None
    # for models without a tree: source of ontology ids and label tree, as in `train`
    ontology: str | None = option(None, ONTOLOGY)
    # refit the model to the genes and depth of the file; auto: below 99 % of the informative expression or below 75 %
    # of the depth of the reference; see docs/panels.md
    adapt: str = choice("auto", "true", "false")
    # for a subset of a sample, the file of the whole sample: depth and batch effect are estimated on it; see
    # docs/trust.md#parts-of-a-sample
    full_sample: str | None = None
    adapted_folder: str | None = None  # for many files of one panel: a folder that keeps refitted models

    @property
    def adapts(self) -> bool:
        return self.adapt != "false"

    def __post_init__(self) -> None:
        self.adapt = self.adapt.lower()  # Hydra turns the word true into True
        self.shift = self.shift.lower()
        super().__post_init__()
        expected = "no batch_key beside shift=false, which corrects nothing"
        require(self.shift != "false" or self.batch_key is None, "batch_key", self.batch_key, expected)
        is_name = "/" not in self.key_added and self.key_added not in (".", "..") and not name_problem(self.key_added)
        require(is_name, "key_added", repr(self.key_added), "a name without '/' or control characters")
        expected = "no alpha beside allow_labels or deny_labels: its sets are for probabilities as they are"
        require(self.alpha is None or not (self.allow_labels or self.deny_labels), "alpha", self.alpha, expected)
