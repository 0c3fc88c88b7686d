"""The share of a model's genes that a file has, files with too small a share, panels, and lists for several files."""

import numpy as np
import pandas as pd
import pytest

from scperformer.base.errors import InputError
from scperformer.io.gene_overlap import find_panel, map_genes_of_files, measure_overlap, require_overlap


def exact(file_genes, model_genes, importance=None):
    target = [model_genes.index(gene) if gene in model_genes else -1 for gene in file_genes]
    return measure_overlap(np.array(target, dtype=int), file_genes, model_genes, importance=importance)


def test_shared_absent_and_dropped_genes_are_counted_and_named():
    found = exact(["Z", "B", "Y", "A"], ["A", "C", "B", "D"])
    assert (found.num_file, found.num_model, found.num_shared, found.share_of_model) == (4, 4, 2, 0.5)
    assert (found.absent, found.num_absent) == (["C", "D"], 2)
    assert (found.dropped, found.num_dropped) == (["Z", "Y"], 2)
    assert found.informative_share == 0.5  # all genes weigh the same


def test_the_informative_share_weighs_each_gene_once():
    found = measure_overlap(np.array([0, 0, 2]), ["A", "a", "C"], ["A", "B", "C"], importance=np.array([3.0, 6.0, 1.0]))
    assert (found.num_shared, found.informative_share) == (2, 0.4)
    assert found.notes == [
        "the file has only 40.0% of the model's informative expression: check the labels before you use them"
    ]
    assert exact(["A"], ["A", "B"], np.zeros(2)).informative_share == 0.5  # a model that uses no gene


@pytest.mark.parametrize(
    ("file_genes", "model_genes", "match"),
    [
        (
            ["ENSG90000187634", "ENSG90000188976"],
            ["SAMD11", "NOC2L"],
            r"0 of 2 model genes \(0.0 %\) found in q.h5ad, with 0.0 % of the model's informative expression "
            r"\(e.g. 'ENSG90000188976'; model has e.g. 'NOC2L'\); expected at least 10 % of that expression: "
            "convert var_names from Ensembl ids to gene symbols",
        ),
        (["CD3D"], ["SAMD11"], "same species"),
        (["ENSG90000187634.2"], ["ENSG00000187634"], "same species"),
    ],
    ids=["ensembl", "other", "other ids"],
)
def test_require_overlap_shows_both_sides(file_genes, model_genes, match):
    with pytest.raises(InputError, match=match):
        require_overlap(exact(file_genes, model_genes), 0.1, "q.h5ad", file_genes=file_genes, model_genes=model_genes)


@pytest.mark.parametrize(
    ("file_genes", "match"),
    [
        (["FBN3", "OR4F5"], r"same species and platform, and take gene names as var_names\.$"),
        (["AAACATACAACCAC-1", "AAACATTGAGCTAC-1"], r"cells seem to be in var_names: .*transpose it \(adata = adata\.T"),
    ],
    ids=["other genes", "cells"],
)
def test_files_without_any_gene_of_the_model(file_genes, match):
    models = ["SAMD11", "NOC2L"]
    with pytest.raises(InputError, match=match) as error:
        require_overlap(exact(file_genes, models), 0.1, "q.h5ad", file_genes=file_genes, model_genes=models)
    assert "min_overlap" not in str(error.value)


def test_require_overlap_at_its_threshold():
    ours, models = ["A", "X"], ["A", "B", "C", "D"]
    sides = {"file_genes": ours, "model_genes": models}
    found = exact(ours, models, np.array([2.0, 4.0, 1.0, 1.0]))
    require_overlap(found, 0.25, "q.h5ad", **sides)
    with pytest.raises(InputError, match=r"1 of 4 model genes .* with 25.0 % of .*at least 26 %"):
        require_overlap(found, 0.26, "q.h5ad", **sides)
    with pytest.raises(InputError, match="at least one gene"):
        require_overlap(exact(["X"], models), 0.0, "q.h5ad", **sides)


@pytest.mark.parametrize(
    ("options", "num_genes"),
    [({}, 50), ({"own_totals": True}, 30), ({"min_overlap": 0.0}, 1)],
    ids=["no panel", "a model of a panel", "min_overlap=0"],
)
def test_few_genes_are_refused_however_informative_they_are(options, num_genes):
    models = [f"G{i}" for i in range(100)]
    weights = np.append(np.ones(30), np.full(70, 0.01))  # 30 genes carry 98 % of the importance
    options = {"min_overlap": 0.5} | options

    def check(num: int) -> None:
        found = exact(models[:num], models, weights)
        require_overlap(found, path="q.h5ad", file_genes=models[:num], model_genes=models, **options)

    check(num_genes)
    with pytest.raises(InputError, match="found in") as refused:
        check({50: 49, 30: 15, 1: 0}[num_genes])
    assert ("expected 50 genes or more, and at least 50 % of that" in str(refused.value)) == (num_genes == 50)


def test_the_genes_of_a_panel_are_found_by_any_name(caplog):
    known = [f"G{i}" for i in range(120)]
    names = [f"g{i}" for i in range(119, 60, -1)]
    found = find_panel([*names, "NEW1", "NEW2"], known, "reference", species="auto", path="panel.txt")
    assert np.flatnonzero(found).tolist() == list(range(61, 120))
    assert "panel.txt: 2 genes are unknown to the reference (e.g. 'NEW1')" in caplog.text


@pytest.mark.parametrize(("num_known", "num_unknown"), [(49, 0), (60, 61)], ids=["few", "less than half"])
def test_a_panel_with_few_known_genes_is_refused(num_known, num_unknown):
    known = [f"G{i}" for i in range(120)]
    panel = known[:num_known] + [f"NEW{i}" for i in range(num_unknown)]
    with pytest.raises(InputError, match=rf"{num_known} of the {len(panel)} genes of 'p.txt' known to the reference"):
        find_panel(panel, known, "reference", species="auto", path="p.txt")


IDS = ["ENSG00000167286", "ENSG00000111640", "ENSG90000000001"]  # CD3D, GAPDH, and an unknown gene


def joined(*files, vocabulary=None):
    tables = [pd.DataFrame(index=names) for names in files]
    chosen, maps = map_genes_of_files(tables, [f"{i}.h5ad" for i in range(len(files))], vocabulary, "auto")
    return chosen, [mapping.target.tolist() for mapping in maps]


def test_new_genes_of_later_files_are_added():
    assert joined(["CD3D", "GAPDH"], ["NKG7", "CD3D", "gapdh"]) == (["CD3D", "GAPDH", "NKG7"], [[0, 1], [2, 0, 1]])


def test_another_kind_of_id_adds_no_genes(caplog):
    assert joined(["CD3D", "GAPDH"], IDS) == (["CD3D", "GAPDH"], [[0, 1], [0, 1, -1]])
    assert "1.h5ad: 1 of 3 genes could not be translated and are left out" in caplog.text
    with pytest.raises(
        InputError, match=r"gene symbols in 0.h5ad and Ensembl ids in 1.h5ad.*convert the var_names of 1"
    ):
        joined(["CD3D", "GAPDH"], IDS[2:])


def test_a_given_vocabulary_is_kept():
    assert joined(["CD3D", "NOVEL"], IDS, vocabulary=["GAPDH", "CD3D"]) == (["GAPDH", "CD3D"], [[1, -1], [1, 0, -1]])
    with pytest.raises(InputError, match=r"0 of the 2 genes of the list in the files .*'CD3D'.*at least 10%"):
        joined(["CD3D", "NOVEL"], vocabulary=["A1BG", "NKG7"])
