"""Published profiles of a tissue beside the labels of a reference: which type each label resembles.

A label with an ontology id is of the types that this id contains; the others are compared by their means, whatever
their names.

Shape letters: K groups of cells, C labels, P profiles, G genes. Means are counts per 10,000.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from scperformer.base.sparse import TINY, centred
from scperformer.io.gene_matching import gene_symbols
from scperformer.io.gene_names import guess_species
from scperformer.labels.ontology import packaged_ontology
from scperformer.model.tissues import collection, family_of
from scperformer.trust.resemblance import correlations_in_rounds

NUM_COMPARED = 2000  # genes that vary most between the profiles of a tissue
MIN_GENES = 200  # that a model, a file and the profiles share
MIN_SCORE = 0.5  # mean correlation of the labels with the nearest profile
MIN_SHARE = 0.2  # of the cells of a cluster, with a label that counts


@dataclass(frozen=True)
class Profiles:
    """The profiles of a tissue beside the labels of a model."""

    labels: np.ndarray  # P names of types
    shared: np.ndarray  # int: genes of the model that the profiles have
    counts: np.ndarray  # P x these genes: counts per 10,000
    compared: np.ndarray  # int: shared genes that vary most between profiles
    centre: np.ndarray  # mean of the labels over these genes
    # P x these genes: centred by the mean of the profiles that the labels resemble
    profiles: np.ndarray
    # bool, C x P: profiles of the type of a label, and of types that differ little from it
    is_own: np.ndarray
    score: float  # mean correlation of the labels with these profiles
    symbols: pd.Index  # of the compared genes, in capitals
    mean: np.ndarray  # of the profiles that the labels resemble, over the compared genes
    tissue: str = ""  # its name
    # int, P: of types that differ little
    families: np.ndarray = field(default_factory=lambda: np.arange(0))
    terms: np.ndarray = field(default_factory=lambda: np.array([], dtype=object))  # P ontology ids

    def compare(
        self, means_KG: np.ndarray, shares_KC: np.ndarray, among: np.ndarray | bool = True
    ) -> pd.DataFrame:
        """Compare the means of groups of cells with their labels, of which each has a share of the cells.

        The nearest profile is `among` these, bool P.

        Returns a row for each group: the nearest `profile`, its name (`looks_like`), ontology id (`term`), `family`
        and correlation (`resemblance`), its lead over the types of labels with a fifth of the cells (`difference`;
        0: it is one of these), and whether any label of the model is of its type (`is_known`).
        """
        found = (
            centred(_logs(means_KG[:, self.shared])[:, self.compared] - self.centre)
            @ self.profiles.T
        )
        is_label = shares_KC >= np.minimum(MIN_SHARE, shares_KC.max(axis=1, keepdims=True))
        is_own = is_label @ self.is_own
        nearest = np.where(among, found, -np.inf).argmax(axis=1)
        highest = found[np.arange(len(found)), nearest]
        difference = highest - np.where(is_own, found, -1.0).max(axis=1)
        columns = {
            "profile": nearest,
            "looks_like": self.labels[nearest],
            "term": self.terms[nearest],
        }
        columns |= {
            "family": self.families[nearest],
            "is_known": self.is_own[:, nearest].any(axis=0),
        }
        return pd.DataFrame(columns | {"resemblance": highest, "difference": difference})

    def of_other_tissues(self, means_KG: np.ndarray) -> float:
        """Return the highest correlation of the mean of some groups with a specific type of another tissue."""
        known = collection()
        species = "mouse" if known.is_mouse(self.tissue) else "human"
        sets, logs_PG, has_gene_PG = known.expression(species)
        terms = known.types.set_index("set")["id"][sets.unique()].to_numpy()
        own = frozenset().union(
            *(packaged_ontology().ancestors(term) for term in known.tissue(self.tissue).terms)
        )
        is_other = np.array([not known.is_common(term) and term not in own for term in terms])
        is_other &= known.is_study(sets)
        genes = known.capitals(species).get_indexer(self.symbols)
        found = genes >= 0
        profiles = logs_PG[is_other][:, genes[found]] * has_gene_PG[is_other][:, genes[found]]
        groups = _logs(means_KG[:, self.shared])[:, self.compared] - self.centre
        return float(
            (centred(groups[:, found]) @ centred(profiles - self.mean[found]).T).max(initial=-1.0)
        )


def _logs(means: np.ndarray) -> np.ndarray:
    return np.log1p(1e4 * means / np.maximum(means.sum(axis=1, keepdims=True), TINY))


def find_profiles(
    names: Sequence[str | None],
    genes: Sequence[str],
    means_CG: np.ndarray,
    terms: Sequence[str] = (),
) -> Profiles | None:
    """Return the profiles of a tissue that is named, or else that labels resemble most; None: of no tissue.

    `names` are the first to be tried; `means_CG` are the means of the labels for some `genes`, and `terms` their
    ontology ids, if they are known.
    """
    symbols = pd.Index([gene.upper() for gene in gene_symbols(genes)])
    species = guess_species(genes)
    known = collection()
    name = next(filter(None, (known.named(name or "", species) for name in names)), None)
    if name is None:
        tissues = known.tissues(species)["name"]
        pairs = ((name, known.profiles(one), known.symbols(one)) for one, name in tissues.items())
        found = {name: _beside(table, genes, symbols, means_CG) for name, table, genes in pairs}
        scores = {name: each.score for name, each in found.items() if each is not None}
        name = max(scores, key=scores.__getitem__, default=None)
    tissue = None if name is None else known.tissue(name)
    profiles = (
        None if tissue is None else _beside(tissue.profiles, tissue.symbols, symbols, means_CG)
    )
    if tissue is None or profiles is None or profiles.score < MIN_SCORE:
        return None
    is_own = profiles.is_own @ (tissue.families[:, None] == tissue.families)
    for label, term in enumerate(terms):
        family = family_of(term)
        # Profiles of the type, or of types that differ little from it.
        of_term = [
            family_of(each) == family or term in packaged_ontology().ancestors(each)
            for each in tissue.terms
        ]
        if any(of_term):
            is_own[label] = of_term
    ids = np.array(tissue.terms, dtype=object)
    return replace(profiles, is_own=is_own, tissue=tissue.name, families=tissue.families, terms=ids)


def _beside(
    table: pd.DataFrame, genes: pd.Index, symbols: pd.Index, means_CG: np.ndarray
) -> Profiles | None:
    """Put profiles of some genes, counts per million, beside the labels of a model; None: they share too few genes."""
    places = genes.get_indexer_for(symbols)
    shared = np.flatnonzero(places >= 0)
    if len(shared) < MIN_GENES or len(means_CG) < 2:
        return None
    counts = table.to_numpy()[:, places[shared]] / 100
    logs_PG = _logs(counts)
    compared = np.argsort(-logs_PG.std(axis=0), kind="stable")[:NUM_COMPARED]
    logs_PG = logs_PG[:, compared]
    labels_CG = _logs(means_CG[:, shared])[:, compared]
    centre = labels_CG.mean(axis=0)
    correlations, mean = correlations_in_rounds(labels_CG, logs_PG)
    nearest = correlations.argmax(axis=1)
    score = float(correlations.max(axis=1).mean())
    types = table.index.to_numpy(object)
    names = symbols[shared][compared]
    is_own = nearest[:, None] == np.arange(len(types))
    return Profiles(
        types, shared, counts, compared, centre, centred(logs_PG - mean), is_own, score, names, mean
    )
