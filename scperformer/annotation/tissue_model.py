"""The model of a tissue: cells are simulated from its profiles, and the linear branch is fitted for each file.

The fit to a file has its genes and its depth, as any refitted model, but no Performer, which adds nothing to cells that
are all simulated (benchmarks/NOTES.md), and no cross-validation, as simulated cells are easier than real ones.
"""

import logging
import math
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from scipy.special import softmax

from scperformer.annotation.adapted import Adapted
from scperformer.annotation.compare import NUM_ROUNDS, Comparison, MeasuredReference, shifts_of_batches
from scperformer.annotation.coverage import Coverage, adapted_model, reduced, seen_rows
from scperformer.annotation.expectation import expect_by_profiles
from scperformer.annotation.fitted import FittedModel, damaged_record
from scperformer.annotation.record import Record, TissueRecord
from scperformer.annotation.which_tissue import given_tissue, rank_tissues, require_tissue
from scperformer.base.errors import InputError
from scperformer.base.progress import progress
from scperformer.base.sparse import centred
from scperformer.cells.opened import OpenedCells
from scperformer.cells.profiles import simulated_counts
from scperformer.cells.query import Query
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.training import HeadConfig, ModelConfig, TokensConfig
from scperformer.labels.ontology import TABLE_VERSION
from scperformer.labels.tree import best_labels
from scperformer.model.arrays import ReferenceCells
from scperformer.model.bundle import Metrics, NetworkConfig, ProfileFacts, Provenance
from scperformer.model.linear import linear_logits
from scperformer.model.network import CellTypeModel
from scperformer.model.saved_model import SavedModel
from scperformer.model.tissues import collection
from scperformer.training.evidence import Fitted, fill_network
from scperformer.training.fit_linear import PENALTY_C, LinearOptions, fit_linear_branch
from scperformer.trust.batch_effect import correct_batch_effect, gene_factors
from scperformer.trust.resemblance import NUM_GENES, USUAL, Resemblance, fit_resemblance
from scperformer.trust.shift import MIN_CELLS

log = logging.getLogger(__name__)

SEED = 0
NUM_CELLS = 60  # simulated cells of each label; 30 or 120 call other studies as well
SCALE = 1.0  # of the logits, before the probabilities are joined with those by correlation
POWERS = (0.5, 2.0)
MIN_OF_KIND = 10  # cells
# Correlation of their mean with a profile of the kind: in 17 files .37 to .75 (but muscle .33), of embryos and cell
# lines up to .35.
MIN_KIND_SCORE = 0.36
MIN_KIND_RESEMBLANCE = 0.3  # or this median resemblance: a carcinoma has .58 (but .30 by its mean), cell lines .15


