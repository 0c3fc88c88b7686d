"""The joint model of several studies: each is adapted to a query, and their predictions are joined."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import numpy as np

from scperformer.adaptation.adapted import Adapted
from scperformer.adaptation.compare import Comparison, MeasuredReference
from scperformer.adaptation.coverage import Repeats, no_cells
from scperformer.adaptation.fitted import FittedModel, Model
from scperformer.adaptation.predictions import Predictions
from scperformer.adaptation.record import Record, StudiesRecord, texts
from scperformer.base.errors import InputError
from scperformer.base.messages import listed
from scperformer.cells.query import Query
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.training import TokensConfig
from scperformer.io.gene_overlap import MIN_PANEL
from scperformer.model.network import CellTypeModel
from scperformer.model.saved_model import Study
from scperformer.trust.doublets import NoDoublets
from scperformer.trust.fusion import fuse
from scperformer.trust.shift import FAR, tempered

log = logging.getLogger(__name__)


@dataclass(repr=False)
class JointModel(Model):
    """A model of several studies: it has no network, but a model of each study, whose probabilities are joined."""

    members: list[FittedModel]

    @property
    def network(self) -> CellTypeModel:
        raise self.refusal

    @property
    def tokens(self) -> TokensConfig:
        raise self.refusal

    @property
    def how_to_complete(self) -> str:
        return "name the model of one study, such as study1 in its folder"

    @property
    def has_encoder(self) -> bool:
        return any(member.has_encoder for member in self.members)

    @property
    def refusal(self) -> InputError:
        """The error where a model of one study is needed."""
        remedy = f"name the model of a study, such as model_path={self.members[0].path}"
        found = f"the model {self.saved.name} of {len(self.members)} studies"
        return InputError("joint-model", found, "a model of one study in this place", remedy)

    def adapt_as_recorded(
        self, query: Query, options: AnnotationOptions, record: Record
    ) -> Adapted:
        raise self.refusal

    def adapt(self, query: Query, sample: Query, options: AnnotationOptions) -> AdaptedJoint:
        """Adapt the model of each study with enough shared genes; a study of another tissue gets no weight."""
        parts = []
        for study, model in zip(self.saved.studies, self.members, strict=True):
            of_study = query.of_model(study.saved, f"{query.path}, study {study.name}")
            num_genes = int(of_study.measured.sum())
            if num_genes < min(MIN_PANEL, len(study.saved.genes)):
                text = "%s: study %s is left out, as it shares %d genes with the file"
                log.warning(text, query.path, study.name, num_genes)
                continue
            whole = of_study if sample is query else sample.of_model(study.saved, sample.path)
            parts.append((study, model.adapt(of_study, whole, options)))
        if not parts:
            expected = f"{MIN_PANEL} genes of one of the {len(self.members)} studies"
            raise InputError(
                "few-genes", f"too few genes in {query.path}", expected, "use a model for its genes"
            )
        shifts = [adapted.compared.shift for _, adapted in parts]
        is_far = np.array([shift.kind == FAR for shift in shifts])
        # Larger weights for studies that are nearer to the file did not make predictions more accurate (docs/trust.md).
        weights = np.ones(len(parts)) if is_far.all() else 1.0 - is_far
        weights /= weights.sum()
        members = [
            Member(*part, float(weight)) for part, weight in zip(parts, weights, strict=True)
        ]
        nearest_first = sorted(range(len(members)), key=lambda number: shifts[number].distance)
        novelty = [shift.relative_novelty for shift in shifts]
        shown = listed(
            f"{members[number].study.name} ({novelty[number]:.1f})" for number in nearest_first
        )
        log.info("%s: the studies by their distance, as novelty of the file: %s", query.path, shown)
        return self._joined(members, members[nearest_first[0]].adapted, query, options)

    def _joined(
        self, members: list[Member], nearest: Adapted, query: Query, options: AnnotationOptions
    ) -> AdaptedJoint:
        """Join the models of studies; the shift of the query is from the `nearest` one."""
        keys = [member.adapted.record.key for member in members if member.adapted.record.adapted]
        record = replace(
            nearest.record,
            adapted=bool(keys),
            num_genes=int(query.measured.sum()),
            key="-".join(keys),
            expected_accuracy=self.saved.metrics.known_accuracy,
            accuracy_with_all_genes=self.saved.metrics.known_accuracy,
            studies=StudiesRecord(
                name=texts(member.study.name for member in members),
                weight=np.array([member.weight for member in members]),
                relative_novelty=np.array(
                    [member.adapted.compared.shift.relative_novelty for member in members]
                ),
            ),
        )
        rows = np.unique(np.concatenate([member.adapted.repeats.rows for member in members]))
        return AdaptedJoint(
            model=self,
            query=query,
            options=options,
            record=record,
            compared=Comparison(shift=nearest.compared.shift, batches=nearest.compared.batches),
            repeats=Repeats(nearest.repeats.num_seen, rows),
            reference=MeasuredReference(no_cells(0), np.zeros((0, 0))),
            doublets=NoDoublets(),
            members=members,
        )


@dataclass(frozen=True, eq=False)
class Member:
    """The model of one study among several, for the cells of a query."""

    study: Study
    adapted: Adapted
    weight: float  # of its probabilities; the weights of all members sum to 1


@dataclass(frozen=True, eq=False, kw_only=True)
class AdaptedJoint(Adapted):
    """The models of several studies for the cells of a query."""

    members: list[Member]

    @property
    def temperature(self) -> float:
        """Joined probabilities have a temperature of their own, which `predict_block` has used."""
        return 1.0

    @property
    def precision(self) -> str:
        """Each study has its own."""
        return self.options.precision

    def novelty_factor(self, rows: np.ndarray | slice) -> float:
        """The scores are divided by the factors of the studies, in `predict_block`."""
        return 1.0

    @contextmanager
    def ready(self) -> Iterator[bool]:
        """Have the networks of all studies on their device within a block."""
        with ExitStack() as all_studies:
            yield all(all_studies.enter_context(member.adapted.ready()) for member in self.members)

    def predict_block(self, start: int, done: Callable[[int], None] | None = None) -> Predictions:
        """Join the predictions of a block by the models of the studies; embeddings are side by side."""
        parts = [member.adapted.predict_block(start) for member in self.members]
        meanings = [member.study.meaning for member in self.members]
        weights = np.array([member.weight for member in self.members])
        joint = fuse([each.proba for each in parts], meanings, weights)
        num_cells = len(joint)
        scores = []
        for each, member in zip(parts, self.members, strict=True):
            # the novelty score that few known cells exceed in a file like this one
            usual: float | np.ndarray = 1.0
            if (held_out := member.adapted.saved.held_out) is not None:
                factor = member.adapted.novelty_factor(slice(start, start + num_cells))
                usual = factor * float(
                    np.quantile(held_out.scores, 1 - AnnotationOptions.unknown_fpr)
                )
            scores.append(each.scores / usual)
        if done is not None:
            done(num_cells)
        return replace(
            parts[0],
            proba=tempered(
                joint,
                1.0 if self.saved.metrics.temperature is None else self.saved.metrics.temperature,
            ),
            embedding=np.hstack([each.embedding for each in parts]),
            baseline=np.full(num_cells, -1, dtype=np.int32),
            empty=np.logical_and.reduce([each.empty for each in parts]),
            scores=np.min(scores, axis=0),  # a cell is as novel as for the study that knows it best
            by_encoder=np.zeros(num_cells, dtype=bool),
            gains=np.full(num_cells, np.nan),
            counts=np.full(num_cells, np.nan),
        )
