"""Model folders: a saved bundle is loaded unchanged; damaged, foreign and newer folders are refused."""

import dataclasses
import hashlib
import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.refusal import refusal

from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.labels.tree import LabelTree
from scperformer.model.arrays import HeldOut
from scperformer.model.bundle import Metrics, NetworkConfig, Provenance
from scperformer.model.card import model_card
from scperformer.model.content import INFO
from scperformer.model.folder import (
    CARD,
    GENES,
    PACKAGED_MODEL,
    WEIGHTS,
    read_model,
    resolve_model,
    write_model,
)
from scperformer.model.saved_model import SavedModel


@pytest.fixture
def saved() -> SavedModel:
    rng = np.random.default_rng(0)
    return SavedModel(
        name="tiny",
        genes=["SAMD11", "HLA-A", "ENSG00000187634.12", "Gène-β"],
        gene_means=np.array([0.0, 0.1234567, 3.5, 1e-7], dtype=np.float32),
        labels=["B cell", "T <cell> | Naïve"],
        ontology_term_ids=["CL:0000236", "unknown"],
        config=NetworkConfig(target_sum=1e4, tokens={"name": "bins"}),
        metrics=Metrics(
            num_val_cells=20,
            scales={"linear": 1.0, "encoder": 0.5},
            model={"accuracy": 0.9, "macro_f1": 0.81},
            baseline={"accuracy": 0.8, "macro_f1": 0.7},
        ),
        provenance=Provenance(
            versions={"scperformer": "0.1.0"},
            reference="ref.h5ad",
            reference_sha256="ab" * 32,
            label_key="cell_type",
            num_cells=100,
            cells_per_label={"B cell": 60, "T <cell> | Naïve": 40},
            input="counts from X",
            seed=3,
        ),
        weights={
            "model.a": rng.normal(size=(3, 4)).astype(np.float32).T,  # not contiguous
            "model.b": np.arange(5),
            "baseline.weight": rng.normal(size=(4, 2)).astype(np.float32),
            "baseline.bias": np.zeros(2, dtype=np.float32),
        },
    )


@pytest.fixture
def folder(saved, tmp_path) -> Path:
    write_model(saved, tmp_path / "m.model")
    return tmp_path / "m.model"


def change_info(folder: Path, change) -> None:
    """Rewrite bundle.json with one thing changed in place."""
    info = json.loads((folder / INFO).read_text())
    change(info)
    (folder / INFO).write_text(json.dumps(info))


# --- round trip ----------------------------------------------------------------------------------------------


def test_a_saved_bundle_is_loaded_unchanged(saved, folder):
    loaded = read_model(folder)
    for field in dataclasses.fields(SavedModel):
        if field.name not in ("gene_means", "weights", "hash"):
            assert getattr(loaded, field.name) == getattr(saved, field.name), field.name
    # six digits are written
    np.testing.assert_allclose(loaded.gene_means, saved.gene_means, rtol=5e-6)
    assert set(loaded.weights) == set(saved.weights)
    for name, array in saved.weights.items():
        np.testing.assert_array_equal(loaded.weights[name], array)
        assert loaded.weights[name].dtype == array.dtype
    assert loaded.hash == hashlib.sha256((folder / INFO).read_bytes()).hexdigest()


def test_model_card_names_labels_data_and_both_scores(saved, folder):
    card = (folder / CARD).read_text(encoding="utf-8")
    assert card == model_card(saved)
    for text in ("# tiny", "| B cell | 60 |", "ref.h5ad", "cell_type", "0.810", "0.700", "seed 3"):
        assert text in card


def test_the_card_shows_how_the_held_out_cells_of_each_label_are_called(saved):
    """Of three cells of the first label one is called as the second; of the second label no cell is held out."""
    logits = np.eye(2, dtype=np.float32)[[0, 0, 1]]
    held_out = HeldOut(logits, np.zeros(3, dtype=np.int64), np.zeros(3))
    card = model_card(dataclasses.replace(saved, held_out=held_out))
    assert "| held-out cells | recall | precision | most often mistaken for |" in card
    assert "| CL:0000236 | 3 | 0.667 | 1.000 | T &lt;cell&gt; \\| Naïve (1) |" in card
    assert "| unknown | not tested | – | 0.000 | – |" in card


# --- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nothing", "model.ckpt"])
def test_refuses_a_missing_folder_and_a_file_in_its_place(name, tmp_path):
    (tmp_path / "model.ckpt").write_bytes(b"x")
    with refusal("no-model"):
        read_model(tmp_path / name)


