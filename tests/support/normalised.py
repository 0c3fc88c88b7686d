"""The formula of normalised expression, written out; files in which each gene comes twice; alignments."""

from types import SimpleNamespace

import anndata as ad
import numpy as np
import pandas as pd
import scanpy
from scipy import sparse
from support.opened import detected

from scperformer.cells.query import align_to_genes
from scperformer.config.options import ModelOptions


def plain(counts, target_sum=1e4):
    """log1p(target_sum * count / total) in float64, dense; empty cells stay zero."""
    dense = np.asarray(counts.todense() if sparse.issparse(counts) else counts, dtype=np.float64)
    return np.log1p(target_sum * dense / np.maximum(dense.sum(1, keepdims=True), 1e-300))


def logs(counts):
    """The same as CSR float32."""
    return sparse.csr_matrix(plain(counts), dtype=np.float32)


def by_scanpy(adata, total=1e4, base=None):
    """Normalise cells in place as scanpy's tutorials do, and return them."""
    scanpy.pp.normalize_total(adata, target_sum=total)
    scanpy.pp.log1p(adata, base=base)
    adata.uns = {}
    return adata


def findings_of(x, **options):
    return detected(ad.AnnData(x), **options)


def plan_of(var, findings, genes, target_sum=1e4, importance=None):
    """The alignment of a file with these genes to a model of `genes`."""
    names = [str(name).strip() for name in var.index]
    options = ModelOptions(inputs=["q.h5ad"])
    cells = SimpleNamespace(
        var=var, gene_names=names, findings=findings, options=options, path="q.h5ad"
    )
    return align_to_genes(cells, genes, target_sum, importance)


def split_in_two(adata):
    """The same cells with the counts of each gene spread over two columns of its name."""
    dense = adata.X.toarray()
    half = np.floor(dense / 2)
    names = [*adata.var_names, *adata.var_names]
    return ad.AnnData(
        sparse.csr_matrix(np.hstack([half, dense - half])), adata.obs, pd.DataFrame(index=names)
    )