class AdaptedTissue(Adapted):
    """The profiles of a tissue for the cells of a query."""

    expect = expect_by_profiles

    def judge(self, proba: np.ndarray, x: csr_matrix) -> tuple[np.ndarray, np.ndarray]:
        assert self.resemblance is not None
        assert self.saved.families is not None
        scores = self.resemblance.of_cells(x, self.resemblance.correlations(x))
        return self.resemblance.joined(proba, x, self.saved.families), scores

    def novelty(self, scores: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        assert self.resemblance is not None
        return self.resemblance.novelty(scores)


@dataclass(repr=False)
class TissueModel(FittedModel):
    """The profiles of a tissue; the network is fitted to each file."""

    is_simulated = True
    min_confidence = 0.5
    kind_of_adapted = AdaptedTissue

    def stored_cells(self, options: AnnotationOptions) -> ReferenceCells:
        if not options.adapts:
            found = f"adapt=false and the profiles of {self.saved.name}, which are no fitted model"
            raise InputError("adapt-tissue", found, "a model named by model_path", "leave adapt=false out")
        assert self.saved.reference_cells is not None
        return self.saved.reference_cells

    def fit(
        self, seen: Query, coverage: Coverage, stored: ReferenceCells | None, share: float, options: AnnotationOptions
    ) -> tuple[FittedModel, float]:
        assert stored is not None
        return self.adapted_to(stored, coverage, seen.path, options.adapted_folder), math.nan

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
        return adapted_model(saved, coverage, x, None, config=replace(saved.config, own_totals=True), weights=weights)

    def compare(
        self, seen: Query, reference: MeasuredReference | None, options: AnnotationOptions, depth: float
    ) -> Comparison:
        """Compare a query with the profiles; it is never thinned, as their cells are simulated."""
        assert reference is not None

        def estimate(*batch: Any) -> tuple[None, np.ndarray]:
            return None, compare_with_profiles(seen, self.saved, reference, *batch)[0]

        factors, resemblance, kinds = compare_with_profiles(seen, self.saved, reference)
        compared = Comparison(factors=factors if options.finds_shift else None, resemblance=resemblance, kinds=kinds)
        if options.finds_shift and seen.batches is not None:
            compared.batches = shifts_of_batches(seen, None, factors, estimate)
        return compared

    def compare_as_recorded(self, seen: Query, reference: MeasuredReference | None, record: Record) -> Comparison:
        compared = super().compare_as_recorded(seen, reference, record)
        assert reference is not None
        assert record.profiles is not None
        centre, shares = (np.asarray(each, np.float64) for each in (record.profiles.centre, record.profiles.shares))
        if len(centre) != len(self.saved.genes) or len(shares) != len(self.saved.labels):
            raise damaged_record(f"profiles/centre and profiles/shares that do not fit, in uns of {seen.path}")
        compared.resemblance = fit_resemblance(centre, shares, reference.cells.values, reference.cells.labels)
        return compared


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
    return TissueModel(saved, collection().file.parent)


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


def compare_with_profiles(
    query: Query,
    fitted: SavedModel,
    reference: MeasuredReference,
    batch: int | None = None,
    usual: np.ndarray | None = None,
) -> tuple[np.ndarray, Resemblance, list[str]]:
    """Return the per-gene batch effect of a file or batch, float32 G, and its resemblance to the profiles of a tissue.

    Also return the kinds by which cells of other types than the common ones are named. `query` has the genes of
    `fitted`, the model of the tissue after its fit to the file; the cells of the `reference` are simulated. `usual` are
    the factors of the file, for a batch.
    """
    x = query.some(seen_rows(query, batch))
    x = x[np.diff(x.indptr) > 0]  # cells that express any gene
    factors = usual = np.ones(x.shape[1], dtype=np.float32) if usual is None else usual
    calls = np.arange(0)
    for number in range(1 + NUM_ROUNDS):
        if number:
            factors = gene_factors(x, calls, reference.means, usual.astype(np.float64)).astype(np.float32)
        logits = linear_logits(fitted, correct_batch_effect(x, factors))
        assert logits is not None
        calls = logits.argmax(axis=1)
    of_file = x
    if x.shape[0] < MIN_CELLS:  # their own mean says little: all types alike in its place
        of_file, calls = reference.cells.values, reference.cells.labels
    centre = np.asarray(of_file.mean(axis=0)).ravel()
    shares = np.bincount(calls, minlength=len(fitted.labels)) / len(calls)
    found = fit_resemblance(centre, shares, reference.cells.values, reference.cells.labels)
    kinds: list[str] = []
    if x.shape[0]:
        scores = found.of_cells(x, found.correlations(x))
        found = replace(found, usual=float(np.quantile(scores, USUAL)))
        if fitted.others:
            assert fitted.families is not None
            proba = found.joined(softmax(logits, axis=1), x, fitted.families)
            kinds = _named_kinds(fitted, reference, x, best_labels(proba, fitted.families), scores)
    return factors, found, kinds


def _named_kinds(
    fitted: SavedModel, reference: MeasuredReference, x: csr_matrix, best: np.ndarray, scores: np.ndarray
) -> list[str]:
    """Return the kinds with enough cells that resemble a type of the kind, by their median, or together by their mean.

    Single cells do not decide: many neurons of a deep file are novel. `best` is the label of each cell of `x`, and
    `scores` its resemblance.
    """
    kind_of = np.array([fitted.kinds.get(label, "") for label in fitted.labels])
    logs_CG = np.log1p(reference.means)
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
