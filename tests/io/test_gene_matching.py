"""Genes of a file and of a model under different names: each kind of name, ambiguous names, and species."""

import re

import anndata as ad
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from support.normalised import plan_of
from support.opened import detected
from support.refusal import refusal

from scperformer.cells.normalisation import align_rows
from scperformer.io import gene_matching as matching
from scperformer.io.gene_matching import map_genes
from scperformer.io.gene_table import human_genes, parse_genes

# Current symbols with their Ensembl ids.
IDS = {
    "CD3D": "ENSG00000167286",
    "MS4A1": "ENSG00000156738",
    "GAPDH": "ENSG00000111640",
    "HLA-DRA": "ENSG00000204287",
    "MT-ND1": "ENSG00000198888",
    "NKG7": "ENSG00000105374",
    "SEPTIN7": "ENSG00000122545",
    "KMT2A": "ENSG00000118058",
}
SYMBOLS = list(IDS)
MOUSE = ["Cd3d", "Ms4a1", "Gapdh", "mt-Nd1", "Nkg7", "Kmt2a"]
# Ensembl id, GENCODE's symbol, HGNC's symbol, previous symbols, aliases
GENE_TABLE = [
    ("ENSG00000122545", "SEPTIN7", "SEPTIN7", "SEPT7", "CDC10"),
    ("ENSG00000118058", "KMT2A", "KMT2A", "MLL", "TRX1|HRX"),
    ("ENSG00000167286", "CD3D", "CD3D", "", "T3D|HRX"),  # HRX is an alias of two genes
    ("ENSG00000105374", "NKG7", "NKG7", "GAPDH", ""),  # GAPDH is the current symbol of another gene
    ("ENSG00000111640", "GAPDH", "GAPDH", "", ""),
    ("ENSG90000000001", "", "LATER", "", ""),
]


@pytest.fixture
def table(monkeypatch):
    """A small table of genes replaces that of the package."""
    small = parse_genes(
        ["# HGNC 2020-02-03", "header", *("\t".join([*row, ""]) for row in GENE_TABLE)]
    )
    monkeypatch.setattr(matching, "human_genes", lambda: small)
    matching._match.cache_clear()
    yield
    matching._match.cache_clear()


def cells(names, var=None, seed=0) -> ad.AnnData:
    counts = np.random.default_rng(seed).poisson(3.0, (20, len(names))).astype(np.float32)
    return ad.AnnData(sparse.csr_matrix(counts), var=pd.DataFrame(var or {}, index=names))


def aligned(adata, model_genes, **options) -> np.ndarray:
    plan = plan_of(adata.var, detected(adata), model_genes, target_sum=1e4, **options)
    return align_rows(adata.X, plan).toarray()


EXTRA = ["ERCC-00002", "NOVEL1"]  # only in the file
ENSEMBL = [*IDS.values()]
NAMINGS = {
    "ids": (ENSEMBL, {}, "GENCODE"),
    "ids with versions": ([f"{gene}.7" for gene in ENSEMBL], {}, "GENCODE"),
    "lower case": ([gene.lower() for gene in SYMBOLS], {}, "in upper case"),
    "symbol_id": ([f"{gene}_{IDS[gene]}.2" for gene in SYMBOLS], {}, "by a part of them"),
    "mixed": ([gene if i % 2 else IDS[gene] for i, gene in enumerate(SYMBOLS)], {}, None),
    "CELLxGENE": (
        ["ENSG9" + gene[5:] for gene in ENSEMBL],
        {"feature_name": SYMBOLS},
        r"var\['feature_name'\]",
    ),
    "numbers": ([str(i) for i in range(8)], {"Gene_Symbols": SYMBOLS}, r"var\['Gene_Symbols'\]"),
    "10x ids beside numbers": ([str(i) for i in range(8)], {"gene_ids": ENSEMBL}, "GENCODE"),
    "a column of any name": (
        [str(i) for i in range(8)],
        {"x": ["a"] * 8, "external_gene_name": SYMBOLS},
        "external",
    ),
    "spaces": ([f" {gene} " for gene in SYMBOLS], {}, None),
}


@pytest.mark.parametrize("case", NAMINGS)
def test_any_names_give_the_matrix_of_plain_symbols(case):
    names, var, rule = NAMINGS[case]
    model = ["ABSENT1", *SYMBOLS[::-1]]
    wanted = aligned(cells([*SYMBOLS, *EXTRA]), model)
    assert (wanted.sum(0) > 0).tolist() == [False, *[True] * 8]
    var = {key: [*values, *EXTRA] for key, values in var.items()}
    np.testing.assert_array_equal(aligned(cells([*names, *EXTRA], var), model), wanted)
    found = map_genes([*names, *EXTRA], model, pd.DataFrame(var))
    assert found.target.tolist() == [8, 7, 6, 5, 4, 3, 2, 1, -1, -1]
    if rule is not None:
        assert re.search(rf"\b8 .*{rule}", "; ".join(found.notes))


