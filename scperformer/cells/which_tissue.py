"""Which tissue a file is of: the one whose profiles differ from each other as the cells of the file do.

Cells are centred by the mean of the file, and profiles by the mean of the same mixture of types. The chemistry and the
ambient RNA of the file, which all of its cells share, have then no part in their correlation. Cells of a single type
have little left; the mean of the file is compared with the profiles instead.

Shape letters: N cells, P profiles, G genes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData

from scperformer.base.errors import InputError
from scperformer.cells.detect import gene_table
from scperformer.cells.query import Query, find_expression, map_to_model
from scperformer.config.options import TissueOptions
from scperformer.io.gene_names import guess_species
from scperformer.io.gene_overlap import MIN_PANEL
from scperformer.io.h5ad import BackedH5ad
from scperformer.model.resemblance import centred
from scperformer.model.saved_model import SavedModel
from scperformer.model.tissues import collection

NUM_CELLS = 500  # of a file, which are compared
NUM_GENES = 2000  # that vary most between profiles
NUM_ROUNDS = 3  # of finding the nearest profile of each cell, and the mixture of types
# Files of tissues in the collection have scores of .23 to .58, cell lines .08 to .11 (benchmarks/tissues.py).
MIN_SCORE = 0.15
# The mean of cells of one type correlates with its profile by .63 to .91, of a cell line with any by .49 at most.
MIN_MEAN_SCORE = 0.56
CLOSE = 0.9  # another tissue fits, too, if its score is so much of the first one's
TINY = 1e-9  # in place of 0, where a quotient is taken
# How a tissue was found.
CELLS = "differences between cells"
MEAN = "mean of the cells"
GIVEN = "given"


@dataclass(frozen=True)
class Ranking:
    """The tissues of a species by their resemblance to a file, the nearest first."""

    names: list[str]
    scores: list[float]
    how: str  # CELLS or MEAN
    in_capitals: bool  # mouse symbols in capitals

    @property
    def is_found(self) -> bool:
        """Whether the first tissue fits."""
        return self.scores[0] >= (MIN_SCORE if self.how == CELLS else MIN_MEAN_SCORE)

    @property
    def record(self) -> dict[str, Any]:
        """The first tissue and how it was found, as annotations record it, and the next two."""
        record = {"name": self.names[0], "title": collection().title(self.names[0]), "in_capitals": self.in_capitals}
        record |= {"how": self.how, "score": self.scores[0]}
        return record | {"next": self.names[1:3], "next_scores": self.scores[1:3]}


def tissue_text(record: Mapping[str, Any]) -> str:
    """Return a tissue and how it was found, as in "pancreas (adult human) 0.31; next: fetal pancreas 0.17"."""
    if record["how"] == GIVEN:
        return f"{record['title']}, as given"
    text = f"{record['title']} {record['score']:.2f}; "
    if close := close_tissues(record):
        return f"{text}{close} fit{'' if ' and ' in close else 's'}, too"
    return f"{text}next: {', '.join(_scored(record))}"


def close_tissues(record: Mapping[str, Any]) -> str:
    """Return the tissues that fit nearly as well as the one that was found, with their scores; "" if none does."""
    scores = record.get("next_scores", ())
    return " and ".join(_scored(record)[: sum(score >= CLOSE * record["score"] for score in scores)])


def _scored(record: Mapping[str, Any]) -> list[str]:
    pairs = zip(record.get("next", ()), record.get("next_scores", ()), strict=True)
    return [f"{name} {score:.2f}" for name, score in pairs]


def require_tissue(ranking: Ranking, path: str) -> None:
    """Refuse a file that resembles no tissue, such as cell lines."""
    if not ranking.is_found:
        least = MIN_SCORE if ranking.how == CELLS else MIN_MEAN_SCORE
        nearest = [f"{name} {score:.2f}" for name, score in zip(ranking.names[:2], ranking.scores, strict=False)]
        found = f"cells in {path} that resemble no tissue of the collection (the nearest are {' and '.join(nearest)})"
        remedy = "name a tissue of 'scperformer models list' by tissue=NAME, or a model by model_path=FOLDER"
        raise InputError(found, f"a correlation of {least:g} or more", remedy)


def named_tissue(cells: AnnData | BackedH5ad, cfg: TissueOptions) -> tuple[str, bool]:
    """Return the name of the tissue that a user names, and whether its symbols are to be in capitals."""
    findings, _ = find_expression(cells, cfg)
    names = list(map(str, gene_table(cells, findings).index))
    name = collection().find(str(cfg.tissue), guess_species(names) if cfg.species == "auto" else cfg.species)
    return name, collection().is_mouse(name) and _in_capitals(names)


def rank_tissues(cells: AnnData | BackedH5ad, cfg: TissueOptions, path: str = "the data") -> Ranking:
    """Rank the tissues by how well their profiles fit the cells of an open file; capitals may be of both species."""
    findings, rows = find_expression(cells, cfg, path)
    var = gene_table(cells, findings)
    samples = []  # for each species: some cells, the genes that the file has, and whether its symbols are in capitals
    names = list(map(str, var.index))
    remedy = "check their names; for another species, train a model on its labelled cells"
    if cfg.species == "auto" and guess_species(names) == "other":
        found = f"genes of another species in {path} (e.g. '{names[-1]}')"
        raise InputError(found, "genes of human or mouse", remedy)
    problem = InputError(f"fewer than {MIN_PANEL} known genes in {path}", "genes of human or mouse", remedy)
    for species in ("human", "mouse") if cfg.species == "auto" else (cfg.species,):
        in_capitals = species == "mouse" and _in_capitals(var.index)
        try:
            plan = map_to_model(var, findings, _genes_as_model(species, in_capitals), cfg, path)
        except InputError as error:  # names of another species
            problem = error
            continue
        query = Query(path, rows, plan, var, cfg)
        if query.measured.sum() >= MIN_PANEL:
            x = query.some(query.spread(NUM_CELLS)).toarray()
            samples.append((species, x, query.measured, in_capitals))
    if not samples:
        raise problem
    by_cells, by_mean = (
        max((_ranking(*sample, how) for sample in samples), key=lambda ranking: ranking.scores[0])
        for how in (CELLS, MEAN)
    )
    return by_cells if by_cells.is_found or not by_mean.is_found else by_mean


def _in_capitals(names: pd.Index | list[str]) -> bool:
    return guess_species([str(name) for name in names]) == "human"


def _genes_as_model(species: str, in_capitals: bool) -> SavedModel:
    """Return the genes of a species as a model without labels, to which the genes of a file are matched."""
    genes = [gene.upper() if in_capitals else gene for gene in collection().genes(species).tolist()]
    empty: dict[str, Any] = {"labels": [], "ontology_term_ids": [], "metrics": {}, "provenance": {}, "weights": {}}
    means = np.ones(len(genes), dtype=np.float32)
    return SavedModel(name=species, genes=genes, gene_means=means, config={"target_sum": 1e4}, **empty)


def _ranking(species: str, x_NG: np.ndarray, measured: np.ndarray, in_capitals: bool, how: str) -> Ranking:
    """Rank the tissues of a species, given ln(1 + cp10k) of its genes, of which the file has the `measured` ones."""
    tissues = collection().tissues(species)
    sets, logs_PG, has_gene_PG = collection().expression(species)
    spread_G = logs_PG.std(axis=0) * measured
    mean_G = logs_PG.mean(axis=0)
    totals_G = np.expm1(x_NG).mean(axis=0)
    file_G = np.log1p(totals_G * 1e4 / max(float(totals_G.sum()), TINY))
    scores = {}
    for name, of_tissue in zip(tissues["set"], tissues["name"], strict=True):
        is_own = sets == name
        own_G = spread_G * has_gene_PG[is_own][0]
        top = np.argsort(-own_G)[: min(NUM_GENES, np.count_nonzero(own_G))]
        if how == CELLS:
            scores[of_tissue] = _median_correlation(x_NG[:, top], logs_PG[is_own][:, top])
        else:
            profiles = centred((logs_PG[is_own] - mean_G)[:, top])
            scores[of_tissue] = float((profiles @ centred((file_G - mean_G)[None, top])[0]).max())
    order = sorted(scores, key=lambda name: -scores[name])
    return Ranking(order, [scores[name] for name in order], how, in_capitals)


def _median_correlation(cells_NG: np.ndarray, profiles_PG: np.ndarray) -> float:
    """Return the median correlation of centred cells with the nearest centred profile."""
    own_NG = centred(cells_NG - cells_NG.mean(axis=0))
    mean_G = profiles_PG.mean(axis=0)
    for _ in range(1 + NUM_ROUNDS):
        correlations_NP = own_NG @ centred(profiles_PG - mean_G).T
        shares_P = np.bincount(correlations_NP.argmax(axis=1), minlength=len(profiles_PG)) / len(cells_NG)
        mean_G = shares_P @ profiles_PG
    return float(np.median(correlations_NP.max(axis=1)))
