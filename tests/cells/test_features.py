"""Features that are not genes are left out, as if they were not in the file: by types, names and values."""

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from support.normalised import by_scanpy, plan_of
from support.opened import detected, opened
from support.refusal import refusal

from scperformer.cells.detect import gene_table
from scperformer.cells.features import gene_columns
from scperformer.cells.normalisation import align_rows
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
    "spike-ins": [
        "ERCC-00002",
        "ERCC_00003",
        "ERCC.00004",
        "GRCh38_ERCC-00171",
        "ERCC-00002__chrERCC",
    ],
    "antibodies or hashtags": [
        *(
            "ADT_CD4",
            "CD4-TotalSeq-C",
            "Hashtag_12",
            "CD3-TGTTCCCGCTCAACT",
            "CD3:SK7|CD3E|AHS0033|pAbO",
            "CMO301",
        )
    ],
    "peaks": ["chr1:100-900", "chrX-100-900", "GL000194.1:55723-56585"],
    "control probes": [
        "NegControlProbe_00042",
        "BLANK_0001",
        "Blank-1",
        "NegPrb3",
        "UnassignedCodeword_0001",
    ],
    "lines of a counting program": ["__no_feature", "N_multimapping"],
}
GENES = (
    "HLA-A",
    "ERCC1",
    "ERCC6L2",
    "ADTRP",
    "CD4",
    "CD4-1",
    "MT-CO1",
    "NKX2-1",
    "chrna1",
    "5_8S_rRNA",
    "AC000001.1",
)


@pytest.mark.parametrize("case", TYPES)
def test_a_column_shows_the_types_of_features(case):
    column, gene, other = TYPES[case]
    var = pd.DataFrame({column: [gene, other, gene, other]}, index=["CD4", "CD4", "A1BG", "X"])
    is_gene, left_out = gene_columns(var)
    assert (is_gene.tolist(), left_out) == ([True, False, True, False], {other: 2})


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, names in NAMES.items() for name in names]
)
def test_features_are_recognised_by_names_that_no_gene_has(kind, name):
    is_gene, left_out = gene_columns(pd.DataFrame(index=[*GENES, name]))
    assert left_out == {kind: 1}
    assert is_gene.tolist() == [True] * len(GENES) + [False]


def test_no_known_gene_is_left_out():
    table = human_genes()
    names = {
        *table.symbols.values(),
        *table.symbols,
        *table.approved,
        *table.former,
        *table.orthologs,
    }
    assert len(names) > 100_000
    assert gene_columns(pd.DataFrame(index=sorted(names)))[0].all()


def test_unspliced_and_ambiguous_counts_beside_genes_are_left_out():
    names = ["CD4", "CD8A", "HLA-A", "ACTB"]
    var = pd.DataFrame(
        index=[*names, *(f"{name}-U" for name in names), *(f"{name}-A" for name in names)]
    )
    is_gene, left_out = gene_columns(var)
    assert is_gene.tolist() == [True] * 4 + [False] * 8
    assert left_out == {"further counts of genes of the file": 8}


# all but three have the name of a gene
ANTIBODIES = ["CD4", "CD8A", "CD14", "CD19", "CD16", "CD45RA", "IgG1"]


@pytest.mark.parametrize(
    "form",
    [
        "{}_ADT",
        "ADT-{}",
        "prot_{}",
        "{}-1",
        "{}.1",
        "anti-human {}",
        "{} (ADT)",
        "{}_TotalSeqX",
        "ab.{}-2",
        "Hu:{}",
    ],
)
def test_antibodies_are_left_out_whatever_follows_or_precedes_their_names(few_pbmc, form):
    cells = few_pbmc.copy()
    counts = np.random.default_rng(2).poisson(40, (cells.n_obs, len(ANTIBODIES)))
    x = sparse.hstack([cells.X, sparse.csr_matrix(counts)], "csr").astype(np.float32)
    names = [*cells.var_names, *map(form.format, ANTIBODIES)]
    findings = detected(ad.AnnData(x, var=pd.DataFrame(index=names)))
    is_gene = findings.is_gene
    assert not is_gene[cells.n_vars :].any()
    # UQCR11.1 is a second gene in more cells than UQCR11
    assert is_gene[: cells.n_vars].sum() >= cells.n_vars - 1
    assert any(repr(form.format("CD4")) in note for note in findings.notes)


