"""Weights of a pretrained encoder are copied by gene; tables of gene vectors are read or refused."""

import numpy as np
import pytest
from support.refusal import refusal

from scperformer.base.errors import InputError
from scperformer.cli.compose import make_config
from scperformer.model.folder import read_model, write_model
from scperformer.token_attention.initialise import load_init, read_gene_vectors

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
    vectors = read_gene_vectors(table("\ufeff" + TABLE.replace(" ", "\t").replace("\n", " \r\n")), GENES, 3)
    expected = np.array([[0.5, -1, 0.2], [0, 0, 0], [1, 2, 3], [0, 0, 0]], dtype=np.float32)
    np.testing.assert_array_equal(vectors, expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("CD3D 1 2 3\nLYZ 1 2\n", r"2 numbers for 'LYZ'; expected .* 3 numbers .*: name another table"),
        ("CD3D 1 2 3\nLYZ 1 two 3\n", r"text in place of a number .*'two'.*; expected a text file"),
        ("CD3D 1 nan 3\n", r"numbers that are not finite; expected a text file"),
        ("Cd3d 1 2 3\nLyz1 4 5 6\n", r"0 of the model's 4 genes; .*the model has e\.g\. 'CD3D', the file 'Lyz1'"),
        (b"\xff\xfe\x00CD3D", r"content that is not text"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_misfitting_tables_are_refused(table, content, message):
    with pytest.raises(InputError, match=message):
        read_gene_vectors(table(content), GENES, 3)


def test_training_does_not_start_from_damaged_weights(tiny_model, tmp_path):
    saved = read_model(tiny_model)
    saved.weights["model.encoder.layers.0.to_out.bias"] = np.ones(32, dtype=np.int32)
    write_model(saved, tmp_path / "odd")
    with refusal("damaged-model"):
        load_init(make_config("train", ["inputs=[x]", "label_key=x", f"init={tmp_path / 'odd'}"]))


def test_missing_files_and_folders_are_refused(tmp_path):
    with refusal("gene-vectors"):
        read_gene_vectors(tmp_path / "absent.txt", GENES, 3)
    with refusal("gene-vectors"):
        read_gene_vectors(tmp_path, GENES, 3)
