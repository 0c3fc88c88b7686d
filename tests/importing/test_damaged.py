"""Damaged files of other tools: an error in one line, or a model with the hash of the file; never anything else."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from support import celltypist, scbert

import scperformer as scp
from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.model.folder import read_model

HERE = Path(__file__).parent
NUM_DAMAGED = 100
BEGINNING = 12_000  # bytes in which most of the descriptions lie


def damaged(content: bytes, number: int, rng: np.random.Generator) -> bytes:
    """The content cut off, or with a few other bytes, in half of the cases near its beginning."""
    if number % 3 == 0:
        return content[: rng.integers(1, len(content))]
    changed = bytearray(content)
    end = len(content) if number % 3 == 1 else min(len(content), BEGINNING)
    for place in rng.integers(end, size=rng.integers(1, 6)):
        changed[place] = rng.integers(256)
    return bytes(changed)


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["scBERT", "scvi-tools", "CellTypist"])
def test_damaged_files_are_refused_in_one_line_or_read(tool, tmp_path):
    (tmp_path / "genes.txt").write_text("\n".join(f"GENE{number}" for number in range(30)))
    (tmp_path / "labels.txt").write_text("B\nNK\nT\n")
    (tmp_path / "whole").mkdir()
    whole = scbert.save(scbert.random_weights(30, 3, depth=1), tmp_path / "whole" / "tuned.pth")
    (tmp_path / "whole" / "model.pkl").write_bytes(celltypist.pickled(celltypist.fit(celltypist.pbmc3k())))
    path, options = {
        "scBERT": (whole, {"genes": tmp_path / "genes.txt", "labels": tmp_path / "labels.txt"}),
        "scvi-tools": (HERE / "scanvi/plain/model.pt", {}),
        "CellTypist": (tmp_path / "whole" / "model.pkl", {}),
    }[tool]
    copy = tmp_path / path.name
    messages = []
    rng = np.random.default_rng(0)
    for number in range(NUM_DAMAGED):
        copy.write_bytes(damaged(path.read_bytes(), number, rng))
        try:
            made = scp.import_model(
                copy, name="model", overwrite=True, options={key: str(value) for key, value in options.items()}
            )
        except InputError as error:
            messages.append(str(error))
            continue
        assert read_model(made.path).imported["sha256"] == sha256(copy)
    assert len(messages) > NUM_DAMAGED / 3
    assert not any("\n" in message for message in messages)


def test_text_with_characters_that_do_not_exist_is_refused(tmp_path):
    """Python ends in a SystemError where such text is printed."""
    content = pickle.dumps(np.array(["B", "T"]))
    assert content.count(np.array(["T"]).tobytes()) == 1
    (tmp_path / "names.pkl").write_bytes(content.replace(np.array(["T"]).tobytes(), b"\xff\xff\xff\x7f"))
    scbert.save(scbert.random_weights(2, 2, depth=1), tmp_path / "tuned.pth")
    with pytest.raises(InputError, match="names that are no array of numbers or text"):
        scp.import_model(tmp_path / "tuned.pth", options={"genes": str(tmp_path / "names.pkl")})
