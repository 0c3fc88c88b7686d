"""Files without a model: tissue found, accuracy, unknown cells and expected accuracy, beside other methods.

    python benchmarks/tissues.py FOLDER                  # development and test files, whole and cut
    python benchmarks/tissues.py FOLDER --use development     # the files by which options are chosen
    python benchmarks/tissues.py FOLDER --mixtures       # cells that the tissue lacks, among cells that it has
    python benchmarks/tissues.py FOLDER --organs         # 21 files of other organs, in FOLDER/organs
    python benchmarks/tissues.py --sisters               # each tissue annotated by others of its organ; needs no files

FOLDER has the files of `FILES`. Labels of a file and of a tissue are merged, after the calls, to what both mean. The
other methods get the profiles of the same tissue: logistic regression on the same simulated cells, the nearest profile
by Spearman's correlation, as in SingleR without its fine-tuning, and the package singler, if it is installed (1,000
cells of each file). The quantiles of trust/resemblance.py are printed from the development files: the resemblance of
known cells, relative to the usual one of their file, averaged over the files.

`--organs`: see benchmarks/organs.py; with `--use`, files of this use alone.

`--sisters`: cells simulated from each tissue, 50 for each type, are called by tissues of other studies that have such
types, such as an adult and a fetal one, also of the other species. A call is right if its Cell Ontology term is that of
the cell, or one of both contains the other.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anndata as ad
import numpy as np
import organs
import pandas as pd
from machine import machine
from panel import be_quiet
from rank_correlation import marker_genes, nearest_profile, variable_genes
from scipy import sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

import scperformer as scp
from scperformer.adaptation.tissue_model import tissue_model
from scperformer.base.errors import InputError
from scperformer.cells.profiles import simulated_counts
from scperformer.labels.ontology import packaged_ontology
from scperformer.model.tissues import collection
from scperformer.trust.resemblance import QUANTILES, SHARES

KEY = "scperformer"
ROWS = {"whole": (None, 1.0), "1,000 genes": (1000, 1.0), "a third of the counts": (None, 0.33)}

BLOOD = [  # (part of a label, type), the first that fits
    *(
        (word, None)
        for word in (
            "lymphoid",
            "eryth",
            "stem",
            "stromal",
            "precursor",
            "pro-b",
            "hsc",
            "neutro",
            "cycling",
        )
    ),
    *((word, None) for word in ("gamma-delta", "progenitor", "t activated", "plasma cell")),
    ("plasmacytoid", "DC"),
    ("pdc", "DC"),
    ("mait", "CD8 T"),
    ("platelet", "platelet"),
    ("mega", "platelet"),
    (" mk", "platelet"),
    ("t cd8", "CD8 T"),
    ("t cd4", "CD4 T"),
    ("cytotoxic t", "CD8 T"),
    ("cd8", "CD8 T"),
    ("helper", "CD4 T"),
    ("cd4", "CD4 T"),
    ("treg", "CD4 T"),
    ("regulatory t", "CD4 T"),
    ("nk", "NK"),
    ("mono", "monocyte"),
    ("macroph", "monocyte"),
    ("dendr", "DC"),
    ("dc", "DC"),
    (" b", "B"),
]
PANCREAS = [
    *((name, name) for name in ("alpha", "beta", "delta", "gamma", "epsilon")),
    ("duct", "ductal"),
    ("acinar", "acinar"),
    ("endothelial", "endothelial"),
    ("endocrine", "endocrine"),
    *((word, "stellate") for word in ("stellate", "mesench", "fibrobl", "pericyte", "smooth")),
    *((word, "macrophage") for word in ("macroph", "monocyte", "dendritic", "cdc")),
    ("mast", "mast"),
    ("schwann", "Schwann"),
    ("b cell", "B"),
    ("b lineage", "B"),
    ("plasma", "B"),
    ("t cell", "T"),
    ("nk", "T"),
    ("other", None),
]
LUNG = [
    ("neutro", "neutrophil"),
    ("granulo", "neutrophil"),
    ("nk", "NK"),
    ("plasma", "B"),
    ("b cell", "B"),
    ("t cell", "T"),
    ("cd4", "T"),
    ("cd8", "T"),
    ("mait", "T"),
]
SINGLER_CELLS = 1000
# which the label `endocrine` of a tissue may mean
ENDOCRINE = {"alpha", "beta", "delta", "gamma", "epsilon"}


@dataclass(frozen=True)
class File:
    """A file of another study than the collection."""

    name: str
    use: str  # development or test
    tissue: str | None  # None: no tissue of the collection
    types: list[tuple[str, str | None]]
    pick: Callable[[ad.AnnData], np.ndarray] | None = None


def _condition(value: str) -> Callable[[ad.AnnData], np.ndarray]:
    return lambda cells: (cells.obs["condition"] == value).to_numpy()


def _donor(number: int) -> Callable[[ad.AnnData], np.ndarray]:
    return lambda cells: (
        cells.obs["donor"] == sorted(cells.obs["donor"].unique())[number]
    ).to_numpy()


def _assay(name: str) -> Callable[[ad.AnnData], np.ndarray]:
    return lambda cells: (cells.obs["assay"] == name).to_numpy()


def _not_in_the_other(cells: ad.AnnData) -> np.ndarray:
    return ~cells.obs["in_zheng_sorted_pbmc"].to_numpy(bool)


FILES = [
    File("pbmc3k", "development", "blood", BLOOD),
    File("zheng_sorted_pbmc", "development", "blood", BLOOD),
    File("kang_ifnb_13999", "development", "blood", BLOOD, _condition("STIM")),
    File("baron_pancreas_mouse", "development", "mouse pancreas", PANCREAS),
    File("zilionis_mouse_lung_800", "development", "mouse lung", LUNG),
    File("mixology_lung_celllines", "development", None, []),
    File("zheng_sorted_scminer_3500", "test", "blood", BLOOD, _not_in_the_other),
    File("kang_ifnb_13999", "test", "blood", BLOOD, _condition("CTRL")),
    *(
        File("symphony_pbmc_1200_1767genes", "test", "blood", BLOOD, _assay(name))
        for name in ("3pv1", "3pv2", "5p")
    ),
    File("baron_pancreas_human", "test", "pancreas", PANCREAS),
    *(
        File("baron_pancreas_human", "test", "pancreas", PANCREAS, _donor(number))
        for number in range(4)
    ),
]


def merged(labels: pd.Series, types: list[tuple[str, str | None]]) -> np.ndarray:
    """Return the type of each label, None for those that no type is known of."""

    def of(label: str) -> str | None:
        text = f" {label.lower().replace('_', ' ').replace('+', '')} "
        return next(
            (kind for word, kind in types if word in text), None if types is not PANCREAS else label
        )

    found = {label: of(label) for label in labels.astype(str).unique()}
    return labels.astype(str).map(found).to_numpy(object)


def scores(truth: np.ndarray, calls: np.ndarray) -> dict[str, float]:
    """Return accuracy, macro-F1 and the recall of CD8 T cells, where there are some, over cells of a known type."""
    known = np.array([kind is not None for kind in truth])
    truth, calls = truth[known].astype(str), calls[known].astype(str)
    calls = np.where((calls == "endocrine") & np.isin(truth, list(ENDOCRINE)), truth, calls)
    kinds = sorted(set(truth))
    found = {
        "accuracy": (truth == calls).mean(),
        "F1": f1_score(truth, calls, labels=kinds, average="macro", zero_division=0),
    }
    return found | (
        {"CD8": (calls[truth == "CD8 T"] == "CD8 T").mean()} if "CD8 T" in kinds else {}
    )


def read(folder: Path, file: File, row: str) -> ad.AnnData:
    """Read a file with counts in X, and cut it as a row of the table asks for."""
    cells = ad.read_h5ad(folder / f"{file.name}.h5ad")
    cells.var_names_make_unique()
    if "counts" in cells.layers:
        cells.X = cells.layers["counts"]
    made = ad.AnnData(
        sparse.csr_matrix(cells.X, dtype=np.float32),
        obs=cells.obs,
        var=pd.DataFrame(index=cells.var_names),
    )
    made = made if file.pick is None else made[file.pick(made)].copy()
    num_genes, share = ROWS[row]
    if num_genes is not None and made.n_vars > num_genes:
        x = made.X.copy()
        x.data = np.log1p(x.data)
        mean = np.asarray(x.mean(axis=0)).ravel()
        spread = np.asarray(x.multiply(x).mean(axis=0)).ravel() - mean**2
        made = made[:, np.sort(np.argsort(-spread)[:num_genes])].copy()
    if share < 1:
        made.X.data = (
            np.random.default_rng(0).binomial(made.X.data.astype(int), share).astype(np.float32)
        )
        made.X.eliminate_zeros()
    return made


def by_others(cells: ad.AnnData, tissue: str) -> dict[str, np.ndarray]:
    """Return the labels of cells by other methods with the profiles of a tissue."""
    saved = tissue_model(
        tissue, cells.var_names.str.isupper().mean() > 0.5 and tissue.startswith("mouse")
    ).saved
    genes = pd.Index(saved.genes).intersection(cells.var_names)
    places = pd.Index(saved.genes).get_indexer(genes)
    x = _logs(cells[:, genes].X)
    assert saved.reference_cells is not None
    reference = saved.reference_cells.values[:, places]
    fit = LogisticRegression(C=0.1, max_iter=300, tol=1e-2).fit(
        _logs(reference), saved.reference_cells.labels
    )
    profiles = collection().tissue(tissue).profiles.to_numpy()[:, places]
    found = {
        "LR": fit.predict(x),
        "Spearman": nearest_profile(x, profiles, variable_genes(profiles)),
        "Spearman, markers": nearest_profile(x, profiles, marker_genes(profiles)),
    }
    try:
        import singler
    except ImportError:
        return {name: np.array(saved.labels)[codes] for name, codes in found.items()}
    named = {name: np.array(saved.labels)[codes] for name, codes in found.items()}
    some = np.sort(np.random.default_rng(0).permutation(len(cells))[:SINGLER_CELLS])
    result = singler.annotate_single(
        test_data=x[some].T.toarray().astype(float),
        test_features=list(genes),
        ref_data=np.ascontiguousarray(np.log2(1 + profiles).T, dtype=float),
        ref_features=list(genes),
        ref_labels=list(saved.labels),
        num_threads=1,
    )
    labels = np.full(len(cells), None, dtype=object)
    labels[some] = result.column("best")
    return named | {"singler": labels}


def _logs(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    x = sparse.csr_matrix(counts, dtype=np.float32, copy=True)
    totals = np.maximum(np.asarray(x.sum(axis=1)).ravel(), 1)
    x.data = np.log1p(x.data * np.repeat(1e4 / totals, np.diff(x.indptr)))
    return x


def row_of(folder: Path, file: File, row: str) -> dict[str, object]:
    """Return a line of the table for one file."""
    cells = read(folder, file, row)
    name = f"{file.name}{'' if file.pick is None else f', {cells.n_obs} cells'}"
    line: dict[str, object] = {"file": name, "row": row, "use": file.use}
    truth = merged(cells.obs["cell_type"], file.types)
    try:
        scp.annotate(cells)
    except InputError as error:
        return line | {
            "tissue": "none",
            "as expected": file.tissue is None,
            "error": str(error)[:60],
        }
    facts = cells.uns[KEY]
    line |= {
        "tissue": facts["tissue"]["name"],
        "as expected": facts["tissue"]["name"] == file.tissue,
    }
    if file.tissue is None:
        return line | {
            "score": facts["tissue"]["score"],
            "resemblance": facts["profiles"]["resemblance"],
        }
    line |= {
        "score": facts["tissue"]["score"],
        **scores(truth, merged(cells.obs[f"{KEY}_label"], file.types)),
    }
    known = np.array([kind is not None for kind in truth])
    unknown = (cells.obs[f"{KEY}_call"].astype(str) == "unknown").to_numpy()
    line |= {"unknown": unknown[known].mean(), "resemblance": facts["profiles"]["resemblance"]}
    line |= {
        "lowest": facts["profiles"]["expected_lowest"],
        "highest": facts["profiles"]["expected_highest"],
    }
    if file.tissue == "pancreas":
        own = np.isin(truth.astype(str), ["alpha", "beta", "delta", "acinar", "ductal", "stellate"])
        line["own types"] = scores(truth[own], merged(cells.obs[f"{KEY}_label"][own], file.types))[
            "accuracy"
        ]
    for method, labels in by_others(cells, file.tissue).items():
        has_call = np.array([label is not None for label in labels])
        line[method] = scores(truth[has_call], merged(pd.Series(labels[has_call]), file.types))[
            "accuracy"
        ]
    line["resemblances"] = resemblances(cells)[known]
    return line


def resemblances(cells: ad.AnnData) -> np.ndarray:
    """Return the resemblance of annotated cells relative to the usual one of their file."""
    novelty = cells.obs[f"{KEY}_novelty"].to_numpy(np.float64)
    return np.interp(1 - novelty, SHARES, QUANTILES)


MIXTURES = [  # cells that a tissue has, and cells that it lacks: file, its cells of a type (None: all), number
    (("pbmc3k", None, 800), ("mixology_lung_celllines", None, 200)),
    (("pbmc3k", None, 800), ("baron_pancreas_human", "beta", 150)),
    (("pbmc3k", None, 800), ("baron_pancreas_human", "ductal", 150)),
    (("baron_pancreas_human", None, 1000), ("mixology_lung_celllines", None, 300)),
    (("baron_pancreas_human", None, 1000), ("pbmc3k", None, 200)),  # which the pool has
]


def mixtures(folder: Path) -> pd.DataFrame:
    """Return the share of unknown cells among cells that a tissue has, and among cells of another file."""
    lines = []
    for parts in MIXTURES:
        tables = []
        for name, kind, num in parts:
            cells = read(
                folder,
                next(file for file in FILES if file.name == name and file.pick is None),
                "whole",
            )
            cells = cells if kind is None else cells[cells.obs["cell_type"] == kind]
            tables.append(
                cells[np.random.default_rng(0).choice(cells.n_obs, num, replace=False)].copy()
            )
        both = ad.concat(
            tables, keys=["own", "other"], index_unique="-", join="inner", label="part"
        )
        scp.annotate(both)
        unknown = (
            (both.obs[f"{KEY}_call"] == "unknown").groupby(both.obs["part"], observed=True).mean()
        )
        titles = [name if kind is None else f"{kind} cells of {name}" for name, kind, _ in parts]
        line = {
            "cells": titles[0],
            "among them": titles[1],
            "tissue": both.uns[KEY]["tissue"]["name"],
        }
        lines.append(
            line | {"unknown": unknown["own"], "unknown among the others": unknown["other"]}
        )
    return pd.DataFrame(lines)


def agree(one: str, other: str) -> bool:
    """Return whether two terms are the same, or one contains the other."""
    ontology = packaged_ontology()
    return one in ontology.ancestors(other) or other in ontology.ancestors(one)


def organ(tissue: str) -> str:
    """Return the organ of a tissue; parts of an organ are sisters, too."""
    parts = {
        "brain": ("cerebral cortex", "cerebrum", "cerebellum", "brain"),
        "intestine": ("ileum", "rectum", "colon", "small intestine", "intestine"),
        "lung": ("lung", "airway", "nasal swab", "bronchoalveolar lavage"),
        "blood": ("bone marrow and cord blood", "blood", "bone marrow", "spleen"),
        "uterus": ("placenta", "decidua", "uterus"),
        "muscle": ("skeletal muscle", "heart"),
        "bone": ("calvaria", "rib", "mesenchyme"),
    }
    return next((name for name, tissues in parts.items() if tissue in tissues), tissue)


def sisters() -> pd.DataFrame:
    """Return how tissues of other studies call the cells of each tissue."""
    rows = collection().tissues()
    found = []
    for row in rows.itertuples():
        own = collection().terms(row.set)
        profiles = collection().profiles(row.set)
        counts = simulated_counts(sparse.csr_matrix(profiles.to_numpy() / 1e6), 50, 1)
        truth = np.repeat(own.to_numpy(), 50)
        for other in rows[rows["title"] != row.title].itertuples():
            if organ(row.tissue) != organ(other.tissue):
                continue
            cells = ad.AnnData(counts.copy(), var=pd.DataFrame(index=profiles.columns))
            if row.species != other.species:  # most orthologs have the same symbol
                cells.var_names = cells.var_names.str.upper()
                cells.var_names_make_unique()
            scp.annotate(cells, options={"tissue": other.name})
            terms = collection().tissue(other.name).terms
            ids = dict(zip(tissue_model(other.name).saved.labels, terms, strict=True))
            calls = cells.obs[f"{KEY}_label"].astype(str).map(ids).to_numpy()
            has_type = {term: any(agree(term, one) for one in terms) for term in set(truth)}
            right = np.array([agree(one, two) for one, two in zip(truth, calls, strict=True)])
            shared = np.array([has_type[term] for term in truth])
            by_type = pd.Series(right[shared]).groupby(np.repeat(own.index, 50)[shared]).mean()
            failing = ", ".join(
                f"{name} {value:.2f}" for name, value in by_type.items() if value < 0.5
            )
            accuracy = right[shared].mean() if shared.any() else np.nan
            line = {
                "tissue": row.name,
                "called by": other.name,
                "types": len(by_type),
                "accuracy": accuracy,
            }
            found.append(
                line
                | {"resemblance": cells.uns[KEY]["profiles"]["resemblance"], "below .5": failing}
            )
            print(found[-1], flush=True)
    return pd.DataFrame(found)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--use", choices=["development", "test"])
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
    parser.add_argument("--mixtures", action="store_true")
    parser.add_argument("--organs", action="store_true")
    parser.add_argument("--sisters", action="store_true")
    arguments = parser.parse_args()
    be_quiet()
    print(machine())
    if arguments.sisters:
        print(sisters().to_markdown(index=False, floatfmt=".2f"))
        return
    if arguments.folder is None:
        parser.error("name the folder of the files")
    if arguments.mixtures:
        print(mixtures(arguments.folder).to_markdown(index=False, floatfmt=".2f"))
        return
    if arguments.organs:
        print(
            organs.table(arguments.folder, arguments.use).to_markdown(index=False, floatfmt=".3f")
        )
        return
    lines = []
    for row in arguments.rows:
        for file in FILES:
            if arguments.use in (None, file.use):
                lines.append(row_of(arguments.folder, file, row))
                print(
                    {name: value for name, value in lines[-1].items() if name != "resemblances"},
                    flush=True,
                )
    table = pd.DataFrame(lines)
    known = [
        line
        for line in lines
        if line["use"] == "development" and line["row"] == "whole" and "resemblances" in line
    ]
    if known:
        grid = np.linspace(0, QUANTILES[-1], 1000)
        shares = np.mean(
            [
                np.searchsorted(np.sort(line["resemblances"]), grid) / len(line["resemblances"])
                for line in known
            ],
            axis=0,
        )
        print(
            "quantiles:", dict(zip(SHARES, np.interp(SHARES, shares, grid).round(3), strict=True))
        )
    table = table.drop(columns="resemblances", errors="ignore")
    print(table.to_markdown(index=False, floatfmt=".3f"))
    print(
        table.groupby(["row", "use"], sort=False)
        .mean(numeric_only=True)
        .to_markdown(floatfmt=".3f")
    )


if __name__ == "__main__":
    main()