@pytest.mark.parametrize("form", ["{}-AS1", "{}-ps", "{}-1"])
def test_genes_that_are_named_after_genes_stay(few_pbmc, form):
    """Antisense and pseudogenes, and second genes of a name: they are in fewer cells than the genes."""
    genes = few_pbmc.var_names[np.argsort(-few_pbmc.X.sum(axis=0).A1)[:20]]
    few = (
        few_pbmc[:, genes]
        .X.multiply(np.random.default_rng(3).random((few_pbmc.n_obs, 20)) < 0.7)
        .tocsr()
    )
    names = [*few_pbmc.var_names, *(form.format(gene) for gene in genes)]
    findings = detected(
        ad.AnnData(sparse.hstack([few_pbmc.X, few], "csr"), var=pd.DataFrame(index=names))
    )
    assert findings.num_genes == len(names)


@pytest.mark.parametrize("form", ["csr", "dense"])
def test_a_file_is_read_as_if_it_had_no_antibodies(cite_pbmc, few_pbmc, form, write, monkeypatch):
    cite_pbmc = cite_pbmc[:, np.random.default_rng(0).permutation(cite_pbmc.n_vars)].copy()
    few_pbmc = few_pbmc[
        :, cite_pbmc.var_names[cite_pbmc.var["feature_types"] == "Gene Expression"]
    ].copy()
    monkeypatch.setattr(matrix_rows, "BLOCK_VALUES", 20_000)
    model_genes = list(few_pbmc.var_names[::3])
    found = []
    for number, adata in enumerate((cite_pbmc, few_pbmc)):
        adata.X = adata.X.toarray() if form == "dense" else adata.X
        with open_adata(write(adata, f"{number}.h5ad")) as cells:
            findings = detected(cells)
            read = opened(cells)
            plan = plan_of(gene_table(cells, findings), findings, model_genes)
            blocks = [align_rows(block, plan) for _, block in read.rows.blocks()]
            found.append((read.gene_names, sparse.vstack(blocks).toarray()))
    assert found[0][0] == found[1][0]
    np.testing.assert_array_equal(found[0][1], found[1][1])


def expression_of(adata):
    findings = detected(adata)
    genes = list(adata.var_names[:13_714])
    plan = plan_of(gene_table(adata, findings), findings, genes)
    return findings, align_rows(opened(adata).rows.block(0, adata.n_obs), plan)


def test_logarithms_normalised_over_the_genes_alone_stay_as_they_are(cite_pbmc, few_pbmc):
    """scanpy and Seurat normalise antibodies separately from genes, and centre them."""
    x = by_scanpy(few_pbmc).X
    other = np.random.default_rng(0).normal(size=(few_pbmc.n_obs, 4)).astype(np.float32)
    cite_pbmc.X = np.hstack([x.toarray(), other])
    findings, found = expression_of(cite_pbmc)
    assert (findings.kind, findings.total, findings.relative) == ("log1p", 1e4, False)
    np.testing.assert_array_equal(found.toarray(), x.toarray())


def test_a_file_without_genes_is_refused(cite_pbmc):
    with refusal("no-expression"):
        detected(cite_pbmc[:, -4:].copy())


NUM = 200


