"""Lists of marker genes as the only reference, beside decoupler, ScType's rule and CellAssign.

    python benchmarks/markers.py FOLDER                               # ours, all files of FILES that FOLDER has
    python benchmarks/markers.py FOLDER --without "B cell" NK         # types that are taken out of the lists
    python benchmarks/markers.py FOLDER --without-list                # by the tissue that is found, without a list
    PYTHON benchmarks/markers.py FOLDER --others                      # with decoupler, leidenalg and scvi-tools

A line for each method: accuracy of labels or calls and macro-F1 on the types of the list, the share that is unknown,
and the share of cells of the types taken out that is unknown.
"""

import argparse
import tempfile
import warnings
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import scanpy as sc
from scipy.sparse import csr_matrix
from sklearn.metrics import f1_score

LISTS = Path(__file__).parents[1] / "data" / "markers"
MAX_CELLS = 2500
BLOOD = {
    "CD4 T": "CD4 T|Naive CD4 T|Memory CD4 T|CD4TCM|CD4TN|CD4Treg",
    "CD8 T": "CD8 T|CD8TN",
    "NK cell": "NK",
    "B cell": "B",
    "monocyte": "CD14+ Mono|FCGR3A+ Mono|Monocyte",
    "dendritic cell": "DC",
    "plasmacytoid dendritic cell": "pDC",
    "platelet": "Platelet",
    "erythrocyte": "Erythrocyte",
}
PANCREAS = {
    "stellate": "activated_stellate|quiescent_stellate",
    "PP": "gamma",
    "mast cell": "mast",
    "T cell": "t_cell",
}
PANCREAS |= {
    name: name
    for name in (
        "beta",
        "alpha",
        "ductal",
        "acinar",
        "delta",
        "endothelial",
        "macrophage",
        "epsilon",
    )
}
BRAIN = {
    "Bergmann glia": "Bergmann glial cell",
    "pericyte": "brain pericyte",
    "endothelial": "endothelial cell",
    "microglia": "microglial cell",
    "OPC": "oligodendrocyte precursor cell",
} | {name: name for name in ("astrocyte", "macrophage", "neuron", "oligodendrocyte")}
LUNG = {
    "B cell": "B cells",
    "NK cell": "NK cells",
    "neutrophil": "Neutrophils",
    "T cell": "T cells",
}
# Names of the Cell Ontology for those of the lists.
ONTOLOGY = {
    "acinar": "pancreatic acinar cell",
    "ductal": "pancreatic ductal cell",
    "alpha": "pancreatic A cell",
}
ONTOLOGY |= {
    "beta": "type B pancreatic cell",
    "delta": "pancreatic D cell",
    "PP": "pancreatic PP cell",
}
ONTOLOGY |= {
    "epsilon": "pancreatic epsilon cell",
    "stellate": "pancreatic stellate cell",
    "Schwann": "Schwann cell",
}
ONTOLOGY |= {
    "endothelial": "endothelial cell",
    "OPC": "oligodendrocyte precursor cell",
    "microglia": "microglial cell",
}
ONTOLOGY |= {"Bergmann glia": "Bergmann glial cell"}
FILES = {  # file: column of labels, list, labels of each type of the list
    "pbmc3k": ("cell_type", "blood", BLOOD),
    "kang_ifnb_13999": ("coarse", "blood", BLOOD),
    "baron_pancreas_human": ("cell_type", "pancreas", PANCREAS | {"Schwann": "schwann"}),
    "zheng_sorted_pbmc": ("cell_type_coarse", "blood", BLOOD),
    "zheng_sorted_scminer_3500": ("cell_type", "blood", BLOOD),
    "zilionis_mouse_lung_800": ("cell_type", "mouse_lung_immune", LUNG),
    "organs/mouse_brain_tm": ("cell_type", "mouse_brain", BRAIN),
}


