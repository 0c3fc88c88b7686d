"""One list of genes for several files."""

import pandas as pd
import pytest

from scperformer.errors import InputError
from scperformer.genes.vocabulary import gene_maps

IDS = ["ENSG00000167286", "ENSG00000111640", "ENSG90000000001"]  # CD3D, GAPDH, and an unknown gene


def joined(*files, vocabulary=None):
    tables = [pd.DataFrame(index=names) for names in files]
    chosen, maps = gene_maps(tables, [f"{i}.h5ad" for i in range(len(files))], vocabulary, "auto")
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
    with pytest.raises(InputError, match=r"0 of the 2 genes of the encoder in the files .*'CD3D'.*at least 10%"):
        joined(["CD3D", "NOVEL"], vocabulary=["A1BG", "NKG7"])
