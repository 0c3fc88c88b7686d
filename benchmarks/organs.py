"""Files of many organs without a model: the tissue that was found, and calls against the labels of the studies.

Three tables beside this module have what is known of the files. `coarse_types.tsv` is a tree of coarse types, with the
Cell Ontology terms below which a type belongs to them. `organs.tsv` names the tissues of the collection that are right
for a file, or near, and whether the file is one that options are chosen by. `organ_labels.tsv` has the coarse types
that a label of a study may be called; a label that ends with * stands for all that begin so.

A call is right if its coarse type is one of these, or above or below one in the tree. Malignant epithelium counts as
epithelium. Types that no tissue of the species has are absent: their cells should be unknown.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import process_time
from typing import Any

import anndata as ad
import numpy as np
import pandas as pd
from rank_correlation import marker_genes, nearest_profile, variable_genes
from scipy import sparse

import scperformer as scp
from scperformer.adaptation.tissue_model import tissue_model
from scperformer.base.errors import InputError
from scperformer.labels.ontology import packaged_ontology
from scperformer.model.tissues import collection

KEY = "scperformer"
TABLES = Path(__file__).parent
FOLDER = "organs"  # of the files, in the folder of the other files
COMMON = "common types"  # the name of a model in place of a tissue that is not determined
UNKNOWN = "unknown"
OTHER = "other"  # the coarse type of terms that are below none of the table


@dataclass(frozen=True)
class Organ:
    """What is known of a file: whether options are chosen by it, its tissues, and the types of its labels."""

    name: str
    use: str  # development or test
    right: list[str]
    near: list[str]
    labels: dict[str, list[str]]

    @property
    def species(self) -> str:
        """The first word of the name."""
        return self.name.partition("_")[0]

    def group(self, label: str) -> str:
        """Return the row of the table that a label belongs to."""
        starts = (row for row in self.labels if row.endswith("*") and label.startswith(row[:-1]))
        return label if label in self.labels else next(starts)

    def verdict(self, tissue: str | None) -> str:
        """Return how good a tissue is; None: the file was refused."""
        if tissue is None:
            return "refused" if self.right or self.near else "refused rightly"
        if tissue.removeprefix("mouse ") == COMMON:
            return "not determined" if self.right else "not determined rightly"
        return "right" if tissue in self.right else "near" if tissue in self.near else "wrong"


def organs() -> list[Organ]:
    """Return the files of organs.tsv."""
    labels = _table("organ_labels").groupby("file")
    of_file = {
        file: {row.label: row.classes.split(", ") for row in rows.itertuples()}
        for file, rows in labels
    }
    rows = _table("organs").itertuples()
    return [
        Organ(row.file, row.use, _listed(row.right), _listed(row.near), of_file[row.file])
        for row in rows
    ]


def _table(name: str) -> pd.DataFrame:
    return pd.read_csv(TABLES / f"{name}.tsv", sep="\t", keep_default_na=False)


def _listed(text: str) -> list[str]:
    return text.split(", ") if text else []


@cache
def _tree() -> tuple[dict[str, str], dict[str, str]]:
    """Return the parent of each coarse type, and the coarse type of each term of the table."""
    table = _table("coarse_types")
    types = {term: row["class"] for _, row in table.iterrows() for term in row["terms"].split()}
    return dict(zip(table["class"], table["parent"], strict=True)), types


@cache
def coarse_type(term: str) -> str:
    """Return the coarse type of a term: that of the nearest term above it which the table has."""
    _, types = _tree()
    parents = packaged_ontology().parents
    while term not in types and term in parents:
        term = parents[term][0]
    return types.get(term, OTHER)


@cache
def lineage(kind: str) -> list[str]:
    """Return a coarse type and those above it."""
    above = _tree()[0].get(kind, "")
    return [kind, *(lineage(above) if above else [])]


def fits(kind: str, accepted: Sequence[str]) -> bool:
    """Return whether a coarse type is one of those accepted, or above or below one."""
    return any(kind in lineage(one) or one in lineage(kind) for one in accepted)


@cache
def types_of_species(species: str) -> set[str]:
    """Return the coarse types that the tissues of a species have."""
    tissues = collection().tissues(species)["name"]
    return {coarse_type(term) for name in tissues for term in collection().tissue(name).terms}


def scores(
    groups: np.ndarray, calls: np.ndarray, accepted: dict[str, list[str]], types: set[str]
) -> dict[str, float]:
    """Return how good the calls of cells are, coarse types or `unknown`.

    `accepted` has the types that are right for each group of cells, and `types` those that the species has.
    """
    present = [
        group for group in sorted(set(groups)) if any(fits(kind, accepted[group]) for kind in types)
    ]
    has_type = np.isin(groups, present)
    is_unknown = calls == UNKNOWN
    is_right = right(groups, calls, accepted)
    return {
        "acc": _mean(is_right[has_type]),
        "called": _mean(is_right[has_type & ~is_unknown]),
        "F1": _mean(
            [_f1(groups == group, np.isin(calls, accepted[group]), is_right) for group in present]
        ),
        "known flagged": _mean(is_unknown[has_type]),
        "absent": int((~has_type).sum()),
        "absent flagged": _mean(is_unknown[~has_type]),
    }


def right(groups: np.ndarray, calls: np.ndarray, accepted: dict[str, list[str]]) -> np.ndarray:
    """Return whether each call is right."""
    return np.array(
        [fits(call, accepted[group]) for group, call in zip(groups, calls, strict=True)], dtype=bool
    )


def _f1(is_own: np.ndarray, is_called: np.ndarray, is_right: np.ndarray) -> float:
    """Return F1 of a group; cells of others that are called rightly are not its false positives."""
    hits = (is_own & is_right).sum()
    return float(2 * hits / (hits + (is_called & ~is_own & ~is_right).sum() + is_own.sum()))


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else np.nan


def annotated(folder: Path, organ: Organ) -> tuple[ad.AnnData, float]:
    """Annotate a file, and return it with the CPU seconds; a file that is refused has no annotation."""
    cells = ad.read_h5ad(folder / FOLDER / f"{organ.name}.h5ad")
    start = process_time()
    with suppress(InputError):
        scp.annotate(cells)
    return cells, process_time() - start


def line_of(cells: ad.AnnData, organ: Organ) -> dict[str, object]:
    """Return the line of a file, annotated or refused."""
    tissue = str(cells.uns[KEY]["tissue"]["name"]) if KEY in cells.uns else None
    line: dict[str, object] = {
        "file": organ.name,
        "use": organ.use,
        "species": organ.species,
        "cells": cells.n_obs,
    }
    line |= {"tissue": tissue or "-", "verdict": organ.verdict(tissue)}
    if tissue is None:
        return line | ({"acc": 0.0, "F1": 0.0} if organ.verdict(tissue) == "refused" else {})
    groups = cells.obs["cell_type"].astype(str).map(organ.group).to_numpy(str)
    score = partial(scores, groups, accepted=organ.labels, types=types_of_species(organ.species))
    is_unknown = cells.obs[f"{KEY}_call"].astype(str) == UNKNOWN
    line |= score(
        np.where(is_unknown, UNKNOWN, _coarse(cells.obs[f"{KEY}_ontology_term_id"].astype(str)))
    )
    line |= expected(cells.uns[KEY].get("profiles", {}), line["called"])
    return line | {
        method: score(_coarse(terms))["acc"]
        for method, terms in terms_before_unknown(cells).items()
    }


def _coarse(terms: Sequence[str]) -> np.ndarray:
    return np.array([coarse_type(term) for term in terms])


def expected(facts: Mapping[str, Any], called: float) -> dict[str, object]:
    """Return the expected range of accuracy, and whether the accuracy of called cells is inside of it."""
    lowest, highest = (float(facts.get(f"expected_{end}", np.nan)) for end in ("lowest", "highest"))
    is_known = not np.isnan([lowest, highest, called]).any()
    place = (
        ("below" if called < lowest else "above" if called > highest else "inside")
        if is_known
        else ""
    )
    return {"lowest": lowest, "highest": highest, "called is": place}


def terms_before_unknown(cells: ad.AnnData) -> dict[str, Sequence[str]]:
    """Return the terms of the labels of annotated cells, and by other methods with the profiles of the same tissue."""
    tissue = cells.uns[KEY]["tissue"]
    saved = tissue_model(str(tissue["name"]), bool(tissue["in_capitals"])).saved
    genes = pd.Index(saved.genes).intersection(cells.var_names)
    profiles = (
        collection()
        .tissue(str(tissue["name"]))
        .profiles.to_numpy()[:, pd.Index(saved.genes).get_indexer(genes)]
    )
    x = sparse.csr_matrix(cells[:, genes].X)
    terms = np.array(saved.ontology_term_ids)
    return {
        "labels": terms[pd.Index(saved.labels).get_indexer(cells.obs[f"{KEY}_label"])],
        "Spearman, markers": terms[nearest_profile(x, profiles, marker_genes(profiles))],
        "Spearman": terms[nearest_profile(x, profiles, variable_genes(profiles))],
    }


def table(folder: Path, use: str | None) -> pd.DataFrame:
    """Return the lines of all files, or of those with a use, and their means."""
    lines = []
    for organ in organs():
        if use in (None, organ.use):
            cells, seconds = annotated(folder, organ)
            lines.append(line_of(cells, organ) | {"CPU s": seconds})
            print(lines[-1], flush=True)
    found = pd.DataFrame(lines)
    uses = found["use"].unique() if use is None else []
    summaries = [summary(found, "all"), *(summary(found[found["use"] == one], one) for one in uses)]
    return pd.concat([found, pd.DataFrame(summaries)], ignore_index=True)


def summary(lines: pd.DataFrame, use: str) -> dict[str, object]:
    """Return the last line of the table: counts of verdicts, means, and sums of cells; refused files count 0."""
    found: dict[str, object] = {
        "file": f"{len(lines)} files",
        "use": use,
        "cells": lines["cells"].sum(),
    }
    verdicts = lines["verdict"].value_counts()
    found["verdict"] = ", ".join(f"{number} {verdict}" for verdict, number in verdicts.items())
    is_means = lines.columns.difference(
        [*found, "absent", "absent flagged", "lowest", "highest", "CPU s"]
    )
    found |= lines[is_means].mean(numeric_only=True).to_dict()
    absent = lines["absent"].sum()
    found |= {
        "absent": absent,
        "absent flagged": (lines["absent"] * lines["absent flagged"]).sum() / max(absent, 1),
    }
    is_known = lines["called is"].isin(["below", "inside", "above"])
    found["called is"] = f"inside {(lines['called is'] == 'inside').sum()} of {is_known.sum()}"
    return found | {"CPU s": lines["CPU s"].sum()}
