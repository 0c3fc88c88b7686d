"""The share of a model's genes that a file has, files with too small a share, panels, and lists for several files."""

import numpy as np
import pandas as pd
import pytest
from support.logs import said
from support.refusal import refusal

from scperformer.io.gene_overlap import find_panel, map_genes_of_files, measure_overlap


def exact(file_genes, model_genes, importance=None):
    target = [model_genes.index(gene) if gene in model_genes else -1 for gene in file_genes]
    return measure_overlap(
        np.array(target, dtype=int), file_genes, model_genes, importance=importance
    )


def test_shared_absent_and_dropped_genes_are_counted_and_named():
    found = exact(["Z", "B", "Y", "A"], ["A", "C", "B", "D"])
    assert (found.num_file, found.num_model, found.num_shared, found.share_of_model) == (
        4,
        4,
        2,
        0.5,
    )
    assert (found.absent, found.num_absent) == (["C", "D"], 2)
    assert (found.dropped, found.num_dropped) == (["Z", "Y"], 2)
    assert found.informative_share == 0.5  # all genes weigh the same


def test_the_informative_share_weighs_each_gene_once():
    found = measure_overlap(
        np.array([0, 0, 2]), ["A", "a", "C"], ["A", "B", "C"], importance=np.array([3.0, 6.0, 1.0])
    )
    assert (found.num_shared, found.informative_share) == (2, 0.4)
    assert found.notes == [
        "the file has only 40.0% of the model's informative expression: check the labels before you use them"
    ]
    # a model that uses no gene
    assert exact(["A"], ["A", "B"], np.zeros(2)).informative_share == 0.5


def test_the_genes_of_a_panel_are_found_by_any_name(caplog):
    known = [f"G{i}" for i in range(120)]
    names = [f"g{i}" for i in range(119, 60, -1)]
    found = find_panel(
        [*names, "NEW1", "NEW2"], known, "reference", species="auto", path="panel.txt"
    )
    assert np.flatnonzero(found).tolist() == list(range(61, 120))
    assert said(caplog, "find_panel", "panel.txt", 2, "reference", "'NEW1'")


@pytest.mark.parametrize(
    ("num_known", "num_unknown"), [(49, 0), (60, 61)], ids=["few", "less than half"]
)
def test_a_panel_with_few_known_genes_is_refused(num_known, num_unknown):
    known = [f"G{i}" for i in range(120)]
    panel = known[:num_known] + [f"NEW{i}" for i in range(num_unknown)]
    with refusal("few-genes", num_known, len(panel)):
        find_panel(panel, known, "reference", species="auto", path="p.txt")


IDS = ["ENSG00000167286", "ENSG00000111640", "ENSG90000000001"]  # CD3D, GAPDH, and an unknown gene


def joined(*files, vocabulary=None):
    tables = [pd.DataFrame(index=names) for names in files]
    chosen, maps = map_genes_of_files(
        tables, [f"{i}.h5ad" for i in range(len(files))], vocabulary, "auto"
    )
    return chosen, [mapping.target.tolist() for mapping in maps]


def test_new_genes_of_later_files_are_added():
    assert joined(["CD3D", "GAPDH"], ["NKG7", "CD3D", "gapdh"]) == (
        ["CD3D", "GAPDH", "NKG7"],
        [[0, 1], [2, 0, 1]],
    )


def test_another_kind_of_id_adds_no_genes(caplog):
    assert joined(["CD3D", "GAPDH"], IDS) == (["CD3D", "GAPDH"], [[0, 1], [0, 1, -1]])
    assert said(caplog, "map_genes_of_files", "1.h5ad", 1, 3)
    with refusal("mixed-gene-ids"):
        joined(["CD3D", "GAPDH"], IDS[2:])


def test_a_given_vocabulary_is_kept():
    assert joined(["CD3D", "NOVEL"], IDS, vocabulary=["GAPDH", "CD3D"]) == (
        ["GAPDH", "CD3D"],
        [[1, -1], [1, 0, -1]],
    )
    with refusal("few-genes"):
        joined(["CD3D", "NOVEL"], vocabulary=["A1BG", "NKG7"])
