"""Non-gene features are left out, as if they were not in the file."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy
from scipy import sparse
from support.normalised import plan_of
from support.refusal import refusal

from scperformer.cells.alignment import align_rows
from scperformer.cells.detect import detect_expression, gene_table, stored_expression
from scperformer.cells.features import gene_columns
from scperformer.io import rows as matrix_rows
from scperformer.io.gene_table import human_genes
from scperformer.io.read import open_adata

TYPES = {
    "10x": ("feature_types", "Gene Expression", "Antibody Capture"),
    "CELLxGENE": ("feature_biotype", "gene", "spike-in"),
    "muon": ("modality", "rna", "prot"),
    "peaks alone named": ("feature_types", "", "Peaks"),
}
NAMES = {
    "spike-ins": ["ERCC-00002", "ERCC_00003", "ERCC.00004", "GRCh38_ERCC-00171", "ERCC-00002__chrERCC"],
    "antibodies or hashtags": [
        *("ADT_CD4", "CD4-TotalSeq-C", "Hashtag_12", "CD3-TGTTCCCGCTCAACT", "CD3:SK7|CD3E|AHS0033|pAbO", "CMO301")
    ],
    "peaks": ["chr1:100-900", "chrX-100-900", "GL000194.1:55723-56585"],
    "control probes": ["NegControlProbe_00042", "BLANK_0001", "Blank-1", "NegPrb3", "UnassignedCodeword_0001"],
    "lines of a counting program": ["__no_feature", "N_multimapping"],
}
GENES = ("HLA-A", "ERCC1", "ERCC6L2", "ADTRP", "CD4", "CD4-1", "MT-CO1", "NKX2-1", "chrna1", "5_8S_rRNA", "AC000001.1")


@pytest.mark.parametrize("case", TYPES)
def test_a_column_shows_the_types_of_features(case):
    column, gene, other = TYPES[case]
    var = pd.DataFrame({column: [gene, other, gene, other]}, index=["CD4", "CD4", "A1BG", "X"])
    is_gene, left_out = gene_columns(var)
    assert (is_gene.tolist(), left_out) == ([True, False, True, False], {other: 2})


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_features_are_recognised_by_names_that_no_gene_has(kind, name):
    is_gene, left_out = gene_columns(pd.DataFrame(index=[*GENES, name]))
    assert left_out == {kind: 1}
    assert is_gene.tolist() == [True] * len(GENES) + [False]


def test_no_known_gene_is_left_out():
    table = human_genes()
    names = {*table.symbols.values(), *table.symbols, *table.approved, *table.former, *table.orthologs}
    assert len(names) > 100_000
    assert gene_columns(pd.DataFrame(index=sorted(names)))[0] is None


def test_unspliced_and_ambiguous_counts_beside_genes_are_left_out():
    names = ["CD4", "CD8A", "HLA-A", "ACTB"]
    var = pd.DataFrame(index=[*names, *(f"{name}-U" for name in names), *(f"{name}-A" for name in names)])
    is_gene, left_out = gene_columns(var)
    assert is_gene.tolist() == [True] * 4 + [False] * 8
    assert left_out == {"unspliced or ambiguous counts": 8}


@pytest.mark.parametrize("form", ["csr", "dense"])
def test_a_file_is_read_as_if_it_had_no_antibodies(cite_pbmc, few_pbmc, form, write, monkeypatch):
    cite_pbmc = cite_pbmc[:, np.random.default_rng(0).permutation(cite_pbmc.n_vars)].copy()
    few_pbmc = few_pbmc[:, cite_pbmc.var_names[cite_pbmc.var["feature_types"] == "Gene Expression"]].copy()
    monkeypatch.setattr(matrix_rows, "BLOCK_VALUES", 20_000)
    model_genes = list(few_pbmc.var_names[::3])
    found = []
    for number, adata in enumerate((cite_pbmc, few_pbmc)):
        adata.X = adata.X.toarray() if form == "dense" else adata.X
        with open_adata(write(adata, f"{number}.h5ad")) as cells:
            findings = detect_expression(cells)
            rows, names = stored_expression(cells, findings)
            plan = plan_of(gene_table(cells, findings), findings, model_genes)
            found.append((names, sparse.vstack([align_rows(block, plan) for _, block in rows.blocks()]).toarray()))
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])


def logged(adata, total=1e4, base=None) -> ad.AnnData:
    scanpy.pp.normalize_total(adata, target_sum=total)
    scanpy.pp.log1p(adata, base=base)
    return adata


def expression_of(adata):
    findings = detect_expression(adata)
    genes = list(adata.var_names[:13_714])
    plan = plan_of(gene_table(adata, findings), findings, genes)
    rows, _ = stored_expression(adata, findings)
    return findings, align_rows(rows.block(0, adata.n_obs), plan)


def test_logarithms_normalised_over_the_genes_alone_stay_as_they_are(cite_pbmc, few_pbmc):
    """scanpy and Seurat normalise antibodies separately from genes, and centre them."""
    x = logged(few_pbmc).X
    other = np.random.default_rng(0).normal(size=(few_pbmc.n_obs, 4)).astype(np.float32)
    cite_pbmc.X = np.hstack([x.toarray(), other])
    findings, found = expression_of(cite_pbmc)
    assert (findings.kind, findings.total, findings.relative) == ("log1p", 1e4, False)
    np.testing.assert_array_equal(found.toarray(), x.toarray())


def test_a_file_without_genes_is_refused(cite_pbmc):
    with refusal("no-expression"):
        detect_expression(cite_pbmc[:, -4:].copy())
