"""Checkpoints of scBERT: logits are those of a naive twin and of scBERT's own code; bad ones are refused."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import softmax
from support import scbert
from support.refusal import refusal

import scperformer as scp
from scperformer.adaptation.load import load_model
from scperformer.attention.tokens import Batch
from scperformer.model.folder import read_model

LABELS = ["B", "NK", "Monocyte"]
CASES = Path(__file__).parents[3] / "shared" / "cases" / "scbert"


@pytest.fixture
def genes(few_pbmc) -> list[str]:
    """80 genes that many of the cells express, and two that the file lacks."""
    most = np.argsort(-np.asarray(few_pbmc.X.sum(axis=0)).ravel())[:78]
    return [*few_pbmc.var_names[np.sort(most)], "NOT-HERE-1", "NOT-HERE-2"]


@pytest.fixture
def beside(genes, tmp_path) -> dict[str, str]:
    """The gene order file and label_dict that scBERT writes, as options."""
    (tmp_path / "genes.txt").write_text("\n".join(genes) + "\n")
    (tmp_path / "label_dict").write_bytes(pickle.dumps(np.array(LABELS, dtype=object)))
    return {"genes": str(tmp_path / "genes.txt"), "labels": str(tmp_path / "label_dict")}


def test_cells_get_the_probabilities_of_a_naive_twin(few_pbmc, genes, beside, tmp_path):
    few_pbmc = few_pbmc[:12].copy()
    state = scbert.random_weights(len(genes), len(LABELS))
    made = scp.import_model(scbert.save(state, tmp_path / "tuned.pth"), options=beside)
    shuffled = few_pbmc[:, np.random.default_rng(0).permutation(few_pbmc.n_vars)].copy()
    scp.annotate(shuffled, made.load())
    tokens = scbert.tokens(scbert.counts_of(few_pbmc, genes))
    assert {0, 2, 3, 4, 5} <= set(np.unique(tokens))
    logits = np.stack([scbert.logits(state, cell) for cell in tokens])
    found = shuffled.obsm["scperformer_proba"]
    assert list(found.columns) == LABELS
    np.testing.assert_allclose(found, softmax(logits, axis=1), atol=1e-6)  # float32
    assert (softmax(logits, axis=1).std(axis=0) > 5e-4).all()  # cells differ
    assert list(shuffled.obs["scperformer_label"]) == [LABELS[i] for i in logits.argmax(axis=1)]
    few = int((np.count_nonzero(scbert.counts_of(few_pbmc, genes), axis=1) < 200).sum())
    remarks = shuffled.uns["scperformer"]["remarks"]
    assert (
        dict(zip(remarks["code"], remarks["value"], strict=True))["few-genes"]
        == f"{few} of {few_pbmc.n_obs} cells"
    )


@pytest.mark.slow
def test_logits_are_those_of_scberts_own_code(tmp_path):
    if not CASES.is_dir():
        pytest.skip("no checkpoint with scBERT's own logits on this machine")
    options = {"genes": str(CASES / "genes.pkl"), "labels": str(CASES / "label_dict")}
    made = scp.import_model(CASES / "scbert_300_genes_random.pth", options=options)
    expected = np.load(CASES / "expected.npz")
    network = load_model(made.path).network
    tokens = torch.from_numpy(expected["tokens"]).long()
    places = torch.arange(tokens.shape[1]).expand(len(tokens), -1)
    batch = Batch(
        places, tokens, torch.zeros(tokens.shape), torch.ones(tokens.shape, dtype=torch.bool)
    )
    with torch.inference_mode():
        logits = torch.cat([network(batch[[cell]])[0] for cell in range(len(tokens))])
        encoded = torch.cat(
            [network.encoder(batch[[cell]]) for cell in range(len(expected["encodings"]))]
        )
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-6)
    np.testing.assert_allclose(encoded, expected["encodings"], rtol=0, atol=1e-5)


def test_the_folder_states_its_licence_and_origin(genes, beside, tmp_path):
    path = scbert.save(scbert.random_weights(len(genes), len(LABELS)), tmp_path / "tuned.pth")
    saved = read_model(scp.import_model(path, options=beside).path)
    card = (tmp_path / "models" / "tuned" / "MODEL_CARD.md").read_text()
    assert saved.provenance.licence == "GPL-3.0"
    assert saved.imported["tool"] == "scBERT"
    assert "derivative of them under the same licence" in card
    assert "no published checkpoint" in card


@pytest.mark.slow
def test_a_pretrained_checkpoint_is_fine_tuned(few_pbmc, genes, beside, tmp_path):
    path = scbert.save(scbert.random_weights(len(genes), 0, depth=1), tmp_path / "pretrained.pth")
    made = scp.import_model(path, options={"genes": beside["genes"]})
    saved = read_model(made.path)
    assert not saved.labels
    options = {
        "genes_path": beside["genes"],
        "head": "conv",
        "model.linear": False,
        "trainer.max_epochs": 1,
    }
    options |= {
        "head.hidden": [32, 16],
        "optim.lr": 1e-4,
        "init": "pretrained",
        "init_mode": "last_layer",
    }
    trained = scp.train(few_pbmc, label_key="cell_type", output=tmp_path / "tuned", options=options)
    tuned = read_model(trained.path)
    assert tuned.config.attention["stabiliser"] == "all_heads"
    assert tuned.config.tokens == saved.config.tokens
    assert tuned.provenance.init.licence == "GPL-3.0"
    assert "an encoder with the licence GPL-3.0" in (trained.path / "MODEL_CARD.md").read_text()
    name = "model.encoder.embedding.gene.weight"
    place = {gene: row for row, gene in enumerate(saved.genes)}
    rows = [place[gene] for gene in tuned.genes]
    # fixed, as gene2vec's
    np.testing.assert_array_equal(tuned.weights[name][:-1], saved.weights[name][rows])
    scp.annotate(few_pbmc, trained.load())
    assert few_pbmc.obs["scperformer_label"].notna().all()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5000])


def other_weights(path: Path) -> None:
    torch.save({"model_state_dict": {"layer.weight": torch.zeros(2, 2)}}, path)


def with_weights(
    name: str, value: Callable[[torch.Tensor], torch.Tensor | None]
) -> Callable[[Path], Path]:
    """A checkpoint with other weights of this name; None: without them."""

    def damage(path: Path) -> Path:
        state = scbert.random_weights(80, 3)
        changed = value(state.pop(name))
        return scbert.save(state if changed is None else state | {name: changed}, path)

    return damage


DAMAGE = {
    "cut off": (cut_off, "do not fit"),
    "another checkpoint": (other_weights, "token_emb.weight"),
    "no queries": (
        with_weights("performer.net.layers.1.0.fn.to_q.weight", lambda _: None),
        "layer 1",
    ),
    "not a number": (with_weights("norm.bias", lambda bias: bias * torch.nan), "encoder.norm.bias"),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_other_files_are_refused(case, genes, beside, tmp_path, library):
    path = scbert.save(scbert.random_weights(len(genes), len(LABELS)), tmp_path / "tuned.pth")
    damage, part = DAMAGE[case]
    damage(path)
    with refusal("foreign-model", part):
        scp.import_model(path, options=beside)
    assert not library.exists() or not list(library.iterdir())


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        ({"genes": None}, ("scbert-names", "80 genes", "tuned.pth", "genes=FILE")),
        ({"labels": None}, ("scbert-names", "3 labels", "tuned.pth", "labels=FILE")),
        ({"genes": "short.txt"}, ("scbert-names", "79 names", "genes=short.txt", "80")),
        ({"genes": "none.txt"}, ("no-file", "genes=none.txt")),
        ({"genes": "empty.txt"}, ("names-file", "genes=empty.txt")),
    ],
    ids=["no genes", "no labels", "79 genes", "no file", "empty"],
)
def test_genes_and_labels_have_to_fit(
    change, refused, genes, beside, tmp_path, library, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("\n".join(genes[:-1]))
    Path("empty.txt").write_text("\n")
    path = scbert.save(scbert.random_weights(len(genes), len(LABELS)), tmp_path / "tuned.pth")
    with refusal(*refused):
        scp.import_model(
            path, options={name: value for name, value in (beside | change).items() if value}
        )
    assert not library.exists() or not list(library.iterdir())


def test_text_with_characters_that_do_not_exist_is_refused(tmp_path):
    """Python ends in a SystemError where such text is printed."""
    content = pickle.dumps(np.array(["B", "T"]))
    assert content.count(np.array(["T"]).tobytes()) == 1
    (tmp_path / "names.pkl").write_bytes(
        content.replace(np.array(["T"]).tobytes(), b"\xff\xff\xff\x7f")
    )
    scbert.save(scbert.random_weights(2, 2, depth=1), tmp_path / "tuned.pth")
    with refusal("names-file"):
        scp.import_model(tmp_path / "tuned.pth", options={"genes": str(tmp_path / "names.pkl")})
