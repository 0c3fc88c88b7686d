"""The model of a tissue: cells are simulated from its profiles, and the linear branch is fitted for each file.

The fit to a file has its genes and its depth, as any refitted model, but no Performer, which adds nothing to cells that
are all simulated (benchmarks/NOTES.md), and no cross-validation, as simulated cells are easier than real ones.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.special import softmax

from scperformer.adaptation.adapted import Adapted
from scperformer.adaptation.compare import (
    NUM_ROUNDS,
    UNCORRECTED,
    Comparer,
    Comparison,
    MeasuredReference,
)
from scperformer.adaptation.coverage import Coverage, Measured, adapted_model, reduced, seen_rows
from scperformer.adaptation.fitted import Fit, FittedModel, damaged_record
from scperformer.adaptation.record import Record, TissueRecord
from scperformer.adaptation.which_tissue import given_tissue, rank_tissues, require_tissue
from scperformer.base.errors import InputError
from scperformer.base.progress import progress
from scperformer.base.sparse import centred
from scperformer.cells.opened import OpenedCells
from scperformer.cells.profiles import simulated_counts
from scperformer.cells.query import Query
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.fits.evidence import Fitted, fill_network
from scperformer.fits.linear import PENALTY_C, LinearOptions, fit_linear_branch
from scperformer.labels.ontology import TABLE_VERSION
from scperformer.labels.tree import best_labels
from scperformer.model.arrays import ReferenceCells
from scperformer.model.bundle import Metrics, NetworkConfig, ProfileFacts, Provenance
from scperformer.model.inference import torch_state_kept
from scperformer.model.linear import linear_logits
from scperformer.model.network import CellTypeModel
from scperformer.model.saved_model import SavedModel
from scperformer.model.tissues import collection
from scperformer.trust.batch_effect import correct_batch_effect, gene_factors
from scperformer.trust.resemblance import NUM_GENES, USUAL, Resemblance, fit_resemblance
from scperformer.trust.shift import MIN_CELLS, NO_SHIFT, Shift

log = logging.getLogger(__name__)

SEED = 0
NUM_CELLS = 60  # simulated cells of each label; 30 or 120 call other studies as well
SCALE = 1.0  # of the logits, before the probabilities are joined with those by correlation
POWERS = (0.5, 2.0)
MIN_OF_KIND = 10  # cells
# Correlation of their mean with a profile of the kind: in 17 files .37 to .75 (but muscle .33), of embryos and cell
# lines up to .35.
MIN_KIND_SCORE = 0.36
# or this median resemblance: a carcinoma has .58 (but .30 by its mean), cell lines .15
MIN_KIND_RESEMBLANCE = 0.3


@dataclass(frozen=True, eq=False, kw_only=True)
class ProfileComparison(Comparison):
    """How a query differs from the profiles of a tissue."""

    resemblance: Resemblance
    # broad types by which cells of other types are named, if the tissue is not known
    kinds: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class AdaptedTissue(Adapted):
    """The profiles of a tissue for the cells of a query."""

    compared: ProfileComparison

    @property
    def is_named_by_kind(self) -> np.ndarray:
        kinds = self.saved.kinds
        return np.array([kinds.get(label) in self.compared.kinds for label in self.saved.labels])

    def judge(self, proba: np.ndarray, x: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
        resemblance = self.compared.resemblance
        scores = resemblance.of_cells(x, resemblance.correlations(x))
        return resemblance.joined(proba, x, np.asarray(self.saved.families)), scores

    def novelty(self, scores: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        return self.compared.resemblance.novelty(scores)


@dataclass(repr=False)
class TissueModel(FittedModel):
    """The profiles of a tissue; the network is fitted to each file."""

    is_simulated = True
    min_confidence = 0.5
    kind_of_adapted = AdaptedTissue

    def stored_cells(self, options: AnnotationOptions) -> ReferenceCells:
        if not options.adapts:
            found = f"adapt=false and the profiles of {self.saved.name}, which are no fitted model"
            raise InputError(
                "adapt-tissue", found, "a model named by model_path", "leave adapt=false out"
            )
        return super().stored_cells(options)

    def fitted_to(
        self, measured: Measured, coverage: Coverage, options: AnnotationOptions
    ) -> tuple[FittedModel, float]:
        return self.adapted_to(
            measured.stored, coverage, measured.sample.path, options.adapted_folder
        ), math.nan

    @progress("fitting the tissue to the genes and the depth of a file")
    def refit(self, stored: ReferenceCells, coverage: Coverage) -> SavedModel:
        """Fit the linear branch to simulated cells as a query would have measured them."""
        saved = self.saved
        x = reduced(stored, coverage, saved.config.target_sum, SEED)
        options = LinearOptions(POWERS, PENALTY_C, class_weights="none", weighting="signal")
        fitted = Fitted(fit_linear_branch(x, stored.labels, options))
        network = CellTypeModel(x.shape[1], len(saved.labels), **saved.config.parts._asdict())
        with torch.no_grad():
            fill_network(network, fitted, saved.scales)
        weights = {f"model.{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
        return adapted_model(
            saved, coverage, x, None, config=replace(saved.config, own_totals=True), weights=weights
        )

    def comparer(
        self, reference: MeasuredReference, options: AnnotationOptions
    ) -> "ProfileComparer":
        return ProfileComparer(self, reference)

    def recorded_comparison(self, fit: Fit, record: Record) -> ProfileComparison:
        compared = super().recorded_comparison(fit, record)
        profiles = record.profiles
        cells = fit.reference.cells
        if profiles is None or (len(profiles.centre), len(profiles.shares)) != (
            len(self.saved.genes),
            len(self.saved.labels),
        ):
            place = f"in uns of {fit.measured.query.path}"
            raise damaged_record(f"profiles/centre and profiles/shares that do not fit, {place}")
        centre, shares = (
            np.asarray(each, np.float64) for each in (profiles.centre, profiles.shares)
        )
        return ProfileComparison(
            **vars(compared),
            resemblance=fit_resemblance(centre, shares, cells.values, cells.labels),
        )


@dataclass(frozen=True, eq=False)
class ProfileComparer(Comparer):
    """Compares queries with the profiles of a tissue, whose model was fitted to them.

    They are never thinned, as the cells of the profiles are simulated.
    """

    def compare(
        self, query: Query, depth_share: float, options: AnnotationOptions
    ) -> ProfileComparison:
        factors, calls, x = self.called(query)
        saved = self.model.saved
        cells = self.reference.cells
        of_file = x
        if x.shape[0] < MIN_CELLS:  # their own mean says little: all types alike in its place
            of_file, calls = cells.values, cells.labels
        centre = np.asarray(of_file.mean(axis=0)).ravel()
        shares = np.bincount(calls, minlength=len(saved.labels)) / len(calls)
        resemblance = fit_resemblance(centre, shares, cells.values, cells.labels)
        kinds: list[str] = []
        if x.shape[0]:
            scores = resemblance.of_cells(x, resemblance.correlations(x))
            resemblance = replace(resemblance, usual=float(np.quantile(scores, USUAL)))
            if saved.others:
                families = np.asarray(saved.families)
                proba = resemblance.joined(softmax(self.logits(x, factors), axis=1), x, families)
                kinds = self.named_kinds(x, best_labels(proba, families), scores)
        if not options.finds_shift:
            return ProfileComparison(resemblance=resemblance, kinds=kinds)
        batches = self.of_batches(query, NO_SHIFT, factors)
        return ProfileComparison(
            factors=factors, batches=batches, resemblance=resemblance, kinds=kinds
        )

    def estimate(
        self, query: Query, batch: int | None = None, usual: np.ndarray = UNCORRECTED
    ) -> tuple[Shift, np.ndarray]:
        return NO_SHIFT, self.called(query, batch, usual)[0]

    def called(
        self, query: Query, batch: int | None = None, usual: np.ndarray = UNCORRECTED
    ) -> tuple[np.ndarray, np.ndarray, csr_matrix]:
        """Return the factors of the genes of a query or batch, and some of its cells with their labels.

        `usual` are the factors of the query, for a batch. The factors are float32 G, the labels of N cells int64, and
        the cells N x G.
        """
        x = query.some(seen_rows(query, batch))
        x = x[np.diff(x.indptr) > 0]  # cells that express any gene
        factors = usual = usual if len(usual) else np.ones(x.shape[1], dtype=np.float32)
        calls = self.logits(x, factors).argmax(axis=1)
        for _ in range(NUM_ROUNDS):
            factors = gene_factors(x, calls, self.reference.means, usual.astype(np.float64)).astype(
                np.float32
            )
            calls = self.logits(x, factors).argmax(axis=1)
        return factors, calls, x

    def logits(self, x: csr_matrix, factors: np.ndarray) -> np.ndarray:
        """Return the logits of cells by the linear branch, without the batch effects of their genes."""
        return np.asarray(linear_logits(self.model.saved, correct_batch_effect(x, factors)))

    def named_kinds(self, x: csr_matrix, best: np.ndarray, scores: np.ndarray) -> list[str]:
        """Return the kinds with enough cells that resemble a type of the kind, by their median, or by their mean.

        Single cells do not decide: many neurons of a deep file are novel. `best` is the label of each cell of `x`, and
        `scores` its resemblance.
        """
        saved = self.model.saved
        kind_of = np.array([saved.kinds.get(label, "") for label in saved.labels])
        logs_CG = np.log1p(self.reference.means)
        genes = np.argsort(-logs_CG.std(axis=0), kind="stable")[:NUM_GENES]
        centre = logs_CG[:, genes].mean(axis=0)
        profiles_CG = centred(logs_CG[:, genes] - centre)
        named = []
        for kind in sorted({*kind_of} - {""}):
            is_kind = kind_of[best] == kind
            if is_kind.sum() >= MIN_OF_KIND:
                mean = np.log1p(np.asarray(x[is_kind][:, genes].expm1().mean(axis=0)))
                score = (centred(mean - centre) @ profiles_CG[kind_of == kind].T).max()
                if score >= MIN_KIND_SCORE or np.median(scores[is_kind]) >= MIN_KIND_RESEMBLANCE:
                    named.append(str(kind))
        return named


@cache
def tissue_model(name: str, in_capitals: bool = False) -> TissueModel:
    """Return the model of a tissue, to be fitted to files; `in_capitals`: with symbols in capitals."""
    tissue = collection().tissue(name)
    labels = tissue.profiles.index.tolist()
    genes = [gene.upper() if in_capitals else str(gene) for gene in tissue.profiles.columns]
    shares = csr_matrix(tissue.profiles.to_numpy() / 1e6)
    counts = simulated_counts(shares, NUM_CELLS, SEED)
    codes = np.repeat(np.arange(len(labels)), NUM_CELLS)
    config = NetworkConfig(
        target_sum=1e4,
        tokens=asdict(TokensConfig()),
        model=asdict(ModelConfig(encoder=False, linear_powers=list(POWERS))),
        attention={"name": "favor"},
        head=asdict(HeadConfig()),
    )
    studies, others = tissue.studies["url"].tolist(), list(tissue.others)
    made = Provenance(
        reference="; ".join(tissue.studies["title"]),
        label_key="cell_type",
        num_cells=0,
        seed=SEED,
        tissue=tissue.title,
        ontology=TABLE_VERSION,
        profiles=ProfileFacts(families=tissue.families.tolist(), studies=studies, others=others),
    )
    saved = SavedModel(
        name=name,
        genes=genes,
        gene_means=np.log1p(tissue.profiles.to_numpy().mean(axis=0) / 100).astype(np.float32),
        labels=labels,
        ontology_term_ids=tissue.terms,
        config=config,
        metrics=Metrics(scales={"linear": SCALE}),
        provenance=made,
        weights={},
        hash=collection().hash,
        reference_cells=ReferenceCells(counts, codes, are_counts=True, batches=None),
        tree=tissue.tree,
    )
    # a network of no genes stands in place of that which is fitted to each file
    with torch_state_kept():
        network = CellTypeModel(0, len(labels), **config.parts._asdict())
    return TissueModel(saved, collection().file.parent, network)


def find_tissue(cells: OpenedCells, name: str | None) -> tuple[TissueModel, TissueRecord]:
    """Return the model of the tissue that is named, or else found, of opened cells, and how it was found.

    Raises
    ------
    InputError
        No tissue of the collection fits, or `name` is none of them.
    """
    if name is None:
        ranking = rank_tissues(cells)
        require_tissue(ranking, cells.path)
        record = ranking.record
    else:
        record = given_tissue(cells, name)
    return tissue_model(record.name, record.in_capitals), record
