"""Labels whose cells carry the markers of another type, in PBMC 3k: its clusters of CD4 T cells hold CD8 T cells."""

from pathlib import Path

import anndata as ad
import numpy as np
import pytest
from scipy.sparse import csr_matrix, diags
from support.logs import said

from scperformer.training.mixed_labels import mixed_labels

FILE = Path(__file__).parents[2] / "data" / "pbmc3k.h5ad"


@pytest.fixture(scope="module")
def cells():
    adata = ad.read_h5ad(FILE)
    counts = csr_matrix(adata.X, dtype=np.float32)
    x = csr_matrix(diags(1e4 / np.asarray(counts.sum(axis=1)).ravel()) @ counts)
    x.data = np.log1p(x.data)
    names, labels = np.unique(adata.obs["cell_type"].astype(str), return_inverse=True)
    return x, labels, names.tolist(), adata.var_names.tolist()


@pytest.mark.parametrize("tissue", ["blood", None, "my own name"])
def test_cd8_cells_in_the_clusters_of_cd4_cells_are_found(cells, tissue, caplog):
    x, labels, names, genes = cells
    notes = mixed_labels(x, labels, names, genes, tissue, seed=0)
    assert [note.split(" labelled ")[1].split(" express")[0] for note in notes] == ["Memory CD4 T", "Naive CD4 T"]
    is_naive = labels == names.index("Naive CD4 T")
    markers = x[is_naive][:, [genes.index(gene) for gene in ("S100B", "CD8B", "CD8A")]].toarray() > 0
    num = (markers.sum(axis=1) >= 2).sum()
    a, b, c = markers.mean(axis=0)
    expected = is_naive.sum() * (a * b * (1 - c) + a * c * (1 - b) + b * c * (1 - a) + a * b * c)
    text = f"{num} of {is_naive.sum()} cells labelled Naive CD4 T express two or more markers of naive CD8 T cell "
    assert notes[1] == f"{text}(S100B, CD8B, CD8A), where {expected:.0f} are expected by chance."
    assert said(caplog, "mixed_labels", notes[1][:-1])


def test_without_these_cells_nothing_is_found(cells):
    x, labels, names, genes = cells
    markers = x[:, [genes.index(gene) for gene in ("S100B", "CD8B", "CD8A")]].toarray() > 0
    is_cd4 = np.isin(labels, [names.index("Naive CD4 T"), names.index("Memory CD4 T")])
    kept = ~(is_cd4 & (markers.sum(axis=1) >= 2))
    assert mixed_labels(x[kept], labels[kept], names, genes, "blood", seed=0) == []


def test_cells_moved_to_another_label_are_found(cells):
    x, labels, names, genes = cells
    moved = labels.copy()
    moved[np.flatnonzero(labels == names.index("B"))[:60]] = names.index("CD14+ Mono")
    found = [note for note in mixed_labels(x, moved, names, genes, "blood", seed=0) if "CD14+ Mono" in note]
    assert len(found) == 1
    assert "B cell (" in found[0]
    assert "CD79A" in found[0]


def test_genes_of_no_tissue_are_not_compared(cells):
    x, labels, names, genes = cells
    assert mixed_labels(x, labels, names, [f"odd{number}" for number in range(len(genes))], None, seed=0) == []
