"""Loading saved networks: misfitting weights are refused before memory is allocated. Tables of gene vectors."""

import copy
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save
from support.measured import TensorBytes
from support.words import as_options

from scperformer import train
from scperformer.attention.favor import Fastfood
from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.cli.compose import make_config
from scperformer.model.content import INFO
from scperformer.model.folder import WEIGHTS, read_model
from scperformer.model.load import _NothingDrawn, load_encoder, load_model, read_gene_vectors, rebuild
from scperformer.training.train import new_network

HUGE = 10**9


def rewrite(folder: Path, weights: bytes) -> None:
    """Replace the weights of a model folder and their checksum."""
    (folder / WEIGHTS).write_bytes(weights)
    info = json.loads((folder / INFO).read_text())
    info["files"][WEIGHTS] = sha256(folder / WEIGHTS)
    (folder / INFO).write_text(json.dumps(info))


MISFITS = {
    "dim": {"model": {"dim": HUGE}},
    "depth": {"model": {"depth": HUGE}},
    "heads": {"model": {"num_heads": HUGE}},
    "head width": {"model": {"head_dim": 10**12}},
    "views": {"model": {"linear_powers": [1.0] * 10**5}},
    "bins": {"tokens": {"name": "bins", "num_bins": HUGE}},
    "hidden layers": {"head": {"hidden": [10**6, 10**6]}},
    "many hidden layers": {"head": {"hidden": [1] * 10**6}},
    "features": {"attention": {"num_features": HUGE}},
    "structured features": {"attention": {"num_features": HUGE, "projection": "fastfood"}},
    "anchors": {"attention": {"name": "rbf", "num_anchors": HUGE}},
    "rounds": {"attention": {"name": "lsh", "num_rounds": HUGE}},
    "window": {"attention": {"name": "window", "half_width": HUGE}},
    "many kernels": {"attention": {"name": "conv", "kernel_sizes": [1] * 10**6}},
    "beyond 64 bits": {"model": {"dim": 2**70}},
    "one label more": {"model": {"dim": 31}},
    "text for a number": {"tokens": {"num_bins": "many"}},
    "no dictionary": {"attention": "favor"},
    "a list for a name": {"attention": {"name": ["favor"]}},
}


@pytest.mark.parametrize("case", MISFITS)
def test_a_misfitting_configuration_is_refused_before_memory_is_allocated(case, tiny_model):
    saved = copy.deepcopy(read_model(tiny_model))
    for group, options in MISFITS[case].items():
        same_kind = isinstance(options, dict) and (group != "attention" or "name" not in options)
        saved.config[group] = saved.config[group] | options if same_kind else options
    with (
        TensorBytes() as tensors,
        pytest.raises(InputError, match="damaged model 'there': its weights do not fit its configuration"),
    ):
        rebuild(saved, "there")
    assert tensors.largest < 2**20


@pytest.mark.parametrize("change", ["absent", "of another shape", "unused"])
def test_misfitting_weights_are_named(change, tiny_model):
    saved = read_model(tiny_model)
    name = "model.encoder.layers.0.to_out.bias"
    if change == "absent":
        del saved.weights[name]
    elif change == "unused":
        saved.weights["model.more"] = np.zeros(3, dtype=np.float32)
    else:
        saved.weights[name] = np.zeros(7, dtype=np.float32)
    message = {
        "absent": r"no weights 'encoder\.layers\.0\.to_out\.bias'",
        "of another shape": r"'encoder\.layers\.0\.to_out\.bias' of shape \(7,\) instead of \(32,\)",
        "unused": r"unused weights 'more'",
    }
    with pytest.raises(InputError, match=message[change]):
        rebuild(saved, "there")


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool", "uint8", "complex64"])
@pytest.mark.parametrize("name", ["model.encoder.layers.0.to_out.bias", "baseline.bias"])
def test_weights_of_other_types_are_refused(dtype, name, tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    weights = load_file(folder / WEIGHTS)
    weights[name] = np.ones(weights[name].shape, dtype=dtype)
    rewrite(folder, save(weights))
    with pytest.raises(InputError, match=f"damaged model .*{name.removeprefix('model.')}'? of type {dtype}"):
        load_model(folder)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F4", "F6_E2M3", "X9"])
def test_weights_of_types_unknown_to_numpy_are_refused(dtype, tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    size = {"BF16": 16, "F8_E4M3": 8, "F4": 4, "F6_E2M3": 6}.get(dtype, 8)
    header = json.dumps({"baseline.bias": {"dtype": dtype, "shape": [8], "data_offsets": [0, size]}}).encode()
    rewrite(folder, len(header).to_bytes(8, "little") + header + bytes(size))
    with pytest.raises(InputError, match=f"damaged model .*'{WEIGHTS}' unreadable"):
        load_model(folder)


def test_floating_weights_of_another_precision_are_read(tiny_model, tmp_path):
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    weights = {name: array.astype(np.float64) for name, array in load_file(folder / WEIGHTS).items()}
    rewrite(folder, save(weights))
    ours, theirs = (load_model(path).network.state_dict() for path in (tiny_model, folder))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("layers.0.to_out.bias", np.ones(32, dtype=np.int32)),
        ("embedding.gene.weight", np.ones((201, 32), dtype=np.uint16)),
        ("embedding.gene.weight", np.ones((9, 32), dtype=np.float32)),
        ("embedding.gene.weight", np.ones((), dtype=np.float32)),
    ],
    ids=["integers", "integers in the gene table", "too few genes", "one number"],
)
def test_training_does_not_start_from_weights_of_another_type_or_shape(name, array, tiny_model):
    saved = read_model(tiny_model)
    encoder = rebuild(saved, Path(tiny_model)).encoder
    assert load_encoder(encoder, saved, saved.genes, str(tiny_model)) == list(range(len(saved.genes)))
    saved.weights[f"model.encoder.{name}"] = array
    with pytest.raises(InputError, match=rf"damaged model .*weights '{name}' of (type|shape)"):
        load_encoder(encoder, saved, saved.genes, str(tiny_model))


