"""Files with too few genes of a model are refused, with a remedy."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.refusal import refusal

from scperformer.base.errors import InputError
from scperformer.cells.query import require_fit
from scperformer.config.options import ModelOptions
from scperformer.io.gene_overlap import measure_overlap

PANEL = [f"G{i}" for i in range(100)]
WEIGHTS = np.append(np.ones(30), np.full(70, 0.01))  # 30 genes carry 98 % of the importance


def require(ours, models, importance=None, *, min_overlap=0.1, own_totals=False):
    target = np.array([models.index(gene) if gene in models else -1 for gene in ours], dtype=int)
    overlap = measure_overlap(target, ours, models, importance=importance)
    plan = SimpleNamespace(overlap=overlap, own_totals=own_totals)
    model = SimpleNamespace(genes=models, is_tissue=False, can_be_refitted=False)
    options = ModelOptions(inputs=["q"], min_overlap=min_overlap)
    require_fit(SimpleNamespace(gene_names=ours, options=options, path="q.h5ad"), plan, model)


@pytest.mark.parametrize(
    ("ours", "match"),
    [
        (
            ["ENSG90000187634", "ENSG90000188976"],
            r"0 of 2 model genes \(0.0 %\) found in q.h5ad, with 0.0 % of the model's informative expression "
            r"\(e.g. 'ENSG90000188976'; model has e.g. 'NOC2L'\); expected at least 10 % of that expression: "
            "convert var_names from Ensembl ids to gene symbols",
        ),
        (["FBN3", "OR4F5"], r"same species and platform, and take gene names as var_names\.$"),
        (
            ["AAACATACAACCAC-1", "AAACATTGAGCTAC-1"],
            r"cells seem to be in var_names: .*transpose it \(adata = adata\.T",
        ),
    ],
    ids=["ids", "other genes", "cells"],
)
def test_files_without_any_gene_of_the_model(ours, match):
    with pytest.raises(InputError, match=match) as error:
        require(ours, ["SAMD11", "NOC2L"])
    assert "min_overlap" not in str(error.value)


def test_the_least_overlap_is_enough():
    ours, models = ["A", "X"], ["A", "B", "C", "D"]
    importance = np.array([2.0, 4.0, 1.0, 1.0])
    require(ours, models, importance, min_overlap=0.25)
    with refusal("few-genes"):
        require(ours, models, importance, min_overlap=0.26)
    with refusal("few-genes"):
        require(["X"], models, min_overlap=0.0)


@pytest.mark.parametrize(
    ("options", "enough", "too_few"),
    [
        ({"min_overlap": 0.5}, 50, 49),
        ({"min_overlap": 0.5, "own_totals": True}, 30, 15),
        ({"min_overlap": 0.0}, 1, 0),
    ],
    ids=["no panel", "a model of a panel", "min_overlap=0"],
)
def test_few_genes_are_refused_however_informative_they_are(options, enough, too_few):
    require(PANEL[:enough], PANEL, WEIGHTS, **options)
    with refusal("few-genes") as refused:
        require(PANEL[:too_few], PANEL, WEIGHTS, **options)
    assert ("expected 50 genes or more, and at least 50 % of that" in str(refused.value)) == (
        enough == 50
    )
