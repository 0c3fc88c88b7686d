"""Keras models of several levels: probabilities are Keras' own, and the levels are a label tree; others are refused.

The folder levels/ has the model, the cells and what Keras says about them; its README tells how they were made.
"""

import json
import pickle
import zipfile
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest

import scperformer as scp
from scperformer.base.errors import InputError
from scperformer.importing.panhumanpy import label_tree
from scperformer.model import read_model

LEVELS = Path(__file__).parent / "levels"
BESIDE = {"labels": str(LEVELS / "inference_encoders.pkl"), "genes": str(LEVELS / "panel.txt")}


@pytest.fixture(autouse=True)
def library(tmp_path, monkeypatch):
    monkeypatch.setenv("SCPERFORMER_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def cells() -> ad.AnnData:
    counts = np.load(LEVELS / "expected.npz")["counts"].astype(np.float32)
    return ad.AnnData(counts[:, ::-1], var=pd.DataFrame(index=(LEVELS / "panel.txt").read_text().split()[::-1]))


def test_probabilities_are_those_of_keras(cells):
    made = scp.import_model(LEVELS / "levels.keras", options=BESIDE)
    scp.annotate(cells, made.load())
    proba = np.load(LEVELS / "expected.npz")["level_3"]
    np.testing.assert_allclose(cells.obsm["scperformer_proba"], proba, rtol=0, atol=1e-6)  # float32
    assert len(np.unique(proba.argmax(axis=1))) > 1
    assert cells.obsm["X_scperformer"].shape == (20, 11)  # what the deepest level reads


def test_levels_are_the_label_tree(cells):
    made = scp.import_model(LEVELS / "levels.keras", options=BESIDE)
    saved = read_model(made.path)
    assert saved.labels == ["B", "T", "CD4", "CD8", "Stroma"]
    assert saved.tree is not None
    assert saved.tree.parents == {"B": "Immune", "T": "Immune", "CD4": "T", "CD8": "T"}
    scp.annotate(cells, made.load(), options={"min_confidence": 0})
    top = {"B": "Immune", "T": "Immune", "CD4": "Immune", "CD8": "Immune", "Stroma": "Stroma"}
    assert list(cells.obs["scperformer_level1"]) == [top[label] for label in cells.obs["scperformer_label"]]
    assert set(cells.obs["scperformer_level1"]) == {"Immune", "Stroma"}


def test_names_that_occur_twice_are_whole_paths():
    tree = label_tree(["A|x|", "A|y|z", "B|x|", "B||"])
    assert tree.labels == ["A|x", "z", "B|x", "B"]
    assert tree.parents == {"A|x": "A", "y": "A", "z": "y", "B|x": "B"}


def test_the_card_says_that_published_weights_are_untested():
    made = scp.import_model(LEVELS / "levels.keras", options=BESIDE)
    card = (made.path / "MODEL_CARD.md").read_text()
    for text in (
        "untested with published weights",
        "CC BY 4.0",
        "3, of 2, 3, 5 labels",
        "before panhumanpy's calibration",
    ):
        assert text in card


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": None}, r"does not name its labels; expected inference_encoders\.pkl.*add labels=FILE"),
        ({"genes": None}, r"does not name its genes; expected inference_feature_panel\.txt.*add genes=FILE"),
        ({"labels": "two.pkl"}, r"labels=two\.pkl with levels of 2, 3 labels; expected levels of 2, 3, 5 labels"),
        ({"labels": "text.pkl"}, r"labels=text\.pkl with no label encoders"),
        ({"labels": "none.pkl"}, r"no file labels=none\.pkl"),
        ({"genes": "few.txt"}, r"39 names in genes=few\.txt; expected the 40 genes that"),
    ],
    ids=["no encoders", "no genes", "two levels", "no pickle", "no file", "39 genes"],
)
def test_encoders_and_genes_have_to_fit(change, message, tmp_path, library, monkeypatch):
    monkeypatch.chdir(tmp_path)
    encoders = pickle.loads((LEVELS / "inference_encoders.pkl").read_bytes())
    Path("two.pkl").write_bytes(pickle.dumps(encoders[:2]))
    Path("text.pkl").write_text("B\nT\n")
    Path("few.txt").write_text("\n".join((LEVELS / "panel.txt").read_text().split()[:-1]))
    options = {name: value for name, value in (BESIDE | change).items() if value}
    with pytest.raises(InputError, match=message):
        scp.import_model(LEVELS / "levels.keras", options=options)
    assert not library.exists() or not list(library.iterdir())


def written(folder: Path, change) -> Path:
    """A copy of the model after a change of its files."""
    with zipfile.ZipFile(LEVELS / "levels.keras") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(folder / "other.keras", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return folder / "other.keras"


def described(change):
    """A change of the description of the layers."""

    def changed(files):
        config = json.loads(files["config.json"])
        change({layer["config"]["name"]: layer for layer in config["config"]["layers"]}, config)
        files["config.json"] = json.dumps(config).encode()

    return changed


CHANGES = {
    "code in a layer": (
        described(lambda layers, _: layers["activation"].update(class_name="Lambda")),
        "a layer Lambda, which cannot be imported",
    ),
    "another activation": (
        described(lambda layers, _: layers["activation"]["config"].update(activation="mish")),
        "a step of the unknown kind 'mish'",
    ),
    "no softmax": (
        described(lambda layers, _: layers["level_3"]["config"].update(activation="linear")),
        "an output that is not the softmax",
    ),
    "a sequence": (
        described(lambda _, config: config["config"].pop("output_layers")),
        "not that of a functional model",
    ),
    "nested without end": (lambda files: files.update({"config.json": b"[" * 10**6}), "a damaged archive"),
    "no weights": (lambda files: files.pop("model.weights.h5"), "no config.json and model.weights.h5"),
    "short weights": (
        lambda files: files.update({"model.weights.h5": files["model.weights.h5"][:5000]}),
        "damaged weights",
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_other_models_are_refused_with_the_reason(case, tmp_path, library):
    change, message = CHANGES[case]
    path = written(tmp_path, change)
    with pytest.raises(InputError, match=message) as caught:
        scp.import_model(path, options=BESIDE)
    assert "\n" not in str(caught.value)
    assert not library.exists() or not list(library.iterdir())


def test_truncated_models_are_refused(tmp_path):
    content = (LEVELS / "levels.keras").read_bytes()
    for size in (200, 20_000, len(content) - 10):
        (tmp_path / "short.keras").write_bytes(content[:size])
        with pytest.raises(InputError, match="a damaged archive"):
            scp.import_model(tmp_path / "short.keras", options=BESIDE)
