"""The names on an axis: genes or cells, and gene names with a prefix or suffix."""

import pytest

from scperformer.io.axes import axis_shares, without_affixes

GENES = ["CD3D", "MS4A1", "HLA-A", "HLA-DRA", "MT-ND1", "RP11-34P13.7", "AL627309.1", "Y_RNA", "NKX2-1", "C1orf112"]
MOUSE = ["Cd3d", "Ms4a1", "H2-K1", "mt-Nd1", "1700001C19Rik", "Gm1992", "Nkg7", "Lyz1"]
AFFIXES = {
    "Cell Ranger": "GRCh38_{}",
    "Seurat, three dashes": "GRCh38---{}",
    "R": "hg19.{}",
    "premrna in Seurat": "GRCh38premrna-{}",
    "CEL-Seq2": "{}__chr7",
    "CEL-Seq2 in Seurat": "{}--chrX",
    "BD Rhapsody": "{}|NM_000732.4|Reference_end",
    "BD Rhapsody, an Ensembl transcript": "{}|ENST00000361763.9|PolyA_1",
    "BD Rhapsody in R": "{}.NM_000732.4.Reference_end",
}


@pytest.mark.parametrize("case", AFFIXES)
def test_prefixes_and_suffixes_are_removed(case):
    names = [AFFIXES[case].format(gene) for gene in GENES]
    assert without_affixes([*names, "ERCC-00002"], "human") == [*GENES, "ERCC-00002"]


UNTOUCHED = {
    "genes": GENES,
    "mouse": MOUSE,
    "versions": [f"ENSG{i:011d}.1" for i in range(9)],
    "ids and symbols": [f"ENSG{i:011d}_{gene}" for i, gene in enumerate(GENES)],
    "antibodies of BD": ["CD4|CD4|AHS0032|pAbO", "CD19:SJ25C1|CD19|AHS0030|pAbO", "CD3D"],
    "none": [],
}


@pytest.mark.parametrize("case", UNTOUCHED)
def test_names_that_stay_as_they_are(case):
    assert without_affixes(UNTOUCHED[case], "human") == UNTOUCHED[case]


def test_the_genome_of_another_species_is_kept():
    human = [f"GRCh38_{gene}" for gene in GENES]
    mouse = [f"mm10___{gene}" for gene in MOUSE]
    assert without_affixes(human + mouse, "human") == GENES + mouse
    assert without_affixes(human + mouse, "mouse") == human + MOUSE


def test_shares_of_genes_and_cells():
    assert axis_shares(GENES) == (1.0, 0.0)
    assert axis_shares([f"{gene}|NM_000732.4|Reference_end" for gene in GENES]) == (1.0, 0.0)
    assert axis_shares(["AAACATACAACCAC-1", "CD3D"]) == (0.5, 0.5)
    assert axis_shares(["plate1_C3", "plate1_C5", "plate1_F2"]) == (0.0, 1.0)  # C3, C5 and F2 are also genes
    assert axis_shares(["1", "2"]) == axis_shares([]) == (0.0, 0.0)