def columns(kind: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    return {
        "coordinates": {
            "Bregma": rng.uniform(0, 9000, NUM).round(2),
            "y_centroid": rng.uniform(0, 9000, NUM).round(2),
        },
        "an area": {"soma": rng.uniform(40, 300, NUM).round(1)},
        "whole coordinates": {"x": rng.integers(0, 9000, NUM), "y": rng.integers(0, 9000, NUM)},
        "ids": {"EntityID": np.arange(NUM) + 10**9},
        "numbers of the rows": {"Unnamed: 0": np.arange(NUM)},
        "a total": {"sum of all": rng.integers(1000, 3000, NUM)},
        "negative values": {"axis 1": rng.normal(0, 3, NUM)},
        "missing values": {
            "distance": np.where(np.arange(NUM) % 3, rng.uniform(0, 5, NUM), np.nan)
        },
        "several kinds": {
            "x": rng.integers(0, 9000, NUM),
            "soma": rng.uniform(40, 300, NUM),
            "row": np.arange(NUM) + 1,
        },
    }[kind]


KINDS = [
    "coordinates",
    "an area",
    "whole coordinates",
    "ids",
    "numbers of the rows",
    "a total",
    "negative values",
]
KINDS += ["missing values", "several kinds"]


def with_columns(cells: ad.AnnData, kind: str) -> ad.AnnData:
    added = pd.DataFrame(columns(kind))
    x = sparse.hstack([sparse.csr_matrix(added.to_numpy(np.float64)), cells.X], "csr")
    return ad.AnnData(x, obs=cells.obs, var=pd.DataFrame(index=[*added.columns, *cells.var_names]))


@pytest.fixture
def plain(pbmc3k) -> ad.AnnData:
    return pbmc3k[:NUM].copy()


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_left_out_of_counts(plain, kind):
    cells = with_columns(plain, kind)
    findings = detected(cells)
    assert gene_table(cells, findings).index.tolist() == plain.var_names.tolist()
    assert (findings.kind, findings.num_genes) == ("counts", plain.n_vars)
    names = ", ".join(map(repr, columns(kind)))
    assert findings.notes == [
        f"{len(columns(kind))} columns whose names and values are not of genes are left out: {names}"
    ]


@pytest.mark.slow
def test_rows_about_cells_are_left_out_of_logarithms(plain, tmp_path):
    """As tables of GEO have them, genes in rows: numbers of tumours, and codes of whether a cell is malignant."""
    by_scanpy(plain, 1e5, 2)
    rows = {"tumor": 53 + np.arange(NUM) % 40, "malignant(1=no,2=yes)": 1 + np.arange(NUM) % 2}
    table = pd.concat([pd.DataFrame(rows, index=plain.obs_names).T, plain.to_df().T.round(4)])
    table.to_csv(tmp_path / "logs.txt", sep="\t", index_label="Cell")
    with open_adata(tmp_path / "logs.txt") as cells:
        findings = detected(cells)
    assert (findings.kind, findings.log_base, findings.num_genes) == ("log1p", 2.0, plain.n_vars)
    assert any("'tumor', 'malignant(1=no,2=yes)'" in note for note in findings.notes)


@pytest.mark.parametrize("name", ["MALAT1", "Rn45s", "ENSG00000251562", "LINC00486", "AC006064.6"])
def test_a_gene_stays_whatever_its_values(plain, name):
    cells = with_columns(plain, "a total")
    cells.var_names = [
        name if gene == "sum of all" else f"{gene}x" if gene == name else gene
        for gene in cells.var_names
    ]
    assert detected(cells).num_genes == plain.n_vars + 1


def test_unknown_names_say_little_where_most_are_unknown(plain):
    cells = with_columns(plain, "a total")
    cells.var_names = ["sum of all", *(f"zgc{number}" for number in range(plain.n_vars))]
    assert detected(cells).num_genes == plain.n_vars + 1


def test_negative_values_of_genes_are_refused(plain):
    cells = with_columns(plain, "negative values")
    x = cells.X.toarray()
    x[:, 1::2] *= -1
    with refusal("no-expression"):
        detected(ad.AnnData(x, obs=cells.obs, var=cells.var))