MODELS = {
    "ids": ENSEMBL,
    "ids with versions": [f"{gene}.3" for gene in ENSEMBL],
    "compound": [f"{IDS[gene]}_{gene}" for gene in SYMBOLS],
    "symbols": SYMBOLS,
}
FILES = {**MODELS, "other versions": [f"{gene}.15" for gene in ENSEMBL]}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("file", FILES)
def test_any_names_match_any_other_names(file, model):
    assert map_genes(FILES[file], MODELS[model]).target.tolist() == list(range(8))


BY_RULE = {
    matching.AFFIX: ("GRCh38_CD3D", "CD3D"),
    matching.PART: ("CD3D_ENSG90000000002", "CD3D"),
    matching.GENCODE: (IDS["CD3D"], "CD3D"),
    matching.HYPHEN: ("Y-RNA", "Y_RNA"),
    matching.CASE: ("cd3d", "CD3D"),
    matching.HGNC: ("LATER", "ENSG90000000001"),
    matching.FORMER: ("SEPT7", "SEPTIN7"),
}


@pytest.mark.parametrize("rule", BY_RULE, ids=lambda rule: rule[-30:])
def test_each_rule_matches_alone_and_says_so(rule, table):
    name, gene = BY_RULE[rule]
    found = map_genes(["NOVEL1", name], [gene, "NOVEL2"])
    assert found.target.tolist() == [-1, 0]
    assert found.notes == [rule.format(many=1, date="2020-02-03")]
    # EXACT, and no AFFIX
    assert len({rule.note for rule in matching.RULES_BY_NAME + matching.FURTHER_RULES}) == 7


# Sums


def test_genes_that_become_one_are_added_up():
    names = ["CD3D", IDS["CD3D"], "CD3D_" + IDS["CD3D"], "GAPDH", "GAPDH", "NOVEL"]
    adata = cells(names)
    counts = adata.X.toarray()
    wanted = (
        np.column_stack([counts[:, 3:5].sum(1), counts[:, :3].sum(1)])
        / counts.sum(1, keepdims=True)
        * 1e4
    )
    np.testing.assert_allclose(aligned(adata, ["GAPDH", "CD3D"]), np.log1p(wanted), rtol=1e-6)
    found = map_genes(names, ["GAPDH", "CD3D"])
    assert found.first.tolist() == [0, 0, 0, 3, 3, 5]
    assert "1 gene names occur more than once ('GAPDH'): their values are added up" in found.notes
    assert "1 gene of the model is the sum of several genes of the file" in found.notes
    few = map_genes(["CD3D", IDS["CD3D"]], ["CD3D", *(f"NOVEL{number}" for number in range(200))])
    assert not any("sum of several" in note for note in few.notes)  # it hardly matters


# Ambiguous names


