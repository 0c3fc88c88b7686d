"""Labels that hold cells of another type. The clusters of CD4 T cells of PBMC 3k hold CD8 T cells, which are moved."""

from dataclasses import replace
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
from scipy.sparse import csr_matrix, vstack
from support.logs import said
from support.words import config_of

from scperformer.cells.collection import stored_cells
from scperformer.cells.opened import OpenedCells
from scperformer.cells.reference import make_reference
from scperformer.training.mixed_labels import sort_mixed

FILE = Path(__file__).parents[2] / "data" / "pbmc3k.h5ad"
CD4 = ["Memory CD4 T", "Naive CD4 T"]


def options(*words, tissue="blood"):
    return config_of("train", f"tissue={tissue}", *words, paths=[FILE])


@pytest.fixture(scope="module")
def cells():
    """The cells, with the genes that 50 of them express or more."""
    adata = ad.read_h5ad(FILE)
    return adata[:, (adata.X > 0).sum(axis=0).A1 >= 50].copy()


@pytest.fixture(scope="module")
def reference(cells):
    return make_reference([OpenedCells(cells, options())])


def is_on(reference, *genes):
    places = [reference.genes.index(gene) for gene in genes]
    return (reference.x[:, places].toarray() > 0).any(axis=1)


@pytest.fixture(scope="module")
def moved(reference):
    found, notes, tissue = sort_mixed(reference, options())
    assert tissue == "blood"
    return found, notes


def test_cd8_cells_in_the_clusters_of_cd4_cells_are_moved(reference, moved, caplog):
    found, notes = moved
    names = np.array(reference.label_names)
    has_changed = found.labels != reference.labels
    assert sorted(set(names[reference.labels[has_changed]])) == CD4
    assert set(names[found.labels[has_changed]]) == {"CD8 T"}
    # By the plain rule, cells with CD8A or CD8B and without CD4.
    by_rule = (
        np.isin(names[reference.labels], CD4)
        & is_on(reference, "CD8A", "CD8B")
        & ~is_on(reference, "CD4")
    )
    naive = names[reference.labels] == "Naive CD4 T"
    assert (by_rule & has_changed)[naive].sum() > 0.95 * by_rule[naive].sum()
    assert (by_rule & has_changed).sum() > 0.97 * has_changed.sum()
    num = (has_changed & naive).sum()
    text = f"{num} of {naive.sum()} cells labelled Naive CD4 T express CD8A, CD8B"
    assert [note.split(" as a ")[0] for note in notes][-1] == text
    assert found.counts.sum() == reference.counts.sum()


@pytest.mark.parametrize("tissue", ["null", "my own name"])
def test_without_a_packaged_tissue_it_is_found(reference, moved, tissue):
    found, _, resembles = sort_mixed(reference, options(tissue=tissue))
    assert resembles == "blood"
    assert np.array_equal(found.labels, moved[0].labels)


def test_the_cells_stay_without_the_option(reference, moved, caplog):
    found, notes, _ = sort_mixed(reference, options("relabel_reference=false"))
    assert found is reference
    assert [note.rstrip(".") for note in notes] == [note.split(":")[0] for note in moved[1]]
    assert said(caplog, "sort_mixed", notes[-1][:-1])


def test_sorted_labels_stay_as_they_are(moved):
    found, notes, _ = sort_mixed(moved[0], options())
    assert found is moved[0]
    assert notes == []


def test_without_a_label_of_the_type_the_cells_are_counted(cells):
    reference = make_reference(
        [OpenedCells(cells[cells.obs["cell_type"] != "CD8 T"].copy(), options())]
    )
    found, notes, _ = sort_mixed(reference, options())
    assert found is reference
    assert [note.split(" labelled ")[1].split(" express")[0] for note in notes] == CD4


def test_cells_that_stay_on_disk_are_moved_alike(cells, moved, tmp_path):
    cells.write_h5ad(tmp_path / "cells.h5ad")
    on_disk = make_reference([stored_cells(tmp_path / "cells.h5ad", options())])
    found, _, _ = sort_mixed(on_disk, options("data.in_memory=false"))
    assert found.counts.tolist() == moved[0].counts.tolist()
    assert np.array_equal(found.labels[: len(found.stream.labels)], found.stream.labels)


def test_doublets_and_ambient_rna_are_no_cells_of_a_sibling(cells, moved):
    found = moved[0]
    rng = np.random.default_rng(0)
    names = np.array(found.label_names)
    naive, cd8 = (
        rng.permutation(np.flatnonzero(names[found.labels] == name))[:120]
        for name in ("Naive CD4 T", "CD8 T")
    )
    counts = csr_matrix(cells[found.cell_names, found.genes].X)
    doublets = counts[naive] + counts[cd8]
    share = np.asarray(counts.sum(axis=0)).ravel() / counts.sum()
    totals = np.asarray(counts.sum(axis=1)).ravel()
    ambient = csr_matrix(np.stack([rng.multinomial(int(total / 5), share) for total in totals]))
    for cells in (vstack([counts, doublets], "csr"), counts + ambient):
        labels = np.append(found.labels, found.labels[naive])[: cells.shape[0]]
        x = csr_matrix(cells.multiply(1e4 / cells.sum(axis=1)), dtype=np.float32)
        x.data = np.log1p(x.data)
        changed, notes, _ = sort_mixed(replace(found, x=x, labels=labels), options())
        assert [note for note in notes if "CD8A" in note] == []
        assert np.array_equal(changed.labels, labels)


def test_cells_of_another_kind_are_named(moved):
    found = moved[0]
    labels = found.labels.copy()
    labels[np.flatnonzero(labels == found.label_names.index("B"))[:60]] = found.label_names.index(
        "CD14+ Mono"
    )
    changed, notes, _ = sort_mixed(replace(found, labels=labels), options())
    assert np.array_equal(changed.labels, labels)
    assert len(notes) == 1
    assert "CD14+ Mono" in notes[0]
    assert "B cell (" in notes[0]
    assert "CD79A" in notes[0]


def test_genes_of_no_tissue_are_not_compared(reference):
    genes = [f"odd{number}" for number in range(len(reference.genes))]
    assert sort_mixed(replace(reference, genes=genes), options(tissue="null"))[1:] == ([], None)
