"""Draw inputs by chance: shapes, types, kinds of names and faults of files of cells."""

import warnings
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
from hypothesis import strategies as st
from scipy import sparse
from support.inputs import write_tenx_v3

MAX_CELLS, MAX_GENES = 20, 30
DTYPES = (
    "float32",
    "float32",
    "int32",
    "float64",
    "float16",
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "bool",
)
SPOILS = (np.nan, np.inf, -3.0, 1e30, 1.7e308, 1e-300, 3e9)  # the last one is beyond int32
ODD_NAMES = (
    "",
    "nan",
    "-2.5",
    "=1+1",
    "<script>alert(1)</script>",
    "a\nb",
    "Ünïcödé-β",
    "../../x",
    "x" * 5000,
    " ",
)
GENES = {
    "model": lambda i: f"GENE{i}",
    "Ensembl": lambda i: f"ENSG{i:011d}.{i % 3}",
    "repeated": lambda i: f"GENE{i // 2}",
}
OBS = {
    "categorical": lambda n: pd.Categorical([f"type {i % 3}" for i in range(n)]),
    "missing": lambda n: pd.Categorical([None, *["B"] * (n - 1)]),
    "numbers": lambda n: np.linspace(-1, np.nan, n) if n > 1 else np.zeros(n),
}
COLUMNS = ("cell_type", "scperformer_label", "=cmd", "name with blanks", "sample")
WAYS = ("dense", "csr", "csc")
KINDS = ("h5ad", "csv", "10x h5")


@st.composite
def matrices(draw, num_cells: int, num_genes: int):
    """Draw counts, logarithms or other numbers of any type, sparse or dense, sometimes with one bad value."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    x = rng.poisson(draw(st.sampled_from([3.0, 0.5, 50.0, 0.0])), (num_cells, num_genes)).astype(
        float
    )
    kind = draw(st.sampled_from(["counts", "counts", "counts", "log", "floats"]))
    if kind == "log":
        x = np.log1p(x / np.maximum(x.sum(1, keepdims=True), 1) * 1e4)
    elif kind == "floats":
        x = x * rng.random(x.shape)
    if draw(st.integers(0, 3)) == 0:
        x[rng.integers(num_cells), rng.integers(num_genes)] = draw(st.sampled_from(SPOILS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # casts of NaN and of what is too large are wanted
        x = x.astype(draw(st.sampled_from(DTYPES)))
    way = draw(st.sampled_from(WAYS)) if x.dtype != "float16" else "dense"
    return {"dense": np.asarray, "csr": sparse.csr_matrix, "csc": sparse.csc_matrix}[way](x)


@st.composite
def names(draw, count: int, make):
    """Draw names of one kind, up to two of them odd."""
    found = [make(i) for i in range(count)]
    for _ in range(draw(st.sampled_from([0, 0, 0, 0, 0, 0, 1, 2]))):
        found[draw(st.integers(0, count - 1))] = draw(st.sampled_from(ODD_NAMES))
    return found


@st.composite
def anndatas(draw) -> ad.AnnData:
    """Draw cells and genes with a matrix in X, a layer or raw."""
    num_cells, num_genes = draw(st.integers(1, MAX_CELLS)), draw(st.integers(1, MAX_GENES))
    cells = draw(names(num_cells, lambda i: f"cell{i}" if num_cells % 3 else f"cell{i // 2}"))
    genes = draw(names(num_genes, GENES[draw(st.sampled_from(["model"] * 4 + sorted(GENES)))]))
    columns = draw(st.lists(st.sampled_from(COLUMNS), max_size=2, unique=True))
    obs = {name: OBS[draw(st.sampled_from(sorted(OBS)))](num_cells) for name in columns}
    place = draw(st.sampled_from(["X", "X", "X", "layers", "raw"]))
    x = draw(matrices(num_cells, num_genes))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names that repeat
        index = pd.Index(cells, dtype=object)
        frame = pd.DataFrame(obs, index=index)
        var = pd.DataFrame(index=pd.Index(genes, dtype=object))
        adata = ad.AnnData(None if place == "layers" else x, obs=frame, var=var)
        if place == "layers":
            adata.layers[draw(st.sampled_from(["counts", "<odd>", "log1p"]))] = x
        if place == "raw":
            adata.raw = adata.copy()
            adata.X = draw(st.sampled_from([None, np.zeros(adata.shape, dtype=np.float32)]))
    return adata


def write(adata: ad.AnnData, kind: str, folder: Path) -> Path:
    """Write an input of a kind; anndata may refuse with one of its errors."""
    path = folder / f"in.{kind.replace(' ', '.')}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names, formats and types of the file
        if kind == "h5ad":
            adata.write_h5ad(path)
        elif kind == "10x h5":
            adata = ad.AnnData(sparse.csr_matrix(adata.X), adata.obs[[]], adata.var)
            adata.var["gene_ids"] = [f"ID{i}" for i in range(adata.n_vars)]
            write_tenx_v3(adata, folder).rename(path)
        else:
            adata.to_df().to_csv(path)
    return path