@pytest.mark.parametrize("name", [WEIGHTS, GENES])
def test_refuses_one_changed_byte(folder, name):
    content = bytearray((folder / name).read_bytes())
    content[-2] ^= 1
    (folder / name).write_bytes(content)
    with refusal("damaged-model", name):
        read_model(folder)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"\xff\xfe\x00", b"[" * 100_000],
    ids=["empty", "list", "utf-8", "nested"],
)
def test_refuses_broken_json(folder, content):
    (folder / INFO).write_bytes(content)
    with refusal("damaged-model"):
        read_model(folder)


@pytest.mark.parametrize(("version", "remedy"), [(2, "train"), (9, "update"), (None, "update")])
def test_refuses_other_format_versions(folder, version, remedy):
    change_info(folder, lambda info: info.update(format_version=version))
    with pytest.raises(
        InputError, match=rf"model format {version} in .*; expected format 8: {remedy}"
    ):
        read_model(folder)


def test_a_label_tree_is_kept_and_shown(saved, tmp_path):
    tree = LabelTree(saved.labels, {saved.labels[0]: "x", saved.labels[1]: "x"}, {"x": "CL:1"})
    write_model(dataclasses.replace(saved, tree=tree), tmp_path / "t")
    assert read_model(tmp_path / "t").tree == tree
    card = (tmp_path / "t" / CARD).read_text("utf-8")
    assert "Label tree of 2 levels: x (B cell, T &lt;cell&gt; \\| Naïve)." in card


@pytest.mark.parametrize(
    ("group", "name"), [("provenance", "seed"), ("config", "target_sum"), ("metrics", "scales")]
)
def test_refuses_missing_entries_of_provenance_config_and_metrics(folder, group, name):
    change_info(folder, lambda info: info[group].pop(name))
    with refusal("damaged-model", name, group):
        read_model(folder)


def rewrite(folder: Path, name: str, content: bytes) -> None:
    """Replace a file and its checksum, as an attacker would."""
    (folder / name).write_bytes(content)
    change_info(folder, lambda info: info["files"].update({name: sha256(folder / name)}))


# --- nothing executes ----------------------------------------------------------------------------------------


class Exploit:
    """Unpickling it creates a file."""

    def __init__(self, target: Path):
        self.target = target

    def __reduce__(self):
        return (Path.touch, (self.target,))


def test_refuses_a_pickle_in_place_of_the_weights_and_never_runs_it(folder, tmp_path):
    ran = tmp_path / "ran"
    content = pickle.dumps(Exploit(ran))
    pickle.loads(content)
    assert ran.exists()
    ran.unlink()
    (folder / WEIGHTS).write_bytes(content)
    with refusal("damaged-model", WEIGHTS):
        read_model(folder)
    rewrite(folder, WEIGHTS, content)
    with refusal("damaged-model", WEIGHTS):
        read_model(folder)
    assert not ran.exists()


def test_loading_neither_imports_torch_nor_unpickles(folder):
    code = f"""
import pickle, sys
def refuse(*args, **options):
    raise AssertionError("unpickled")
pickle.load = pickle.loads = pickle.Unpickler = refuse
from scperformer.model.folder import read_model
assert read_model({str(folder)!r}).name == "tiny"
print([name for name in ("torch", "scanpy", "sklearn", "matplotlib") if name in sys.modules])
"""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


# --- which model ---------------------------------------------------------------------------------------------


def test_model_path_then_environment_then_package(monkeypatch):
    monkeypatch.setenv("SCPERFORMER_MODEL", "/models/ours")
    assert resolve_model("mine") == (Path("mine"), "given")
    assert resolve_model(None) == (Path("/models/ours"), "from $SCPERFORMER_MODEL")
    monkeypatch.setenv("SCPERFORMER_MODEL", "")
    assert resolve_model(None) == (PACKAGED_MODEL, "packaged")
    monkeypatch.delenv("SCPERFORMER_MODEL")
    assert resolve_model(None) == (PACKAGED_MODEL, "packaged")


def test_importance_is_mean_expression_times_the_spread_of_the_weights(saved):
    weight, naive = saved.weights["baseline.weight"], []
    for gene, mean in enumerate(saved.gene_means):
        centre = sum(weight[gene]) / 2
        naive.append(mean * (sum((value - centre) ** 2 for value in weight[gene]) / 2) ** 0.5)
    np.testing.assert_allclose(saved.importance, naive, rtol=1e-5)
    del saved.weights["baseline.weight"]
    np.testing.assert_array_equal(saved.importance, saved.gene_means)
