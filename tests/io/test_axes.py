"""The names on an axis: genes or cells, and gene names with a prefix or suffix."""

import pytest

from scperformer.io.axes import axis_shares, without_affixes

GENES = ["CD3D", "MS4A1", "HLA-A", "HLA-DRA", "MT-ND1", "RP11-34P13.7", "AL627309.1", "Y_RNA", "NKX2-1", "C1orf112"]
MOUSE = ["Cd3d", "Ms4a1", "H2-K1", "mt-Nd1", "1700001C19Rik", "Gm1992", "Nkg7", "Lyz1"]
AFFIXES = {
    "Cell Ranger": ("GRCh38_{}", "GRCh38_GENE"),
    "Cell Ranger, several dashes": ("GRCh38______{}", "GRCh38______GENE"),
    "Seurat": ("GRCh38-{}", "GRCh38-GENE"),
    "Seurat, three dashes": ("GRCh38---{}", "GRCh38---GENE"),
    "R": ("hg19.{}", "hg19.GENE"),
    "premrna": ("GRCh38_premrna_{}", "GRCh38_premrna_GENE"),
    "premrna in Seurat": ("GRCh38premrna-{}", "GRCh38premrna-GENE"),
    "CITE-seq": ("HUMAN_{}", "HUMAN_GENE"),
    "CEL-Seq2": ("{}__chr7", "GENE__chr..."),
    "CEL-Seq2 in Seurat": ("{}--chrX", "GENE__chr..."),
    "BD Rhapsody": ("{}|NM_000732.4|Reference_end", "GENE|...|..."),
    "BD Rhapsody, an Ensembl transcript": ("{}|ENST00000361763.9|PolyA_1", "GENE|...|..."),
    "BD Rhapsody in Seurat": ("{}-NM-000732.4-Reference-end", "GENE|...|..."),
    "BD Rhapsody in R": ("{}.NM_000732.4.Reference_end", "GENE|...|..."),
    "a custom reference": ("my_ref.v3-{}", "my_ref.v3-GENE"),
    "an assay of Seurat": ("rna_{}", "rna_GENE"),
    "a feature of GFF": ("gene:{}", "gene:GENE"),
    "suffix": ("{}-hg38", "GENE-hg38"),
    "prefix and suffix": ("x.{}_exon", "x.GENE_exon"),
}


@pytest.mark.parametrize("case", AFFIXES)
def test_prefixes_and_suffixes_are_removed(case):
    form, pattern = AFFIXES[case]
    names = [form.format(gene) for gene in GENES]
    assert without_affixes(names, "human") == (GENES, [pattern])
    assert without_affixes([*names, "ERCC-00002"], "human") == ([*GENES, "ERCC-00002"], [pattern])


UNTOUCHED = {
    "genes": GENES,
    "mouse": MOUSE,
    "ids": [f"ENSG{i:011d}" for i in range(9)],
    "versions": [f"ENSG{i:011d}.1" for i in range(9)],
    "ids and symbols": [f"ENSG{i:011d}_{gene}" for i, gene in enumerate(GENES)],
    "a panel of HLA": ["HLA-A", "HLA-B", "HLA-C", "HLA-DRA", "CD3D"],
    "clones": ["AL627309.1", "AC004556.1", "AP001372.1", "RP11-34P13.7", "RP11-206L10.9", "RP11-34P13.8"],
    "numbered": [f"gene_{i}" for i in range(9)],
    "half of the names": [*(f"lab_{gene}" for gene in GENES[:5]), *GENES[5:]],
    "antibodies of BD": ["CD4|CD4|AHS0032|pAbO", "CD19:SJ25C1|CD19|AHS0030|pAbO", "CD3D"],
    "a different prefix for each name": [f"lab{i}_{gene}" for i, gene in enumerate(GENES)],
    "another species": ["actb1", "gapdh", "hbae1.1"],
    "none": [],
}


@pytest.mark.parametrize("case", UNTOUCHED)
def test_names_that_stay_as_they_are(case):
    names = UNTOUCHED[case]
    assert without_affixes(names, "human") == (names, [])


def test_the_genome_of_another_species_is_kept():
    names = [
        *(f"GRCh38_{gene}" for gene in GENES),
        *(f"mm10___{gene}" for gene in [*MOUSE, *(f"Gm{i}" for i in range(9))]),
    ]
    assert without_affixes(names, "human") == ([*GENES, *names[len(GENES) :]], ["GRCh38_GENE"])
    plain, patterns = without_affixes(names, "mouse")
    assert (plain[: len(GENES)], plain[len(GENES) :][:8], patterns) == (names[: len(GENES)], MOUSE, ["mm10___GENE"])
    assert without_affixes(names[len(GENES) :], "human")[1] == ["mm10___GENE"]  # a prefix like any other


def test_shares_of_genes_and_cells():
    assert axis_shares(GENES) == (1.0, 0.0)
    assert axis_shares([f"{gene}|NM_000732.4|Reference_end" for gene in GENES]) == (1.0, 0.0)
    assert axis_shares(["AAACATACAACCAC-1", "CD3D"]) == (0.5, 0.5)
    assert axis_shares(["plate1_C3", "plate1_C5", "plate1_F2"]) == (0.0, 1.0)  # C3, C5 and F2 are also genes
    assert axis_shares(["1", "2"]) == axis_shares([]) == (0.0, 0.0)
