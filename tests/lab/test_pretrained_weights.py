"""Weights of a pretrained encoder are copied by gene; tables of gene vectors are read or refused."""

import numpy as np
import pytest
from support.refusal import refusal

from scperformer.lab.initialise import load_init, read_gene_vectors
from scperformer.model.folder import read_model, write_model

GENES = ["CD3D", "MS4A1", "LYZ", "NKG7"]
TABLE = "CD3D 0.5 -1 2e-1\nLYZ 1 2 3\n\nACTB 7 8 9\n"


@pytest.fixture
def table(tmp_path):
    """Write a table and return its path."""

    def write(content: str | bytes):
        path = tmp_path / "vectors.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_vectors_of_the_models_genes_are_read(table):
    """Of a table with tabs, lines and the mark of Windows."""
    vectors = read_gene_vectors(
        table("\ufeff" + TABLE.replace(" ", "\t").replace("\n", " \r\n")), GENES, 3
    )
    expected = np.array([[0.5, -1, 0.2], [0, 0, 0], [1, 2, 3], [0, 0, 0]], dtype=np.float32)
    np.testing.assert_array_equal(vectors, expected)


@pytest.mark.parametrize(
    ("content", "values"),
    [
        ("CD3D 1 2 3\nLYZ 1 2\n", ["2 numbers", "'LYZ'", "3 numbers"]),
        ("CD3D 1 2 3\nLYZ 1 two 3\n", ["'two'"]),
        ("CD3D 1 nan 3\n", ["not finite"]),
        ("Cd3d 1 2 3\nLyz1 4 5 6\n", ["0 of the model's 4 genes", "'CD3D'", "'Lyz1'"]),
        (b"\xff\xfe\x00CD3D", ["not text"]),
    ],
)
@pytest.mark.filterwarnings("error")
def test_misfitting_tables_are_refused(table, content, values):
    with refusal("gene-vectors", *values):
        read_gene_vectors(table(content), GENES, 3)


def test_training_does_not_start_from_damaged_weights(tiny_model, tmp_path):
    saved = read_model(tiny_model)
    saved.weights["model.encoder.layers.0.to_out.bias"] = np.ones(32, dtype=np.int32)
    write_model(saved, tmp_path / "odd")
    with refusal("damaged-model"):
        load_init(str(tmp_path / "odd"))


def test_missing_files_and_folders_are_refused(tmp_path):
    for path in (tmp_path / "absent.txt", tmp_path):
        with refusal("gene-vectors", path):
            read_gene_vectors(path, GENES, 3)
