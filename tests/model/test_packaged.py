"""The model in the package: what it was trained on, the cells that it keeps, its size."""

import numpy as np
import pytest

from scperformer.base.messages import MIB
from scperformer.files import read_cells, sha256
from scperformer.model import CARD, PACKAGED, Bundle, load_bundle, load_kept
from scperformer.model.folder import model_card

REFERENCE = PACKAGED.parents[3] / "data" / "pbmc3k.h5ad"


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle(PACKAGED)


def test_it_was_trained_on_the_embedded_cells(bundle):
    made = bundle.provenance
    assert made["reference_sha256"] == sha256(REFERENCE)
    assert (made["reference"], made["label_key"], made["num_cells"]) == (REFERENCE.name, "cell_type", 2638)
    assert bundle.tissue == "blood"
    assert [row["num_genes"] for row in bundle.metrics["conditions"]] == [13656] * 3 + [1000, 1000, 300]


def test_its_card_is_the_one_of_this_version(bundle):
    assert (PACKAGED / CARD).read_text(encoding="utf-8") == model_card(bundle, {"reliability.png": b""})


def test_it_keeps_the_calls_of_held_out_cells(bundle):
    held_out = bundle.held_out
    assert held_out is not None
    assert len(held_out.labels) == bundle.metrics["calibration"]["num_cells"] == 2375
    right = held_out.logits.argmax(axis=1) == held_out.labels
    assert right.mean() == pytest.approx(bundle.metrics["out_of_fold"]["accuracy"])
    assert [row["label"] for row in bundle.metrics["novelty"]] == bundle.labels


def test_it_keeps_the_counts_of_all_cells(bundle):
    kept, cells = load_kept(bundle, PACKAGED), read_cells(REFERENCE)
    assert kept is not None
    assert kept.are_counts
    counts = np.asarray(cells[:, bundle.genes].X.sum(axis=0)).ravel()
    assert np.array_equal(np.asarray(kept.values.sum(axis=0)).ravel(), counts)
    labels = cells.obs["cell_type"].value_counts()
    assert {name: int((kept.labels == number).sum()) for number, name in enumerate(bundle.labels)} == labels.to_dict()


def test_it_is_small():
    assert sum(file.stat().st_size for file in PACKAGED.rglob("*")) < 8 * MIB