def load(folder: Path, file: str) -> tuple[ad.AnnData, np.ndarray, pd.DataFrame]:
    """Return up to `MAX_CELLS` random cells, their types ("": others), and the list."""
    key, name, labels = FILES[file]
    cells = ad.read_h5ad(folder / f"{file}.h5ad")
    if "condition" in cells.obs:
        cells = cells[cells.obs["condition"] == "CTRL"].copy()
    if cells.n_obs > MAX_CELLS:
        chosen = np.sort(np.random.default_rng(0).choice(cells.n_obs, MAX_CELLS, replace=False))
        cells = cells[chosen].copy()
    if name.startswith("mouse"):
        cells.var_names = [gene.capitalize() for gene in cells.var_names]
    cells.var_names_make_unique()
    type_of = {
        label: kind for kind, alternatives in labels.items() for label in alternatives.split("|")
    }
    truth = cells.obs[key].astype(str).map(type_of).fillna("").to_numpy(str)
    plain = ad.AnnData(
        csr_matrix(cells.X, dtype=np.float32), var=pd.DataFrame(index=cells.var_names)
    )
    plain.obs_names = cells.obs_names
    return plain, truth, pd.read_csv(LISTS / f"{name}.csv", keep_default_na=False)


def genes_of(table: pd.DataFrame, genes: pd.Index) -> dict[str, list[str]]:
    """Return the genes of each type that is no parent, with those of its parent."""
    parents = dict(zip(table["type"], table["parent"], strict=True))
    own = table[table["gene"].isin(genes)].groupby("type", sort=False)["gene"].agg(list)
    types = [kind for kind in parents if kind not in parents.values()]
    return {kind: [*own.get(kind, []), *own.get(parents[kind], [])] for kind in types}


def say(what: str, calls: np.ndarray, truth: np.ndarray, types: list[str]) -> None:
    known, missing = np.isin(truth, types), (truth != "") & ~np.isin(truth, types)
    macro = f1_score(truth[known], calls[known], labels=np.unique(truth[known]), average="macro")
    accuracy = (calls[known] == truth[known]).mean()
    row = f"{what}: {accuracy:.3f} / {macro:.3f}, unknown {(calls[known] == '').mean():.3f}"
    print(
        row
        + (f", of types taken out {(calls[missing] == '').mean():.2f}" if missing.any() else ""),
        flush=True,
    )


def ours(
    cells: ad.AnnData, truth: np.ndarray, table: pd.DataFrame, types: list[str], name: str
) -> None:
    import scperformer

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "list.csv"
        table.to_csv(path, index=False)
        scperformer.annotate(cells, options={"types": str(path)})
    for column in ("label", "call"):
        calls = cells.obs[f"scperformer_{column}"].astype(str).replace("unknown", "").to_numpy(str)
        say(f"{name}, {column}s", calls, truth, types)


def without_list(
    cells: ad.AnnData, truth: np.ndarray, table: pd.DataFrame, types: list[str], name: str
) -> None:
    """Score the calls without a list, whose labels `evaluate` compares with the types by the Cell Ontology."""
    import scperformer

    cells.obs["truth"] = pd.Series(truth, cells.obs_names).replace(ONTOLOGY)
    known = cells[np.isin(truth, types)].copy()
    scperformer.annotate(known)
    accuracy = scperformer.evaluate(known, truth_key="truth").scores["accuracy"].iloc[0]
    print(f"{name}, without a list: {accuracy:.3f}", flush=True)