def test_indices_that_are_no_permutation_are_refused():
    fastfood = Fastfood(8, 4)
    fastfood.redraw(torch.Generator().manual_seed(0))
    state = fastfood.state_dict()
    fastfood.load_state_dict(state)
    state["order_NP"] = state["order_NP"] + 1
    with pytest.raises(ValueError, match="'order_NP' that are no permutations"):
        fastfood.load_state_dict(state)


def test_a_network_on_the_meta_device_draws_no_random_numbers():
    """Drawing on the meta device would import torch's Python kernels, a second or more."""
    with torch.device("meta"), _NothingDrawn():
        state = torch.get_rng_state()
        assert torch.randn(3, 4, generator=torch.Generator()).shape == (3, 4)
        assert torch.nn.Embedding(5, 6).weight.is_meta
    assert torch.equal(torch.get_rng_state(), state)


def test_loading_changes_nothing_in_torch(tiny_model, torch_unchanged):
    with torch_unchanged():
        network = load_model(tiny_model).network
    assert not network.training
    assert not any(tensor.is_meta for tensor in network.state_dict().values())


# --- tables of gene vectors ------------------------------------------------------------------------------------

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


@pytest.mark.parametrize(
    "content",
    [TABLE, "3 3\n" + TABLE, TABLE.replace(" ", "\t"), TABLE.replace("\n", " \r\n"), "\ufeff" + TABLE],
    ids=["plain", "word2vec's header", "tabs", "Windows", "byte-order mark"],
)
def test_vectors_of_the_models_genes_are_read(table, content):
    vectors = read_gene_vectors(table(content), GENES, 3)
    assert vectors.dtype == np.float32
    expected = np.array([[0.5, -1, 0.2], [0, 0, 0], [1, 2, 3], [0, 0, 0]], dtype=np.float32)
    np.testing.assert_array_equal(vectors, expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "CD3D 1 2 3\nLYZ 1 2\n",
            r"2 numbers in line 2; expected .* 3 numbers .*: name another table",
        ),
        ("CD3D 1 2 3\nLYZ 1 2 3 4\n", r"4 numbers in line 2"),
        ("4 4\nCD3D 1 2 3 4\n", r"4 numbers in line 2"),
        ("CD3D 1 2 3\n3 3\n", r"1 numbers in line 2"),
        (
            "CD3D 1 2 3\nLYZ 1 two 3\n",
            r"text in place of a number for 'LYZ'; expected a text file",
        ),
        ("CD3D 1 nan 3\n", r"numbers that are not finite; expected a text file"),
        ("", r"0 of the model's 4 genes; expected a tenth of them"),
        ("Cd3d 1 2 3\nLyz1 4 5 6\n", r"0 of the model's 4 genes; .*the model has e\.g\. 'CD3D', the file 'Lyz1'"),
        (b"\xff\xfe\x00CD3D", r"content that is not text; expected a text file"),
    ],
)
def test_misfitting_tables_are_refused(table, content, message):
    with pytest.raises(InputError, match=message):
        read_gene_vectors(table(content), GENES, 3)


