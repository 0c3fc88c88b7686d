"""Cells that a list of marker genes names clearly, from which a model learns the other cells and all other genes.

Each cell is scored for each type by the t statistic of the regression of its expression on the weights of the markers,
as `ulm` of decoupler (Badia-i-Mompel et al. 2022, Bioinform. Adv. 2:vbac016), and the scores are averaged over the most
similar cells. A cell is of the type whose score, times the share of its markers that are expressed, is nearest to what
it reaches anywhere in the file. The half of its cells that is clearest are its seeds. All cells to which a logistic
regression on the principal components of the seeds gives the same type are the reference.

Shape letters: N cells, G genes, T types.
"""

import logging

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.messages import listed
from scperformer.base.sparse import gene_deviation, principal_axes
from scperformer.cells.normalisation import normalise
from scperformer.cells.opened import OpenedCells
from scperformer.config.training import TYPE, ReferenceOptions
from scperformer.io.gene_matching import map_genes
from scperformer.io.gene_names import guess_species
from scperformer.io.marker_lists import MarkerList
from scperformer.labels.texts import TERM_SUFFIX, label_texts
from scperformer.trust.clusters import NUM_NEAREST, smoothed

log = logging.getLogger(__name__)

MAX_CELLS = 10_000  # that may become seeds
MIN_SCORE = 3.0  # t statistic of clear cells: by chance one of 1,000 reaches it
MIN_EVIDENCE = 2.0  # below it in all types, a cell is of none
# of a type that has cells in the file; one shared marker gives other cells up to this
MIN_HIGHEST = 5.0
NUM_BEST = 20  # cells, whose mean score is the highest of a type
SHARE = 0.5  # of the cells of a type, the clearest ones
MIN_RELATIVE = 0.12  # of the highest score; for types that the list lacks, see benchmarks/NOTES.md
MIN_CONFIDENCE = 0.9
MIN_SEEDS = 3  # of a type; with fewer cells it has none
MIN_EXPRESSION = 0.3  # ln(1 + cp10k); where a marker is not higher, no cell expresses it
MIN_NEAREST = 5  # cells over which scores are averaged; a type has few cells in a small file
CELLS_PER_NEIGHBOUR = 25
NUM_VARIABLE = 2000  # genes that show which cells are similar
NUM_DIRECTIONS = 30


def marker_matrix(cells: OpenedCells, markers: MarkerList) -> np.ndarray:
    """Return the weights of the genes of a file for each type of a list, float64 G x T.

    Raises
    ------
    InputError
        The genes are of another species.
    """
    genes = markers.genes
    species = [guess_species(names) for names in (cells.gene_names, genes)]
    if cells.options.species == "auto" and {*species} == {"human", "mouse"}:
        found = f"genes in {markers.path} that look {species[1]} (e.g. '{genes[0]}') for {species[0]} cells"
        remedy = f"species={species[0]} matches them by orthologs"
        raise InputError(
            "other-species",
            found,
            f"genes of the species of {cells.path}",
            remedy,
            [remedy.split()[0]],
        )
    target = map_genes(
        cells.gene_names, genes, cells.var, cells.options.species, path=cells.path
    ).target
    places = {gene: np.flatnonzero(target == place) for place, gene in enumerate(genes)}
    if absent := [gene for gene in genes if not len(places[gene])]:
        log.warning(
            "%d of %d genes of %s are not in %s: %s",
            len(absent),
            len(genes),
            markers.path,
            cells.path,
            listed(absent),
        )
    weights = np.zeros((len(cells.gene_names), len(markers.labels)))
    for column, label in enumerate(markers.labels):
        for gene, weight in markers.of_label(label).items():
            weights[places[gene], column] = weight
    return weights


def marker_scores(x: csr_matrix, weights: np.ndarray) -> np.ndarray:
    """Return the t statistic of each cell, ln(1 + cp10k), N x G, for each type with `weights`, G x T: float64 N x T."""
    num = x.shape[1]
    centred = weights - weights.mean(axis=0)
    mean = np.asarray(x.mean(axis=1), np.float64)
    squares = np.asarray(x.multiply(x).sum(axis=1), np.float64) - num * mean**2
    lengths = np.sqrt(np.maximum(squares, 1e-12)) * np.linalg.norm(centred, axis=0)
    correlation = np.clip((x @ centred) / np.maximum(lengths, 1e-12), -0.999, 0.999)
    return np.asarray(correlation * np.sqrt((num - 2) / (1 - correlation**2)))