def others(
    cells: ad.AnnData, truth: np.ndarray, table: pd.DataFrame, types: list[str], name: str
) -> None:
    import decoupler

    markers = {kind: genes for kind, genes in genes_of(table, cells.var_names).items() if genes}
    counts = cells.X.copy()
    sc.pp.normalize_total(cells, target_sum=1e4)
    sc.pp.log1p(cells)
    net = pd.DataFrame([(kind, gene, 1.0) for kind, genes in markers.items() for gene in genes])
    decoupler.mt.ulm(
        cells, net.set_axis(["source", "target", "weight"], axis=1), tmin=1, verbose=False
    )
    scores = pd.DataFrame(cells.obsm["score_ulm"])
    say(f"{name}, decoupler", scores.idxmax(axis=1).to_numpy(str), truth, types)
    sc.pp.highly_variable_genes(cells, n_top_genes=min(2000, cells.n_vars))
    sc.pp.pca(cells, n_comps=30)
    sc.pp.neighbors(cells, n_neighbors=15)
    sc.tl.leiden(cells, resolution=1, random_state=0, flavor="igraph", n_iterations=2)
    clusters = cells.obs["leiden"].to_numpy(str)
    best = scores.groupby(clusters).mean().idxmax(axis=1)
    say(f"{name}, decoupler by cluster", best[clusters].to_numpy(str), truth, types)
    say(f"{name}, ScType", sctype(cells, markers, clusters), truth, types)
    say(f"{name}, CellAssign", cellassign(cells, counts, markers), truth, types)


def sctype(cells: ad.AnnData, markers: dict[str, list[str]], clusters: np.ndarray) -> np.ndarray:
    """Return calls by the rule of ScType (Ianevski et al. 2022, Nat. Commun. 13:1246): specific markers weigh more."""
    genes = list(dict.fromkeys(gene for each in markers.values() for gene in each))
    values = cells[:, genes].X.toarray()
    z = pd.DataFrame(
        (values - values.mean(axis=0)) / np.maximum(values.std(axis=0), 1e-9), columns=genes
    )
    num = pd.Series({gene: sum(gene in each for each in markers.values()) for gene in genes})
    weights = (
        (num.max() - num) / max(num.max() - num.min(), 1)
        if num.max() > num.min()
        else num * 0 + 1.0
    )
    scores = pd.DataFrame(
        {kind: z[each] @ weights[each] / np.sqrt(len(each)) for kind, each in markers.items()}
    )
    sums = scores.groupby(clusters).sum()
    sizes = pd.Series(clusters).value_counts()
    called = sums.idxmax(axis=1).where(sums.max(axis=1) >= sizes / 4, "")
    return called[clusters].to_numpy(str)


def cellassign(cells: ad.AnnData, counts: csr_matrix, markers: dict[str, list[str]]) -> np.ndarray:
    import scvi

    scvi.settings.seed = 0
    genes = list(dict.fromkeys(gene for each in markers.values() for gene in each))
    table = pd.DataFrame(
        {kind: [int(gene in each) for gene in genes] for kind, each in markers.items()}, index=genes
    )
    sizes = np.asarray(counts.sum(axis=1)).ravel()
    of_genes = ad.AnnData(
        counts, obs=pd.DataFrame({"size": sizes / sizes.mean()}, cells.obs_names), var=cells.var
    )
    of_genes = of_genes[:, genes].copy()
    of_genes.X = of_genes.X.toarray()
    scvi.external.CellAssign.setup_anndata(of_genes, size_factor_key="size")
    model = scvi.external.CellAssign(of_genes, table)
    model.train(max_epochs=200, accelerator="cpu", enable_progress_bar=False, logger=False)
    return model.predict().idxmax(axis=1).to_numpy(str)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", nargs="+", default=list(FILES), choices=FILES)
    parser.add_argument("--without", nargs="+", default=[])
    parser.add_argument("--others", dest="how", action="store_const", const=others, default=ours)
    parser.add_argument("--without-list", dest="how", action="store_const", const=without_list)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in given.files:
        if not (given.folder / f"{name}.h5ad").exists():
            continue
        cells, truth, table = load(given.folder, name)
        table = table[~table["type"].isin(given.without)]
        types = list(genes_of(table, cells.var_names))
        given.how(cells, truth, table, types, name)


if __name__ == "__main__":
    main()
