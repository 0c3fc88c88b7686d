"""The record of an annotation: what `predict` states in uns about a run, and what it found in the cells.

`to_uns` writes a `Record`, and `Record.from_uns` reads it back: a file may have been changed since, or made by hand.
Arrays are 1-D unless said. The names of fields are the keys in uns, which docs/formats.md describes.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np
import pandas as pd

from scperformer.base.records import from_plain
from scperformer.io.gene_overlap import Overlap

Texts: TypeAlias = Annotated[np.ndarray, "a list of texts"]
Numbers: TypeAlias = Annotated[np.ndarray, "a list of numbers"]
Table: TypeAlias = Annotated[np.ndarray, "a table of numbers"]

# to check
CLUSTER_ENTRIES = ("label", "looks_like", "term", "num_cells", "difference", "too_high", "too_low")
BETWEEN_LABELS = "; "  # in a text; labels may have commas
EXCHANGE_ENTRIES = ("exchanged_from", "exchanged_to", "exchanged_cells")


class Part:
    """A part of a record. Of each group of `parallel` lists, all exist, and are equally long, or none does."""

    parallel: ClassVar[tuple[tuple[str, ...], ...]] = ()

    def __post_init__(self) -> None:
        for names in self.parallel:
            lengths = {
                -1 if (values := getattr(self, name)) is None else len(values) for name in names
            }
            if len(lengths) > 1:
                raise ValueError(
                    f" has lists of different lengths in {' and '.join(map(repr, names))}"
                )


def texts(values: Any) -> np.ndarray:
    """Return texts as uns has them: an array of objects."""
    return np.array(list(values), dtype=object)


@dataclass(kw_only=True)
class RunRecord:
    """When and how the annotation was made."""

    date: str = ""  # UTC
    host: str = ""
    command: str = ""
    precision: str | None = None  # of the network's products, if it was chosen for the file
    identity: str | None = None  # JSON: all that the annotation depends on


@dataclass(kw_only=True)
class ModelRecord:
    """The model."""

    name: str
    hash: str
    path: str
    labels: Texts
    trained_on: str
    label_key: str
    num_cells: int
    seed: int
    tissue: str = ""
    trained_on_sha256: str = ""
    scales: dict[str, float] = field(default_factory=dict)
    format_version: int = 0
    imported: dict[str, str] | None = None  # its origin in a different tool
    lacks: Texts | None = None
    studies: Texts | None = None
    encoder: dict[str, str] | None = None
    branch_scores: dict[str, dict[str, float]] | None = None

    def __post_init__(self) -> None:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("['labels'] has a label twice")
        if self.lacks is not None and not (self.imported or {}).keys() >= {
            "tool",
            "file",
            "sha256",
        }:
            raise ValueError(" has 'lacks' without the origin of the model")


@dataclass(kw_only=True)
class InputRecord:
    """The file, and how its expression was read."""

    file: str
    sha256: str
    source: str
    kind: str
    log_base: float
    total: float
    relative: bool
    notes: Texts
    from_smallest: bool = False
    is_gene: Numbers | None = None


@dataclass(kw_only=True)
class StudiesRecord:
    """The studies of the reference, by their distance to the file."""

    name: Texts
    weight: Numbers
    relative_novelty: Numbers


@dataclass(kw_only=True)
class CoverageRecord:
    """The genes and the depth of the file, and whether the model was refitted to them."""

    adapted: bool = False
    num_genes: int = 0
    depth: float = np.nan
    depth_share: float = np.nan
    thinned_to: float = 1.0
    key: str = ""
    expected_accuracy: float = np.nan
    accuracy_with_all_genes: float = np.nan
    of: str | None = None  # the file of all cells of the sample
    of_sha256: str | None = None
    studies: StudiesRecord | None = None


@dataclass(kw_only=True)
class RepeatsRecord:
    """Cells of the reference among the cells that were looked at."""

    num_seen: int
    num_cells: int

    def __post_init__(self) -> None:
        if self.num_cells > 0 and not self.num_seen > 0:
            raise ValueError(" without a number of cells above 0 in 'num_seen'")


@dataclass(kw_only=True)
class CheckRecord(Part):
    """Clusters to check, the most different first; and clusters whose cells take the label of a similar type."""

    parallel = (CLUSTER_ENTRIES, EXCHANGE_ENTRIES)

    text: str
    tissue: str | None = None
    num_looked_at: int | None = None
    num_clusters: int | None = None
    label: Texts | None = None
    looks_like: Texts | None = None
    term: Texts | None = None  # its ontology id
    num_cells: Numbers | None = None
    difference: Numbers | None = None
    too_high: Texts | None = None
    too_low: Texts | None = None
    are_unknown: bool = False  # whether their cells are unknown
    exchanged_from: Texts | None = None  # labels that a cluster loses
    exchanged_to: Texts | None = None
    exchanged_cells: Numbers | None = None
    num_returned: int | None = None

    @property
    def clusters(self) -> pd.DataFrame:
        """The clusters to check, a row for each, with the columns of `CLUSTER_ENTRIES`."""
        return pd.DataFrame(
            {name: () if self.label is None else getattr(self, name) for name in CLUSTER_ENTRIES}
        )

    @property
    def exchanges(self) -> list[tuple[str, str, int]]:
        """The labels that cells lose, the labels of a similar type that they take, and the number of these cells."""
        entries = [getattr(self, name) for name in EXCHANGE_ENTRIES]
        return [] if entries[0] is None else list(zip(*entries, strict=True))

    @property
    def taken_labels(self) -> list[str]:
        """The labels that cells took from others."""
        return [label for _, taken, _ in self.exchanges for label in taken.split(BETWEEN_LABELS)]


@dataclass(kw_only=True)
class FineTypesRecord(Part):
    """Pairs of labels that were told apart at the gap between their cells (annotation/fine_types.py)."""

    parallel = (("first", "second", "cut", "num_cells", "num_changed"),)

    first: Texts
    second: Texts
    cut: Numbers  # logarithm of the ratio of the probability of the second label to that of the first
    num_cells: Numbers  # of both labels
    num_changed: Numbers  # which get the other label

    @property
    def pairs(self) -> pd.DataFrame:
        """A row for each pair."""
        return pd.DataFrame({name: getattr(self, name) for name in self.parallel[0]})


@dataclass(kw_only=True)
class MarkersRecord(Part):
    """The list of marker genes by which the reference was named, and labels whose markers are of another type."""

    parallel = (("label", "gene"), ("called", "share"))

    source: str  # its name
    label: Texts  # of each marker gene
    gene: Texts
    called: Texts
    # of the sampled cells of each of these labels that have the markers of another one
    share: Numbers

    @property
    def genes_of_labels(self) -> dict[str, list[str]]:
        """The marker genes of each label."""
        return {
            str(label): genes.tolist()
            for label, genes in pd.Series(self.gene).groupby(self.label, sort=False)
        }


@dataclass(kw_only=True)
class CuratedRecord(Part):
    """The clusters that a person has named: a row for each call that their cells had before."""

    parallel = (("cluster", "before", "after", "num_cells"),)

    by: str
    date: str
    cluster: Texts
    before: Texts
    after: Texts
    num_cells: Numbers

    @property
    def labels(self) -> dict[str, int]:
        """The number of cells of each label that the person gave."""
        return pd.Series(self.num_cells).groupby(self.after, sort=False).sum().to_dict()


@dataclass(kw_only=True)
class ConstraintsRecord:
    """Labels that cannot occur, and the factor of the probability of each label."""

    denied: Texts
    weights: Numbers


@dataclass(kw_only=True)
class QualityRecord:
    """Cells of low quality, and likely doublets."""

    num_low: int
    least_genes: float
    highest_mitochondrial: float
    num_doublets: int
    doublet_note: str


@dataclass(kw_only=True)
class TreeRecord(Part):
    """The label tree; the parent of the highest nodes is empty."""

    parallel = (("nodes", "parents", "ontology_term_ids"),)

    nodes: Texts
    parents: Texts
    ontology_term_ids: Texts
    num_levels: int = 0
    num_backed_off: int = 0


@dataclass(kw_only=True)
class BinsRecord(Part):
    """Bins of the reliability curve."""

    parallel = (("confidence", "num_cells"),)

    confidence: Numbers
    num_cells: Numbers
    accuracy: Numbers | None = None


@dataclass(kw_only=True)
class CalibrationRecord:
    """The calibration of out-of-fold confidences."""

    num_cells: int
    error: float
    bins: BinsRecord


@dataclass(kw_only=True)
class NoveltyRecord:
    """The flag of unknown cells, and the out-of-fold cells behind it."""

    unknown_fpr: float
    num_cells: int | None = None


@dataclass(kw_only=True)
class ShiftRecord:
    """The distribution shift (trust/shift.py), and the accuracy to expect."""

    kind: str
    relative_novelty: float = np.nan
    batch_effect: float = np.nan
    num_cells: int = 0
    has_both: bool = False
    reference_batch_effect: float = 0.0
    resemblance: float = np.nan
    factor: float = 1.0
    encoder_weight: float = 1.0
    temperature: float = 1.0
    expected_lowest: float = np.nan
    expected_highest: float = np.nan
    gene_factors: Numbers | None = None
    logit_offsets: Table | None = None
    sum_offsets: Table | None = None
    label_overlap: Numbers | None = None


@dataclass(kw_only=True)
class ProfilesRecord:
    """The resemblance to the profiles of a tissue, and the accuracy to expect."""

    expected_lowest: float
    expected_highest: float
    centre: Numbers
    shares: Numbers
    resemblance: float = np.nan
    gene_factors: Numbers | None = None
    # broad types by which cells of other types are named, if the tissue is not known
    kinds: Texts | None = None


@dataclass(kw_only=True)
class TissueRecord(Part):
    """The tissue, and how it was found."""

    parallel = (("types", "type_cells"), ("next", "next_scores"))

    name: str
    title: str
    in_capitals: bool
    how: str
    score: float | None = None
    num_cells: int | None = None
    types: Texts | None = None  # specific ones, with the number of their cells
    type_cells: Numbers | None = None
    next: Texts | None = None  # other tissues, with their scores
    next_scores: Numbers | None = None
    # share of the compared cells that would be called another type
    next_changed: Numbers | None = None
    instead: str | None = None  # a tissue that fits better than the given one


@dataclass(kw_only=True)
class BatchesRecord(Part):
    """Batches whose effects were corrected apart; `gene_factors` are batches x genes."""

    parallel = (("name", "num_cells"), ("kind", "batch_effect"))

    key: str
    name: Texts
    num_cells: Numbers
    gene_factors: Table
    factor: Numbers | None = None
    kind: Texts | None = None
    relative_novelty: Numbers | None = None
    batch_effect: Numbers | None = None


# severity of a remark: for information; to be checked; labels are of no use
NOTE, CHECK, STOP = ("note", "check", "stop")


@dataclass(frozen=True)
class Remark:
    """What is worth saying about the cells of a file."""

    code: str  # of the kind of remark
    severity: str  # `NOTE`, `CHECK` or `STOP`
    text: str  # the same for all files with this remark
    value: str = ""  # of the file

    @property
    def sentence(self) -> str:
        return f"{self.text}: {self.value}" if self.value else self.text


@dataclass(kw_only=True)
class RemarksRecord(Part):
    """Remarks, whose fields are lists."""

    parallel = (("code", "severity", "text", "value"),)

    code: Texts
    severity: Texts
    text: Texts
    value: Texts

    @classmethod
    def of(cls, remarks: Sequence[Remark]) -> "RemarksRecord":
        return cls(
            **{name: texts(getattr(remark, name) for remark in remarks) for name in cls.parallel[0]}
        )

    def __iter__(self) -> Iterator[Remark]:
        return itertools.starmap(
            Remark, zip(self.code, self.severity, self.text, self.value, strict=True)
        )


@dataclass(kw_only=True)
class Record:
    """Everything that uns has about an annotation."""

    model: ModelRecord
    input: InputRecord
    genes: Overlap
    repeats: RepeatsRecord
    versions: dict[str, str]
    num_unknown: int
    remarks: RemarksRecord
    config_json: str = ""
    run: RunRecord = field(default_factory=RunRecord)
    coverage: CoverageRecord = field(default_factory=CoverageRecord)
    seconds: float = np.nan
    check: CheckRecord | None = None
    fine_types: FineTypesRecord | None = None
    markers: MarkersRecord | None = None
    constraints: ConstraintsRecord | None = None
    baseline: dict[str, str] | None = None
    quality: QualityRecord | None = None
    sets: dict[str, float] | None = None
    clusters: dict[str, Any] | None = None
    curated: CuratedRecord | None = None
    tree: TreeRecord | None = None
    # `num_cells`, and `num_decided`: labels that the encoder changed
    encoder: dict[str, int] | None = None
    calibration: CalibrationRecord | None = None
    novelty: NoveltyRecord | None = None
    fit: dict[str, float] | None = None
    shift: ShiftRecord | None = None
    profiles: ProfilesRecord | None = None
    tissue: TissueRecord | None = None
    batches: BatchesRecord | None = None
    droplets: dict[str, int] | None = None
    # `of` an entry of obsm, from `num_cells` random cells, with `seed`
    umap: dict[str, Any] | None = None
    other_species: dict[str, int] | None = None
    sheet: Texts | None = None  # columns of a sample sheet, with the values of the sample
    sheet_values: Texts | None = None

    def __post_init__(self) -> None:
        if (self.tissue is None) != (self.profiles is None):
            raise ValueError(" has one of 'tissue' and 'profiles' without the other")
        if self.calibration is not None and self.novelty is None:
            raise ValueError(" has 'calibration' without 'novelty'")

    @property
    def expected_accuracy(self) -> tuple[float, float]:
        """The lowest and the highest accuracy to expect; NaN if it is not known."""
        trust = self.profiles or self.shift
        if trust is not None:
            return trust.expected_lowest, trust.expected_highest
        return self.coverage.expected_accuracy, self.coverage.expected_accuracy

    @classmethod
    def from_uns(cls, value: Any, key: str) -> "Record":
        """Read the record `uns[key]`; a ValueError says which entry is missing or of another kind."""
        return from_plain(cls, value, f"uns['{key}']")


def to_uns(record: Any) -> dict[str, Any]:
    """Return a record, a dataclass, as a mapping; what is None is left out."""

    def known(entries: list[tuple[str, Any]]) -> dict[str, Any]:
        return {
            name: texts(x) if isinstance(x, list) else x for name, x in entries if x is not None
        }

    return asdict(record, dict_factory=known)
