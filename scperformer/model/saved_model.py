"""A trained model as plain data, without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scperformer.base.errors import one_line
from scperformer.labels.tree import LabelTree
from scperformer.model.arrays import HeldOut, ReferenceCells
from scperformer.model.bundle import BatchScores, Bundle, EncoderFacts

BRANCHES = {"linear": "linear branch", "encoder": "encoder"}
SCORES = ("accuracy", "macro_f1", "loss")  # of a branch on out-of-fold cells
HASHES = "reference.hashes"  # in the weights: a hash of each cell of the reference (cells/repeats.py), uint64
MAX_SHOWN_LABELS = 20  # in its summary; its card has all
# The network of CellTypist, in config.network: its name, and the limit of standardised expression.
STANDARDISED = "standardised"
CLIP = 10.0
SILENT = 0.01  # an encoder with a smaller scale decides no label


@dataclass
class Study:
    """One of several studies of a reference: a model of its own."""

    name: str  # as users know it, such as the name of its file
    saved: "SavedModel"
    meaning: np.ndarray  # the joint labels that each label of the study stands for, boolean


@dataclass(kw_only=True)
class SavedModel(Bundle):
    """A trained model as plain data: G genes, C labels in the order of the logits.

    An encoder (from `pretrain`) has no labels. The joint model of several studies has their labels and genes, and no
    weights of its own.
    """

    genes: list[str]  # in order
    gene_means: np.ndarray  # float32 G: mean ln(1 + cp10k) over the reference
    # model.*: the network's state; baseline.weight, baseline.bias; reference.hashes
    weights: dict[str, np.ndarray] = field(repr=False)
    # SHA-256 of bundle.json, which holds the checksums of the other files; "" before saving
    hash: str = ""
    # written with the model; `load_reference_cells` reads them again
    reference_cells: ReferenceCells | None = field(default=None, repr=False)
    has_reference_cells: bool = False  # its folder stores cells of the reference
    tree: LabelTree | None = None  # over the labels
    held_out: HeldOut | None = field(default=None, repr=False)
    studies: list[Study] = field(default_factory=list, repr=False)

    @property
    def is_tissue(self) -> bool:
        """Whether it is the profiles of a tissue (model/tissues.py), before they are fitted to a file."""
        return self.provenance.profiles is not None and not self.weights

    @property
    def can_be_refitted(self) -> bool:
        """Whether it, or the model of one of its studies, has stored cells of the reference."""
        own = self.has_reference_cells or self.reference_cells is not None
        return own or any(study.saved.can_be_refitted for study in self.studies)

    @property
    def families(self) -> np.ndarray | None:
        """The number of the family of each label of a tissue (model/tissues.py), int64 C; None for other models."""
        profiles = self.provenance.profiles
        return None if profiles is None else np.array(profiles.families, dtype=np.int64)

    @property
    def others(self) -> list[str]:
        """Labels of common types (model/tissues.py) that do not occur in every tissue; else none."""
        return [] if self.provenance.profiles is None else self.provenance.profiles.others

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of each label of `others`: its parent in the tree, or without one the label itself."""
        parents = {} if self.tree is None else self.tree.parents
        return {label: parents.get(label, label) for label in self.others}

    @property
    def batch_scores(self) -> BatchScores:
        """The accuracies on the batches of the reference, and the largest batch effect between them, 0: not known."""
        fold = self.metrics.out_of_fold
        return (
            BatchScores(accuracy=[], batch_effect=0.0)
            if fold is None or fold.batches is None
            else fold.batches
        )

    @property
    def imported(self) -> Mapping[str, str]:
        """The origin of an imported model: `tool`, `file`, `sha256`, `tested` and more; empty for our own."""
        return self.provenance.imported or {}

    @property
    def lacks(self) -> list[str]:
        """What an imported model cannot do without labelled cells; empty for our own models."""
        if not self.imported or not self.labels:
            return []
        evidence = ["calibrated confidence", "novelty", "sets of labels", "expected accuracy"]
        can_adapt = self.has_reference_cells or self.provenance.adapted_from is not None
        return (evidence if self.held_out is None else []) + (
            [] if can_adapt else ["adapting to panels and depth"]
        )

    @property
    def summary(self) -> str:
        """The labels, the number of genes, the tissue and the origin, on one line."""
        shown = [
            *self.labels[:MAX_SHOWN_LABELS],
            *(["..."] if len(self.labels) > MAX_SHOWN_LABELS else []),
        ]
        labels = (
            f"{len(self.labels)} labels ({', '.join(shown)})"
            if self.labels
            else "encoder without labels"
        )
        tissue = "" if self.provenance.tissue is None else f", tissue {self.provenance.tissue}"
        origin = f"; from {self.imported['tool']}" if self.imported else ""
        lacks = f", without {', '.join(self.lacks)}" if self.lacks else ""
        return one_line(f"{labels}, {len(self.genes)} genes{tissue}{origin}{lacks}")

    @property
    def scales(self) -> dict[str, float]:
        """The factor of each branch (`linear`, `encoder`) in the logits; a branch that is off is left out."""
        return {name: float(scale) for name, scale in (self.metrics.scales or {}).items()}

    @property
    def branch_scores(self) -> dict[str, dict[str, float]]:
        """Out-of-fold `accuracy`, `macro_f1` and `loss` of `linear`, `encoder` and `both`; empty for one branch."""
        fold = self.metrics.out_of_fold
        parts = {} if fold is None else {**(fold.branches or {}), "both": vars(fold)}
        if parts.keys() != {*BRANCHES, "both"} or not all(
            set(SCORES) <= set(scores) for scores in parts.values()
        ):
            return {}
        return {
            part: {name: float(scores[name]) for name in SCORES} for part, scores in parts.items()
        }

    @property
    def importance(self) -> np.ndarray:
        """The importance of each gene for the labels, float64 G: its mean times the spread of its weights over labels.

        The weights come from logistic regression; an encoder has none, and the means stand alone. Weights for
        standardised expression, in which all genes vary alike, count without the means. A gene of several studies has
        its largest importance.
        """
        if self.studies:
            best = dict.fromkeys(self.genes, 0.0)
            for study in self.studies:
                for gene, value in zip(
                    study.saved.genes, study.saved.importance.tolist(), strict=True
                ):
                    best[gene] = max(best.get(gene, 0.0), value)
            # a gene may have another name in a study
            return np.array([best[gene] for gene in self.genes])
        if "model.deviation" in self.weights:
            return np.asarray(self.weights["model.weight"], dtype=np.float64).std(axis=1)
        means = np.asarray(self.gene_means, dtype=np.float64)
        weight = self.weights.get("baseline.weight")
        return means if weight is None else means * np.asarray(weight, dtype=np.float64).std(axis=1)


def encoder_is_silent(scales: Mapping[str, float]) -> bool:
    """Whether a model has both branches and its labels come from the linear branch alone."""
    return len(scales) == len(BRANCHES) and scales["encoder"] < SILENT


def both_have_a_part(scales: Mapping[str, float]) -> bool:
    """Whether a model has both branches, and the logits of both count."""
    return len(scales) == len(BRANCHES) and min(scales.values()) > 0


def branch_names(encoder: EncoderFacts | None) -> dict[str, str]:
    """Return how to name the branches of a model and both together, given what it records about its encoder."""
    return BRANCHES | ({} if encoder is None else {"encoder": encoder.kind}) | {"both": "both"}


def sum_of_branches(scales: Mapping[str, float]) -> str:
    """Describe the logits, as in "1.20 x linear branch + 0.35 x encoder"."""
    return " + ".join(f"{scale:.2f} x {BRANCHES[name]}" for name, scale in scales.items())