def find_types(x: csr_matrix, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of the type of each cell by its markers, int64 N, -1 if it is of none, and which are clear.

    `x` is ln(1 + cp10k), N x G, and `weights` are G x T.
    """
    from sklearn.linear_model import LogisticRegression  # takes a while to import

    varying = x[:, np.argsort(-gene_deviation(x), kind="stable")[:NUM_VARIABLE]].astype(np.float64)
    points = varying @ principal_axes(varying, NUM_DIRECTIONS)[0]
    num = min(int(np.clip(x.shape[0] // CELLS_PER_NEIGHBOUR, MIN_NEAREST, NUM_NEAREST)), x.shape[0])
    scores = smoothed(marker_scores(x, weights), points, points, num)
    genes = np.flatnonzero((weights > 0).any(axis=1))
    expressed = smoothed(x[:, genes].toarray(), points, points, num)
    # One gene that other cells express, too, is not enough: several markers of the type are. Each type has one more
    # marker that no cell expresses, so that a type of which the file has a single gene does not win by it.
    num_expressed = np.minimum(expressed / np.maximum(_highest(expressed), MIN_EXPRESSION), 1) @ (
        weights[genes] > 0
    )
    share = num_expressed / ((weights > 0).sum(axis=0) + 1)
    relative = scores / np.maximum(_highest(scores), MIN_HIGHEST) * share
    relative[scores < MIN_EVIDENCE] = 0
    ordered = np.sort(np.column_stack([relative, np.zeros(len(scores))]), axis=1)
    best = np.where(ordered[:, -1] >= MIN_RELATIVE, relative.argmax(axis=1), -1)
    lead = ordered[:, -1] - ordered[:, -2]
    seeds: list[int] = []
    for label in range(weights.shape[1]):
        rows = np.flatnonzero((best == label) & (scores[:, label] >= MIN_SCORE))
        if len(rows) >= MIN_SEEDS:
            num = max(MIN_SEEDS, round(SHARE * len(rows)))
            seeds += rows[np.argsort(-lead[rows], kind="stable")[:num]].tolist()
    if len(np.unique(best[seeds])) < 2:
        return best, np.isin(np.arange(len(best)), seeds)
    model = LogisticRegression(class_weight="balanced", solver="newton-cholesky", tol=1e-6).fit(
        points[seeds], best[seeds]
    )
    proba = model.predict_proba(points)
    is_same = (model.classes_[proba.argmax(axis=1)] == best) & (proba.max(axis=1) >= MIN_CONFIDENCE)
    return best, is_same & (scores.max(axis=1) >= MIN_SCORE)


def _highest(values: np.ndarray) -> np.ndarray:
    """Return the mean of the highest values of each column."""
    return np.asarray(np.sort(values, axis=0)[-NUM_BEST:].mean(axis=0))


def marker_labels(
    cells: OpenedCells, markers: MarkerList, seed: int
) -> tuple[pd.Series, np.ndarray]:
    """Return the type of the clear cells among opened cells, else NaN, and which cells keep no other label, boolean N.

    These are of a type of the list, or not among the `MAX_CELLS` that are looked at.
    """
    weights = marker_matrix(cells, markers)
    rows = np.arange(cells.n_obs)
    if len(rows) > MAX_CELLS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, MAX_CELLS, replace=False))
    x = normalise(cells.some(rows), cells.findings, 1e4)
    best, is_clear = find_types(x, weights)
    names = np.array([*markers.labels, ""], dtype=object)
    labels = pd.Series(np.nan, index=range(cells.n_obs), dtype=object)
    labels.iloc[rows[is_clear]] = names[best[is_clear]]
    num = labels.value_counts().reindex(markers.labels, fill_value=0)
    log.info(
        "%s: clear cells by %s: %s",
        cells.path,
        markers.path,
        ", ".join(f"{a} {b:,}" for a, b in num.items()),
    )
    if without := num.index[num == 0].tolist():
        log.warning("%s: no cell has the markers of %s", cells.path, listed(without))
    is_free = np.ones(cells.n_obs, dtype=bool)
    is_free[rows] = best >= 0
    return labels, is_free


def level_keys(key: str, markers: MarkerList) -> list[str]:
    """Return the columns of labels on all levels of a list, the coarsest first; none if it has one level."""
    num = max(len(markers.line(label)) for label in markers.labels)
    return [*(f"{key} {level}" for level in range(1, num)), key] if num > 1 else []


def with_marker_labels(
    cells: OpenedCells[ReferenceOptions], obs: pd.DataFrame, markers: MarkerList
) -> pd.DataFrame:
    """Return obs with the types of clear cells, their parents and ids; cells of no type keep the label they have.

    Raises
    ------
    InputError
        Less than two types have cells, and there are no other labels.
    """
    options = cells.options
    key = options.label_key or TYPE
    labels, is_free = marker_labels(cells, markers, options.seed)
    labels.index = obs.index
    ids = labels.map(markers.terms)
    if key in obs:
        labels = labels.where(labels.notna() | is_free, label_texts(obs[key]))
    elif (num := labels.nunique()) < 2:
        found = f"cells of {num} of {len(markers.labels)} types of {markers.path} in {cells.path}"
        raise InputError(
            "few-types", found, "clear cells of two types or more", "check the genes of the list"
        )
    column = options.ontology_key or f"{key}{TERM_SUFFIX}"
    if column in obs:
        ids = ids.where(ids.notna() | is_free, label_texts(obs[column]))
    lines = {label: markers.line(label) for label in markers.labels}
    levels = {
        name: labels.map(
            {label: line[place] for label, line in lines.items() if place < len(line) - 1}
        )
        for place, name in enumerate(level_keys(key, markers)[:-1])
    }
    return obs.assign(**levels, **{key: labels, column: ids})
