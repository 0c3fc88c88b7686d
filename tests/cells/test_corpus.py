"""The cells of a corpus: one list of genes for all files, normalised as for training; unusable files are refused."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from support.refusal import refusal

from scperformer.cells.corpus import Corpus, make_corpus
from scperformer.cells.opened import OpenedCells
from scperformer.cells.splits import stratified_split
from scperformer.cli.compose import make_config


def corpus_of(min_cells: int, **files: ad.AnnData) -> Corpus:
    cfg = make_config("pretrain", ["inputs=[a]", "data.min_genes=0", f"data.min_cells={min_cells}"])
    opened = [OpenedCells(adata, cfg, name) for name, adata in files.items()]
    for cells in opened:
        cells.sha256 = f"sum of {cells.path}"
    return make_corpus(opened)


def small(genes, num_cells=12, seed=0) -> ad.AnnData:
    counts = np.random.default_rng(seed).poisson(1.0, (num_cells, len(genes))).astype(np.float32)
    counts[:, :2] = 1  # so that every cell has a gene to mask
    return ad.AnnData(sparse.csr_matrix(counts), var=pd.DataFrame(index=genes))


def test_genes_are_the_union_and_values_do_not_depend_on_other_files():
    one, two = small(["A", "B", "C"]), small(["C", "D", "A"], seed=1)
    corpus = corpus_of(1, a=one, b=two)
    assert corpus.genes == ["A", "B", "C", "D"]
    wanted = np.zeros((24, 4))
    for start, adata in ((0, one), (12, two)):
        counts = adata.X.toarray()
        logged = np.log1p(counts / counts.sum(1, keepdims=True) * 1e4)
        wanted[start : start + 12, [corpus.genes.index(gene) for gene in adata.var_names]] = logged
    np.testing.assert_allclose(corpus.x.toarray(), wanted, rtol=1e-5)
    assert list(corpus.file_of_cell) == [0] * 12 + [1] * 12
    files = [(file.name, file.sha256, file.num_cells) for file in corpus.files]
    assert files == [(name, f"sum of {name}", 12) for name in "ab"]


def test_rare_genes_are_counted_over_all_files():
    one, two = small(["A", "B", "C"]), small(["A", "B", "C"], seed=1)
    for adata, num_cells in ((one, 2), (two, 1)):
        x = adata.X.toarray()
        x[:, 2] = np.arange(12) < num_cells
        adata.X = sparse.csr_matrix(x)
    assert corpus_of(3, a=one, b=two).genes == ["A", "B", "C"]
    assert corpus_of(4, a=one, b=two).genes == ["A", "B"]


def test_a_tiny_corpus_is_refused():
    with refusal("few-cells"):
        corpus_of(1, a=small(["A", "B", "C"], num_cells=4))


@pytest.mark.parametrize("fraction", [0.01, 0.5])
def test_validation_has_its_share_of_every_file(fraction):
    files = np.repeat([0, 1], [40, 60])
    train, val = stratified_split(files, fraction, seed=0, min_cells=0)
    assert sorted([*train, *val]) == list(range(100))
    assert len(train)
    assert len(val)
    for file in (0, 1):
        assert abs((files[val] == file).sum() - fraction * (files == file).sum()) <= 1
    again = stratified_split(files, fraction, seed=0, min_cells=0)
    assert all(np.array_equal(one, two) for one, two in zip((train, val), again, strict=True))
