"""Lists of genes as people and vendors write them."""

import json

import pytest
from support.refusal import refusal

from scperformer.io.gene_lists import is_gene_list, read_genes

GENES = ["CD3E", "MS4A1", "HLA-DRA", "NKG7"]
IDS = ["ENSG00000198851", "", "ENSG00000204287", ""]
TARGETS = [
    {"type": {"descriptor": "gene", "data": {"name": gene, "id": "ENSG1"}}} for gene in GENES
]
CONTROL = {"type": {"descriptor": "negative control", "data": {"name": "NegControlProbe_00042"}}}
LISTS = {
    "lines": ("p.txt", "\ufeff" + "\n\n".join(GENES) + " \n"),
    "lines with a header": ("p.txt", "\n".join(["gene", *GENES])),
    "names that are no known genes": ("p.txt", "B\nA"),
    "Xenium in CSV": (
        "p.csv",
        "Gene,Ensembl_ID,Num_Probesets\n"
        + "\n".join(f"{a},{b},8" for a, b in zip(GENES, IDS, strict=True)),
    ),
    "Xenium in JSON": (
        "gene_panel.json",
        json.dumps({"payload": {"targets": [*TARGETS, CONTROL]}}, indent=1),
    ),
    "a list in JSON": ("p.json", json.dumps(GENES)),
    "write.table of R": (
        "p.tsv",
        '"x"\n' + "\n".join(f'"{i}"\t"{gene}"' for i, gene in enumerate(GENES, 1)),
    ),
    "semicolons": (
        "p.csv",
        "number;gene\n" + "\n".join(f"{i};{gene}" for i, gene in enumerate(GENES)),
    ),
    "features of 10x": (
        "features.tsv",
        "\n".join(f"ENSG;{gene}\t{gene}\tGene Expression" for gene in GENES),
    ),
}


@pytest.mark.parametrize("case", LISTS)
def test_genes_of_a_list(case, tmp_path):
    name, content = LISTS[case]
    path = tmp_path / name
    path.write_text(content, encoding="utf-8")
    assert read_genes(path) == (["B", "A"] if case == "names that are no known genes" else GENES)
    assert is_gene_list(str(path))


def test_tables_of_cells_are_no_lists(tmp_path):
    path = tmp_path / "cells.csv"
    path.write_text("cell," + ",".join(f"G{i}" for i in range(60)) + "\n")
    assert not is_gene_list(str(path))
    assert not is_gene_list(str(tmp_path / "cells.h5ad"))


BAD_FILES = {
    "none": None,
    "empty": b"\n\n",
    "binary": b"\xff\xfe\x00A",
    "table without genes": b"name\tmean\nA1x\t1\nB1x\t2\n",
    "other JSON": b'{"a": {"b": 1}}',
    "deep JSON": b"[" * 100_000,
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
def test_bad_files_of_genes(content, tmp_path):
    path = tmp_path / "genes.txt"
    if content is not None:
        path.write_bytes(content)
    with refusal("gene-list", path):
        read_genes(path)
