"""What bundle.json states about a model: its network, its scores, and how it was made (read by model/content.py).

The names of fields are the keys, which docs/formats.md describes; what is None is left out.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, NamedTuple, TypeAlias

from scperformer.base.messages import name_problem
from scperformer.config.options import checked
from scperformer.config.training import HeadConfig, Mechanism, ModelConfig, TokensConfig
from scperformer.trust.confidence import Calibration

LIMIT = 2**63  # of 64 bits; neither infinity nor NaN is below it
Name: TypeAlias = Annotated[str, (lambda text: name_problem(text) is None, "a name in one line")]
Count: TypeAlias = Annotated[
    int, (lambda x: type(x) is int and 0 <= x < LIMIT, "a whole number of 0 or more")
]
Number: TypeAlias = Annotated[
    float, (lambda x: type(x) in (int, float) and abs(x) < LIMIT, "a finite number")
]
Scores: TypeAlias = dict[str, float]  # accuracy, macro_f1, weighted_f1, and perhaps the loss
Values: TypeAlias = dict[str, Any]  # options, and numbers for people


class NetworkParts(NamedTuple):
    """The options of a network of ours."""

    tokens: TokensConfig
    model: ModelConfig
    attention: Mechanism
    head: HeadConfig


@dataclass
class TrainingConfig:
    """How a Performer was trained, as a model that adapts to a file is trained again."""

    optim: Values
    max_steps: Count
    batch_size: Count


@dataclass(kw_only=True)
class NetworkConfig:
    """All to build the network, and to normalise cells for it. Several studies have no network of their own."""

    target_sum: Number | None  # None: a network of another tool, for raw counts
    tokens: Values | None = None
    model: Values | None = None
    attention: Mechanism | None = None
    head: Values | None = None
    network: Mechanism | None = None  # of another tool (model/imported.py)
    training: TrainingConfig | None = None
    own_totals: bool | None = None  # whether cells are normalised over the genes of the model
    min_genes: Count | None = None  # that a cell has to express, for the tool of an imported model

    @cached_property
    def parts(self) -> NetworkParts:
        """The options of the network, checked; a ValueError if they are missing or fit no network."""
        if self.tokens is None or self.model is None or self.attention is None:
            raise ValueError("no tokens, model or attention in its configuration")
        tokens = checked(TokensConfig, self.tokens, "tokens.")
        model = checked(ModelConfig, self.model, "model.")
        return NetworkParts(
            tokens, model, self.attention, checked(HeadConfig, self.head or {}, "head.")
        )


@dataclass(kw_only=True)
class BatchScores:
    """The accuracy on each batch of a fit to the others, None of few cells; the largest batch effect between them."""

    accuracy: list[Number | None]
    batch_effect: Number


@dataclass(kw_only=True)
class OutOfFold:
    """Scores on cells of the reference, by fits to the others."""

    num_cells: Count
    accuracy: Number
    macro_f1: Number
    weighted_f1: Number
    loss: Number
    branches: dict[str, dict[str, Number]] | None = None  # the scores of each branch alone
    baseline: dict[str, Number] | None = None
    batches: BatchScores | None = None


@dataclass(kw_only=True)
class EncoderFacts:
    """The encoder in words."""

    kind: Name
    size: Name
    attention: Name
    device: Name


@dataclass(kw_only=True)
class Metrics:
    """Scores, and the factor of each branch in the logits; `loss` and `naive_loss` are of pretraining."""

    num_val_cells: Count | None = None
    loss: float | None = None
    naive_loss: float | None = None
    model: Scores | None = None
    baseline: Scores | None = None
    scales: dict[str, Number] | None = None
    encoder_gain: Scores | None = None
    out_of_fold: OutOfFold | None = None
    encoder_alone: Scores | None = None
    best_epoch: Count | None = None  # 0: branches that were fitted have no epochs
    temperature: Number | None = None  # of the joint probabilities of several studies
    calibration: Calibration | None = None
    linear_branch: Values | None = None  # its options for few cells, as in a refit
    encoder: EncoderFacts | None = None
    seconds: float | None = None

    @property
    def known_accuracy(self) -> float:
        """The out-of-fold accuracy; NaN if it is not recorded."""
        return math.nan if self.out_of_fold is None else self.out_of_fold.accuracy


@dataclass(kw_only=True)
class OriginalModel:
    """The model from which a training started (with `num_known_genes`), or that was adapted to a file."""

    name: str
    hash: str
    num_genes: Count | None = None
    num_known_genes: Count | None = None
    licence: Name | None = None
    mode: str | None = None


@dataclass(kw_only=True)
class BatchNames:
    """The batches of a reference."""

    key: str | None = None
    names: list[Name]


@dataclass(kw_only=True)
class ProfileFacts:
    """The packaged profiles of a tissue (model/tissues.py)."""

    families: list[Count]  # of each label
    studies: list[str]
    others: list[str]  # labels of common types that do not occur in every tissue


@dataclass(kw_only=True)
class MarkerFacts:
    """The list of marker genes by which the cells of a reference were named."""

    source: Name
    # of each label, with those of its parents; those of the model alone
    genes: dict[Name, list[Name]]


@dataclass(kw_only=True)
class Provenance:
    """How a model was made; models with labels have `reference` and `label_key`, and encoders `corpus`."""

    corpus: list[Values] | None = None  # files of pretraining
    reference: str | None = None
    reference_path: str | None = None
    reference_sha256: str | None = None
    init: OriginalModel | None = None
    label_key: str | None = None
    called: bool | None = None  # whether labels are calls of this program
    named: list[Name] | None = None  # labels that a person gave to clusters
    num_cells: Count
    cells_per_label: dict[str, Count] | None = None
    input: str | None = None
    split: Values | None = None
    rare_labels: Values | None = None
    notes: list[str] | None = None
    batches: BatchNames | None = None
    tissue: Name | None = None
    resembles: Name | None = None  # the packaged tissue of the labels
    ontology: Name | None = None
    cells_without_label: Count | None = None
    unlabelled: list[str] | None = None
    kept_cells: dict[str, Count] | None = None
    seed: Count
    options: Values | None = None
    versions: dict[str, str] | None = None
    device: str | None = None
    species: Name | None = None
    imported: dict[str, Name] | None = None  # the origin of a model of another tool
    licence: Name | None = None
    profiles: ProfileFacts | None = None
    markers: MarkerFacts | None = None
    adapted_from: OriginalModel | None = None  # with the entries below
    coverage: str | None = None
    depth: Number | None = None
    num_kept_cells: Count | None = None
    expected_accuracy: Number | None = None


@dataclass(kw_only=True)
class Bundle:
    """A model without its arrays."""

    name: Name
    labels: list[Name]
    ontology_term_ids: list[Name]  # a Cell Ontology id or "unknown" for each label
    config: NetworkConfig
    metrics: Metrics
    provenance: Provenance


@dataclass(kw_only=True)
class StudyEntry:
    """The model of one of several studies, in a folder of its own; the joint labels that each of its labels means."""

    name: Name
    meaning: list[list[Count]]


@dataclass(kw_only=True)
class BundleFile(Bundle):
    """All of bundle.json but its version."""

    files: dict[str, str]  # checksums
    studies: list[StudyEntry] = field(default_factory=list)
    tree: dict[str, dict[str, Name]] | None = None  # `parents` and `terms` of the label tree