AMBIGUOUS = {
    "the exact name wins": (["Cd3d", "CD3D"], ["CD3D"], [-1, 0]),
    "two in the file": (["Cd3d", "cd3d"], ["CD3D"], [-1, -1]),
    "a symbol of many genes": (["Y_RNA"], ["ENSG00000199347", "ENSG00000201098"], [-1]),
    "two versions in the model": (
        ["ENSG00000167286"],
        ["ENSG00000167286.1", "ENSG00000167286.2"],
        [-1],
    ),
    "clones are no versions": (["AL627309"], ["AL627309.1"], [-1]),
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_ambiguous_names(case):
    names, model, target = AMBIGUOUS[case]
    assert map_genes(names, model, species="human").target.tolist() == target


RENAMED = {
    "old name in the file": (["SEPT7", "MLL"], ["KMT2A", "SEPTIN7"], [1, 0]),
    "old name in the model": (["SEPTIN7", "KMT2A"], ["MLL", "SEPT7"], [1, 0]),
    "old name and id": ([IDS["KMT2A"], "SEPT7"], ["MLL", IDS["SEPTIN7"]], [0, 1]),
    "current symbol of another gene": (["GAPDH"], ["NKG7"], [-1]),
    "alias of two genes": (["HRX"], ["KMT2A"], [-1]),
    "the file has the gene": (["MLL", "KMT2A"], ["KMT2A"], [-1, 0]),
    "two in the model": (["SEPT7"], ["CDC10", "SEPTIN7"], [-1]),
    "an id that GENCODE lacks": (["ENSG90000000001"], ["LATER"], [0]),
}


@pytest.mark.parametrize("case", RENAMED)
def test_previous_symbols_and_aliases(case, table):
    names, model, target = RENAMED[case]
    found = map_genes(names, model)
    assert found.target.tolist() == target
    if case == "old name in the file":
        assert found.notes == [
            "2 genes were matched by a previous symbol or alias (HGNC, 2020-02-03)"
        ]


# Species


def test_another_species_is_refused_and_the_remedy_offered():
    with refusal("other-species"):
        map_genes(MOUSE, SYMBOLS, path="m.h5ad")
    with refusal("other-species"):
        map_genes(SYMBOLS, MOUSE)
    with refusal("other-species"):
        map_genes(["ENSRNOG00000061316", "ENSRNOG00000029897"], SYMBOLS)
    with refusal("other-species") as error:
        map_genes(["ENSMUSG00000032094", "ENSMUSG00000024673"], SYMBOLS)
    # orthologs are matched by symbol, and there are none
    assert error.value.fixes == ("species=human",)


ZEBRAFISH = "ptpn12 phtf2 mansc1 lrp6 dusp16 cdkn1bb mybpc3 etnk1 casc1 lrmp krasb si:ch211-11p18 zgc:92880 gapdh"
ZEBRAFISH += " actb1 actb2 rpl13a rps27a eef1a1l1 cd4-1 cd8a lck cxcr4a cxcr4b ccr7 mpx lyz hmgb2a hmgb2b pcna ptmab"
ZEBRAFISH += " fabp7a apoa1b"


def test_names_in_lower_case_are_human_by_the_share_that_is_known():
    model = [*SYMBOLS, "PTPN12"]
    with refusal("other-species", "species=human"):
        map_genes(ZEBRAFISH.split(), model, path="z.h5ad")
    assert map_genes(ZEBRAFISH.split(), model, species="human").target.max() > 0
    found = map_genes([gene.lower() for gene in SYMBOLS], model)
    assert found.target.tolist() == list(range(8))
    assert any("species=human" in note for note in found.notes)
    assert map_genes([f"gene{number}" for number in range(9)], ["gene3"]).target.max() == 0


def test_orthologs_to_and_from_mouse():
    partner = {mouse: human for mouse, human in human_genes().orthologs.items() if mouse in MOUSE}
    assert partner["mt-Nd1"] == "MT-ND1"
    to_human = map_genes(MOUSE, SYMBOLS, species="mouse")
    wanted = [SYMBOLS.index(partner[gene]) if gene in partner else -1 for gene in MOUSE]
    assert to_human.target.tolist() == wanted
    assert sum(target >= 0 for target in wanted) >= 4
    assert to_human.species == "mouse"
    assert any(
        "genes were matched to their only ortholog in the other species" in note
        for note in to_human.notes
    )
    # the orthologs' symbols are translated to ids
    assert map_genes(MOUSE, ENSEMBL, species="mouse").target.tolist() == wanted
    ids = pd.DataFrame(
        {"gene_symbols": MOUSE}, index=[f"ENSMUSG{i:011d}" for i in range(len(MOUSE))]
    )
    assert map_genes(list(ids.index), SYMBOLS, ids, species="mouse").target.tolist() == wanted
    back = map_genes(SYMBOLS, MOUSE, species="human").target
    assert {(SYMBOLS[i], MOUSE[j]) for i, j in enumerate(back) if j >= 0} == {
        (b, a) for a, b in partner.items()
    }


def test_a_given_species_is_used():
    given = map_genes(["Cd3d", "Gapdh"], SYMBOLS, species="human")
    assert given.target.tolist() == [0, 2]
    assert map_genes(
        [gene.upper() for gene in MOUSE], MOUSE, species="mouse"
    ).target.tolist() == list(range(6))


FORMS = [
    *("GRCh38---{}", "GRCh38premrna-{}", "hg19.{}", "{}__chr7", "{}--chrX"),
    *(
        "{}|NM_000732.4|Reference_end",
        "{}|ENST00000361763.9|PolyA_1",
        "{}.NM_000732.4.Reference_end",
    ),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", ["symbols", "ids"])
def test_names_with_a_prefix_or_suffix(model, form):
    names = [form.format(gene) for gene in SYMBOLS]
    found = map_genes(names, MODELS[model])
    assert found.target.tolist() == list(range(8))
    assert any(note.startswith("8 names were matched by the gene in them") for note in found.notes)
    # A model keeps the names of its reference.
    assert map_genes(MODELS[model], names).target.tolist() == list(range(8))
    assert map_genes(names, names).notes == []


def test_mouse_genes_with_a_genome_are_not_human_genes():
    names = [f"mm10_{gene}" for gene in MOUSE]
    with refusal("other-species"):
        map_genes(names, SYMBOLS)
    assert map_genes(names, MOUSE).target.tolist() == list(range(6))
    plain = map_genes(MOUSE, SYMBOLS, species="mouse").target.tolist()
    assert map_genes(names, SYMBOLS, species="mouse").target.tolist() == plain
