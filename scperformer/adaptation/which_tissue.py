"""Which tissue a file is of: the one that explains its cells by types that occur in no other tissue.

Each cell is compared with the specific types of a tissue, and with the common types of all tissues. The evidence for
the tissue is what its specific types gain. docs/tissues.md describes this, and the answers where there is none.

Shape letters: N cells, P profiles, G genes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np
import pandas as pd

from scperformer.adaptation.record import TissueRecord, texts
from scperformer.base.errors import InputError
from scperformer.base.messages import listed
from scperformer.base.sparse import TINY, centred
from scperformer.cells.opened import OpenedCells
from scperformer.cells.query import Query, align_to_genes
from scperformer.cells.values import evenly_spaced
from scperformer.io.gene_names import guess_species
from scperformer.io.gene_overlap import MIN_PANEL
from scperformer.io.gene_table import human_genes
from scperformer.labels.ontology import packaged_ontology
from scperformer.model.tissues import AND, BLOOD_CELL, COMMON, collection, family_of
from scperformer.trust.resemblance import correlations_in_rounds

NUM_CELLS = 500  # of a file, which are compared
NUM_GENES = 2000  # that vary most between profiles
LEAD = 0.05  # of the correlation with a specific type over that with any common type, from which it counts
# Mean lead over the cells, beyond LEAD. Files of tissues of the collection have .0095 or more, other ones up to .0072
# (benchmarks/NOTES.md).
MIN_EVIDENCE = 0.0085
# The same if one type has nearly all of it: erythrocytes of an aorta look like spermatids.
MIN_EVIDENCE_OF_ONE = 0.0125
NEARLY_ALL = 0.9
MIN_FIRST = 3  # cells of specific types
MIN_CLEAR_EVIDENCE = 0.004  # enough, if that for any other tissue is smaller by this factor
CLEAR = 2.5
MIN_SECOND = 10  # cells of a second tissue
SIMILAR = 0.2  # correlation of a cell with a common type, from which it is one
# share of such cells in files that common types call; cell lines have .14 at most
MIN_SIMILAR = 0.2
VERY_SIMILAR = 0.3  # cell lines have .012 of such cells,
MIN_VERY_SIMILAR = 0.04  # and a carcinoma with few other cells more
LEUKOCYTES = 0.9  # share of blood cells among the common cells of blood, spleen, marrow or thymus
ALIKE = 0.97  # of the score of the common types; blood has finer ones
# The mean of cells of one type correlates with its profile by .63 to .91, of a cell line with any by .49 at most.
MIN_MEAN_SCORE = 0.6
# with a common type, for cells of its kind; keratinocytes have .44 to .51, embryos .34
MIN_COMMON_SCORE = 0.4
MAX_TYPES = 3  # listed of each tissue
# How a tissue was found, and the share of its score from which another one fits, too.
SPECIFIC = "specific types"
BLOOD = "leukocytes"
MEAN = "mean of the cells"
UNDETERMINED = "common types"
GIVEN = "given"
CLOSE = {SPECIFIC: 0.6, BLOOD: 0.9, MEAN: 0.95}
MIN_CHANGED = 0.1  # share of the cells that another tissue calls another type: below it, both call about the same
T_CELL = "CL:0000084"  # its types are told apart by few genes, and differ between profiles of two studies


@dataclass(frozen=True)
class Ranking:
    """The tissues of a species by their fit to a file, the best first; `UNDETERMINED`: the common types come first."""

    names: list[str]
    scores: list[float]
    how: str
    in_capitals: bool = False  # mouse symbols in capitals
    is_found: bool = True  # whether the first one fits
    # specific ones, or the nearest, with the number of their cells
    types: dict[str, int] = field(default_factory=dict)
    num_cells: int = 0  # that were compared
    # share of these that each of the next two tissues calls another type
    changed: tuple[float, ...] = ()

    @property
    def record(self) -> TissueRecord:
        """The first tissue and how it was found, and the next two."""
        return TissueRecord(
            name=self.names[0],
            title=collection().title(self.names[0]),
            in_capitals=self.in_capitals,
            how=self.how,
            score=self.scores[0],
            num_cells=self.num_cells,
            types=texts(self.types),
            type_cells=np.array(list(self.types.values()), dtype=int),
            next=texts(self.names[1:3]),
            next_scores=np.array(self.scores[1:3]),
            next_changed=np.array(self.changed) if self.changed else None,
        )


def is_undetermined(tissue: TissueRecord) -> bool:
    """Return whether common types are in the place of a tissue."""
    return tissue.name in COMMON.values()


def tissue_text(tissue: TissueRecord) -> str:
    """Return a tissue and how it was found, as in "pancreas (adult human), by alpha cell (38 of 500 cells)"."""
    if is_undetermined(tissue) and tissue.how != GIVEN:
        return f"not determined, {how_found(tissue)}: {tissue.title}"
    return f"{tissue.title}, {how_found(tissue)}"


def how_found(tissue: TissueRecord) -> str:
    """Return how a tissue was found, and which other one fits, as in "as nearly all cells are leukocytes"."""
    if tissue.how == GIVEN:
        return "as given"
    if is_undetermined(tissue):
        return "as no type is specific to one"
    if tissue.how == SPECIFIC:
        text = "by specific types"
        if tissue.types is not None and tissue.type_cells is not None and len(tissue.types):
            parts = [
                f"{name} ({num})" for name, num in zip(tissue.types, tissue.type_cells, strict=True)
            ]
            parts[0] = f"{parts[0][:-1]} of {tissue.num_cells} cells)"
            # as in "by hepatocyte (38 of 500 cells), cholangiocyte (11)"
            text = f"by {listed(parts)}"
    elif tissue.how == BLOOD:
        text = "as nearly all cells are leukocytes"
    else:
        text = f"by the {tissue.how}, whose correlation is {np.nan if tissue.score is None else tissue.score:.2f}"
    close = close_tissues(tissue)
    return f"{text}; {close} fit{'' if ' and ' in close else 's'}, too" if close else text


def close_tissues(tissue: TissueRecord) -> str:
    """Return the tissues that fit nearly as well as the one that was found, with their scores; "" if none does.

    The scores are shares of the score of the tissue that was found. Tissues that give the same types are left out.
    """
    if (
        is_undetermined(tissue)
        or not tissue.score
        or tissue.next is None
        or tissue.next_scores is None
    ):
        return ""
    limit = CLOSE.get(tissue.how, 1.0) * tissue.score
    changed = [1.0] * len(tissue.next) if tissue.next_changed is None else tissue.next_changed
    rows = zip(tissue.next, tissue.next_scores, changed, strict=False)
    near = [
        (name, score) for name, score, share in rows if score >= limit > 0 and share >= MIN_CHANGED
    ]
    return " and ".join(f"{name} {score / tissue.score:.0%}" for name, score in near)


def require_tissue(ranking: Ranking, path: str) -> None:
    """Refuse a file that resembles no tissue, such as cell lines."""
    if not ranking.is_found:
        kinds = listed(
            f"{num / ranking.num_cells:.0%} {name}" for name, num in ranking.types.items()
        )
        nearest = " and ".join(ranking.names[:2])
        found = f"cells in {path} that resemble no tissue of the collection (most like {kinds}; of {nearest})"
        remedy = "name a tissue of 'scperformer models list' by tissue=NAME, or a model by model_path=FOLDER"
        raise InputError("no-tissue", found, "cells of a known type", remedy)


def given_tissue(cells: OpenedCells, name: str) -> TissueRecord:
    """Return the tissue that a user names, and why another one is better, if its species or types fit better."""
    name = collection().find(name, _species(cells))
    in_capitals = collection().is_mouse(name) and _in_capitals(cells)
    record = TissueRecord(
        name=name, title=collection().title(name), in_capitals=in_capitals, how=GIVEN
    )
    try:
        ranking = rank_tissues(cells)
    except InputError:  # genes of a different species than the given tissue
        return record
    score = dict(zip(ranking.names, ranking.scores, strict=True)).get(name, 0.0)
    is_clear = ranking.is_found and score < CLOSE.get(ranking.how, -1.0) * ranking.scores[0]
    if collection().is_mouse(name) != collection().is_mouse(ranking.names[0]):
        record.instead = (
            f"{record.title} is of another species than the genes; {ranking.names[0]} fits better"
        )
    elif is_clear and not any(part in name for part in ranking.names[0].split(AND)):
        record.instead = (
            f"another tissue fits better than {record.title}: {tissue_text(ranking.record)}"
        )
    return record


def rank_tissues(cells: OpenedCells) -> Ranking:
    """Rank the tissues by how well their profiles fit opened cells."""
    species = _species(cells)
    remedy = "check their names; for another species, train a model on its labelled cells"
    expected = "genes of human or mouse"
    if species == "other":
        found = f"genes of another species in {cells.path} (e.g. '{cells.gene_names[-1]}')"
        raise InputError("other-species", found, expected, remedy)
    problem = InputError(
        "few-genes", f"fewer than {MIN_PANEL} known genes in {cells.path}", expected, remedy
    )
    for each in ("human", "mouse") if species == "unknown" else (species,):
        in_capitals = each == "mouse" and _in_capitals(cells)
        genes = [
            gene.upper() if in_capitals else gene for gene in collection().genes(each).tolist()
        ]
        try:
            query = Query(cells, align_to_genes(cells, genes), cells.path)
        except InputError as error:  # names of a different species
            problem = error
            continue
        if query.measured.sum() >= MIN_PANEL:
            rows = cells.sample_rows()
            x = query.some(rows[evenly_spaced(len(rows), NUM_CELLS)]).toarray()
            return _ranking(each, x, query.measured, in_capitals)
    raise problem


def _in_capitals(cells: OpenedCells) -> bool:
    return guess_species(cells.gene_names) == "human"


def _species(cells: OpenedCells) -> str:
    """Return the species of the genes: of symbols in one case, the one that has more names that the other lacks."""
    if cells.options.species != "auto":
        return cells.options.species
    species = guess_species(cells.gene_names)
    if species in ("mouse", "other"):
        return species
    orthologs = human_genes().orthologs
    known = {name.upper() for name in cells.gene_names}
    mouse, human = (
        {name.upper() for name in orthologs},
        {name.upper() for name in orthologs.values()},
    )
    lead = len(known & (mouse - human)) - len(known & (human - mouse))
    return "mouse" if lead > 0 else "human" if lead < 0 else species


@dataclass(frozen=True)
class _Part:
    """Profiles that are compared with the cells of a file: those of a tissue, or the common types."""

    name: str
    labels: np.ndarray
    terms: np.ndarray
    is_specific: np.ndarray  # bool P: types that do not occur in every tissue
    is_blood: np.ndarray  # bool P
    correlations: np.ndarray  # N x P
    of_mean: np.ndarray  # P: correlation with the mean of the file

    def best(self, of: np.ndarray) -> np.ndarray:
        """Return the highest correlation of each cell with some of the profiles, given by a boolean, P."""
        return self.correlations[:, of].max(axis=1, initial=-1.0)


def _ranking(species: str, x_NG: np.ndarray, measured: np.ndarray, in_capitals: bool) -> Ranking:
    """Rank the tissues of a species, given ln(1 + cp10k) of its genes, of which the file has the `measured` ones."""
    common, tissues = _compare(species, x_NG, measured)
    answers = (rank(common, tissues) for rank in (_by_specific_types, _by_common_types, _by_mean))
    ranking = next(filter(None, answers), None)
    if ranking is None:
        kinds = (
            pd.Series(common.labels[common.correlations.argmax(axis=1)])
            .value_counts()
            .head(MAX_TYPES)
        )
        ranking = replace(
            _ordered(_medians(tissues), UNDETERMINED), is_found=False, types=kinds.to_dict()
        )
    parts = {part.name: part for part in (common, *tissues)}
    first, *others = [[parts[name] for name in each.split(AND)] for each in ranking.names[:3]]
    changed = tuple(_changed(first, other) for other in others)
    return replace(ranking, in_capitals=in_capitals, num_cells=len(x_NG), changed=changed)


def _changed(first: list[_Part], other: list[_Part]) -> float:
    """Return the share of cells whose nearest types in two tissues are neither one nor narrower than the other."""
    pairs = zip(_nearest_terms(first), _nearest_terms(other), strict=True)
    return float(np.mean([not _is_one_type(*pair) for pair in pairs]))


def _nearest_terms(parts: list[_Part]) -> np.ndarray:
    correlations_NP = np.concatenate([part.correlations for part in parts], axis=1)
    return np.concatenate([part.terms for part in parts])[correlations_NP.argmax(axis=1)]


@cache
def _is_one_type(one: str, other: str) -> bool:
    above, above_other = packaged_ontology().ancestors(one), packaged_ontology().ancestors(other)
    are_alike = T_CELL in above & above_other or family_of(one) == family_of(other)
    return are_alike or one in above_other or other in above


def _by_specific_types(common: _Part, tissues: list[_Part]) -> Ranking | None:
    """Rank the tissues by what their specific types gain, if one has evidence; a second one may have evidence, too."""
    known_N = np.maximum.reduce([part.best(~part.is_specific) for part in (common, *tissues)])
    leads = {part.name: part.best(part.is_specific) - known_N for part in tissues}
    evidence = {name: _evidence(lead) for name, lead in leads.items()}
    first, next_one = sorted(evidence, key=lambda name: -evidence[name])[:2]
    is_clear = (
        evidence[first] >= MIN_CLEAR_EVIDENCE and evidence[first] >= CLEAR * evidence[next_one]
    )
    parts = {part.name: part for part in tissues}
    is_of_first = leads[first] > LEAD
    nearest = parts[first].correlations[:, parts[first].is_specific].argmax(axis=1)
    # the evidence of each specific type
    of_types = np.bincount(nearest, np.maximum(leads[first] - LEAD, 0))
    is_one_type = of_types.max() / max(of_types.sum(), TINY) >= NEARLY_ALL
    least = MIN_EVIDENCE_OF_ONE if is_one_type else MIN_EVIDENCE
    if is_of_first.sum() < MIN_FIRST or not (is_clear or evidence[first] >= least):
        return None
    further = {name: lead - np.maximum(leads[first], 0) for name, lead in leads.items()}
    second = max(further, key=lambda name: _evidence(further[name]))
    is_of_second = further[second] > LEAD
    types: dict[str, int] = {}
    if _evidence(further[second]) >= MIN_EVIDENCE and is_of_second.sum() >= MIN_SECOND:
        is_of_first &= leads[first] >= leads[second]
        types = _types_of(parts[second], is_of_second)
        evidence = {f"{first}{AND}{second}": evidence.pop(first)} | evidence
        del evidence[second]
    return replace(_ordered(evidence, SPECIFIC), types=_types_of(parts[first], is_of_first) | types)


def _by_common_types(common: _Part, tissues: list[_Part]) -> Ranking | None:
    """Rank blood, spleen, marrow and thymus, or the common types, if these are the types of enough cells."""
    nearest_N = common.correlations.argmax(axis=1)
    best_N = np.where(common.is_specific[nearest_N], 0, common.correlations.max(axis=1))
    if (best_N >= SIMILAR).mean() < MIN_SIMILAR and (
        best_N >= VERY_SIMILAR
    ).mean() < MIN_VERY_SIMILAR:
        return None
    medians = _medians([common, *tissues])
    blood = [name for name in medians if name in _blood_tissues()]
    fits_blood = max(medians[name] for name in blood) >= ALIKE * medians[common.name]
    nearest_N = nearest_N[~common.is_specific[nearest_N]]
    if common.is_blood[nearest_N].mean() >= LEUKOCYTES and fits_blood:
        return _ordered({name: medians[name] for name in blood}, BLOOD)
    return _ordered(medians, UNDETERMINED, first=common.name)


def _by_mean(common: _Part, tissues: list[_Part]) -> Ranking | None:
    """Rank the tissues by the correlation of their types with the mean of a file of one type."""
    scores = {part.name: part.of_mean[part.is_specific].max(initial=-1.0) for part in tissues}
    highest = max(part.of_mean[~part.is_specific].max(initial=-1.0) for part in (common, *tissues))
    if max(highest, *scores.values()) < MIN_MEAN_SCORE:
        of_kind = float(common.of_mean.max())
        if of_kind < MIN_COMMON_SCORE:
            return None
        return _ordered(scores | {common.name: of_kind}, UNDETERMINED, first=common.name)
    if max(scores.values()) > highest:
        return _ordered(scores, MEAN)
    if not common.is_blood[common.of_mean.argmax()]:
        return _ordered(scores | {common.name: highest}, UNDETERMINED, first=common.name)
    return _ordered(
        {part.name: part.of_mean.max() for part in tissues if part.name in _blood_tissues()}, MEAN
    )


def _ordered(scores: Mapping[str, float], how: str, first: str | None = None) -> Ranking:
    names = sorted(scores, key=lambda name: (name != first, -scores[name]))
    return Ranking(names, [float(scores[name]) for name in names], how)


def _evidence(lead_N: np.ndarray) -> float:
    return float(np.maximum(lead_N - LEAD, 0).mean())


def _medians(parts: list[_Part]) -> dict[str, float]:
    return {part.name: float(np.median(part.correlations.max(axis=1))) for part in parts}


def _types_of(part: _Part, of_cell: np.ndarray) -> dict[str, int]:
    """Return the specific types of a tissue that some cells, given by a boolean, are nearest to, the most first."""
    labels = part.labels[part.is_specific][
        part.correlations[of_cell][:, part.is_specific].argmax(axis=1)
    ]
    return {
        str(name): int(num)
        for name, num in pd.Series(labels).value_counts().head(MAX_TYPES).items()
    }


@cache
def _is_blood(term: str) -> bool:
    return BLOOD_CELL in packaged_ontology().ancestors(term)


@cache
def _blood_tissues() -> frozenset[str]:
    """Return the tissues of leukocytes, to which no leukocytes of other tissues are added."""
    rows = collection().tissues()
    return frozenset(rows["name"][rows["pool"] != "yes"])


def _compare(species: str, x_NG: np.ndarray, measured: np.ndarray) -> tuple[_Part, list[_Part]]:
    """Compare cells with the common types, and with the tissues of a species."""
    sets, logs_PG, has_gene_PG = collection().expression(species)
    spread_G = logs_PG.std(axis=0) * measured
    mean_G = logs_PG[collection().is_study(sets)].mean(axis=0)
    totals_G = np.expm1(x_NG).mean(axis=0)
    file_G = np.log1p(totals_G * 1e4 / max(float(totals_G.sum()), TINY))

    def part(
        name: str, labels: pd.Index, terms: Sequence[str], logs: np.ndarray, has_gene: np.ndarray
    ) -> _Part:
        of_gene = spread_G * has_gene
        top = np.argsort(-of_gene)[: min(NUM_GENES, np.count_nonzero(of_gene))]
        is_specific = np.array([not collection().is_common(term) for term in terms])
        is_blood = np.array([_is_blood(term) for term in terms])
        of_mean = centred(logs[:, top] - mean_G[top]) @ centred((file_G - mean_G)[None, top])[0]
        correlations = correlations_in_rounds(x_NG[:, top], logs[:, top])[0]
        return _Part(
            name,
            labels.to_numpy(object),
            np.array(terms),
            is_specific,
            is_blood,
            correlations,
            of_mean,
        )

    tissues = []
    for row in collection().tissues(species).itertuples():
        is_own = sets == row.set
        terms = collection().terms(row.set)
        tissues.append(
            part(row.name, terms.index, terms.tolist(), logs_PG[is_own], has_gene_PG[is_own][0])
        )
    common = collection().common_types(species)
    genes = pd.Index(collection().genes(species))
    table = common.profiles.reindex(columns=genes).fillna(0)
    has_gene = genes.isin(common.profiles.columns)
    return part(
        common.name, table.index, common.terms, np.log1p(table.to_numpy() / 100), has_gene
    ), tissues