def test_an_array_has_the_genes_of_the_text_file_beside_it(tmp_path):
    rows = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], dtype=np.float64)
    np.save(tmp_path / "gene2vec.npy", rows)
    (tmp_path / "gene2vec.txt").write_text("LYZ\nOTHER\nCD3D\n")
    vectors = read_gene_vectors(tmp_path / "gene2vec.npy", GENES, 3)
    np.testing.assert_array_equal(vectors, [rows[2], [0, 0, 0], rows[0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("array", "names", "message"),
    [
        (np.ones((2, 3)), None, r"no readable file .*gene2vec\.txt"),
        (np.ones((2, 3)), "LYZ\n", r"float64 of shape \(2, 3\); expected numbers of shape \(1, 3\)"),
        (np.ones((2, 4)), "LYZ\nCD3D\n", r"float64 of shape \(2, 4\); expected numbers of shape \(2, 3\)"),
        (np.array([["x"] * 3] * 2), "LYZ\nCD3D\n", r"<U1 of shape \(2, 3\)"),
        (np.array([[None] * 3] * 2), "LYZ\nCD3D\n", r"content that is no array of numbers"),
    ],
    ids=["no genes", "fewer genes", "another width", "text", "objects, which are pickled"],
)
def test_misfitting_arrays_are_refused(array, names, message, tmp_path):
    np.save(tmp_path / "gene2vec.npy", array, allow_pickle=True)
    if names is not None:
        (tmp_path / "gene2vec.txt").write_text(names)
    with pytest.raises(InputError, match=message):
        read_gene_vectors(tmp_path / "gene2vec.npy", GENES, 3)


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"No such file.*positions=gene"):
        read_gene_vectors(tmp_path / "absent.txt", GENES, 3)
    with pytest.raises(InputError, match=r"directory.*positions=gene"):
        read_gene_vectors(tmp_path, GENES, 3)


def test_a_vector_of_one_number_is_not_taken_for_a_header(table):
    assert read_gene_vectors(table("CD3D 0.5\n"), GENES, 1)[0].tolist() == [0.5]


def test_a_warning_names_the_number_of_repeated_genes(table, caplog):
    vectors = read_gene_vectors(table("LYZ 1 2 3\nLYZ 4 5 6\n"), GENES, 3)
    assert vectors[2].tolist() == [4, 5, 6]
    assert "more than once in" in caplog.text


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_float32_are_refused_without_a_warning(table):
    with pytest.raises(InputError, match="not finite"):
        read_gene_vectors(table("LYZ 1 1e60 3\n"), GENES, 3)


def test_lines_of_other_genes_may_contain_text(table):
    """Only the lines of the model's genes are parsed: published tables contain symbols such as '---' and notes."""
    vectors = read_gene_vectors(table("LYZ 1 2 3\n--- a b c\n"), GENES, 3)
    assert vectors[2].tolist() == [1, 2, 3]


@pytest.fixture
def options(counts_adata, table):
    """Options to train a small model with vectors of all genes of `counts_adata` except the last."""
    rng = np.random.default_rng(0)
    lines = [f"{gene} {' '.join(f'{x:.3f}' for x in rng.normal(size=32))}" for gene in counts_adata.var_names[:-1]]
    path = table("\n".join(lines))
    return [
        "model=tiny",
        "trainer.max_epochs=1",
        "logger=none",
        "model.positions=gene2vec",
        f"model.gene2vec_path='{path}'",
    ]


@pytest.mark.slow
def test_training_does_not_change_the_vectors(counts_adata, options, tmp_path):
    model = load_model(train(counts_adata, "cell_type", output=tmp_path / "model", options=as_options(options)).path)
    weight = model.network.encoder.embedding.gene.weight
    assert not weight.requires_grad
    path = options[-1].partition("=")[2].strip("'")
    assert model.saved.config["model"]["gene2vec_path"] == Path(path).name  # without the user's folders
    expected = read_gene_vectors(path, model.saved.genes, 32)
    assert expected[:-1].any(axis=1).all()
    np.testing.assert_array_equal(weight[:-1].numpy(), expected)  # zeros for the gene that is not in the table
    assert torch.equal(weight[-1], torch.zeros(32))  # the special position


def test_vectors_do_not_depend_on_the_seed(options):
    config = make_config("train", ["inputs=[ref.h5ad]", "label_key=cell_type", *options])

    reference = SimpleNamespace(genes=[f"GENE{i}" for i in range(20)], label_names=["a", "b"])
    first = new_network(reference, config, None)[0].encoder.embedding.gene.weight
    config.seed = 1
    assert torch.equal(new_network(reference, config, None)[0].encoder.embedding.gene.weight, first)
