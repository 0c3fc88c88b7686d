"""Pickles are read without executing anything; hostile ones are refused on one line, in bounded time and memory."""

import os
import pickle
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.hostile_pickles import CANARY, HOSTILE
from support.refusal import refusal

from scperformer.base import child
from scperformer.importing.folders import import_into_library
from scperformer.io.pickles import NUMPY, Made, array_of, plain_value, read_pickle, stand_in

HARMFUL = (
    "os.",
    "subprocess.",
    "exec",
    "import",
    "marshal.",
    "ctypes.",
    "socket.",
    "shutil.",
    "code.",
)
READING = ("os.fork", "os.listdir", "os.scandir")  # of our own code
# where harmful events are written while a file is read, here or in a child; None: nowhere
watched: int | None = None


def _hook(event: str, _) -> None:
    if watched is not None and event.startswith(HARMFUL) and event not in READING:
        os.write(watched, f"{event}\n".encode())


sys.addaudithook(_hook)


ANY = (
    *NUMPY,
    "numpy.",
    "pandas.",
    "collections.",
    "copyreg.",
    "copy_reg.",
    "builtins.",
    "__builtin__.",
)


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "model.pkl"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_and_execute_nothing(name, tmp_path, monkeypatch):
    global watched
    monkeypatch.setattr(child, "CPU_SECONDS", 1)
    with refusal("foreign-model"):  # Python imports what it needs, such as codecs
        import_into_library(written(tmp_path, pickle.dumps(["x"])), tmp_path / "models")
    path = written(tmp_path, HOSTILE[name])
    Path(CANARY).unlink(missing_ok=True)
    tracemalloc.start()
    with (tmp_path / "events").open("w") as events:
        watched = events.fileno()
        try:
            with refusal("foreign-model") as refused:
                import_into_library(path, tmp_path / "models")
        finally:
            watched = None
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    assert (tmp_path / "events").read_text() == ""
    assert len(str(refused.value)) < 2500
    assert peak < 64 * len(HOSTILE[name]) + 2**20
    assert not Path(CANARY).exists()
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize("protocol", range(2, 6))
def test_plain_values_are_those_of_pickle(protocol, tmp_path):
    values = {
        "text": "ä\n\u2028 \\u0041",
        "numbers": [0, -1, 255, 65536, 2**31, -(2**62), 1.5, float("inf")],
        "others": (None, True, False, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
        "nested": {"a": [{"b": ["c"] * 3}], 5: "key"},
    }
    assert read_pickle(written(tmp_path, pickle.dumps(values, protocol)), NUMPY) == values


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12, dtype=np.float32).reshape(3, 4)),
        np.arange(5, dtype=">i4"),
        np.array(["CD3D", "ä"]),
        np.array(["CD3D", "MS4A1", "x" * 300], dtype=object),
        np.array([True, False]),
        np.zeros((0, 4)),
        np.array(2.5),
        np.array([b"ab", b"c"]),
    ],
    ids=lambda array: f"{array.dtype}-{array.ndim}",
)
def test_arrays_are_those_of_numpy(protocol, array, tmp_path):
    found = array_of(read_pickle(written(tmp_path, pickle.dumps(array, protocol)), NUMPY), "it")
    assert found.dtype == (object if array.dtype.kind in "US" else array.dtype)
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_scalars_and_lists_of_pandas(protocol, tmp_path):
    values = [np.float64(0.1), np.int32(-7), np.bool_(True), np.str_("B cell")]
    found = read_pickle(written(tmp_path, pickle.dumps(values, protocol)), ANY)
    # A NumPy text is a subclass of text, which pickle writes as a call.
    assert [plain_value(value, "it") for value in found[:3]] == [0.1, -7, True]
    genes = pd.Index(["CD3D", "MS4A1"], dtype=object)
    found = read_pickle(written(tmp_path, pickle.dumps(genes, protocol)), ANY)
    assert array_of(found, "genes").tolist() == ["CD3D", "MS4A1"]


def changed_state(array: np.ndarray, **parts) -> Made:
    """Return what a pickle says about an array, with other parts of its state."""
    made = stand_in("numpy._core.multiarray._reconstruct", NUMPY)()
    dtype = stand_in("numpy.dtype", NUMPY)(parts.get("code", array.dtype.str[1:]))
    dtype.state = (3, parts.get("order", "<"), None, None, None, -1, -1, 0)
    made.state = (
        1,
        parts.get("shape", array.shape),
        dtype,
        False,
        parts.get("data", array.tobytes()),
    )
    return made


def test_an_array_from_parts():
    array = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(array_of(changed_state(array), "it"), array)


@pytest.mark.parametrize(
    "parts",
    [
        *({"shape": shape} for shape in ((2, 4), (2.0, 3), (1,) * 65, (2**62, 2**62), None)),
        *({"data": data} for data in (None, "\u0100" * 48)),
        *({"code": code} for code in ("O8", "V8", "f7", "U999999", "f8,f8", None)),
        {"order": "x"},
    ],
    ids=str,
)
def test_arrays_whose_parts_do_not_fit(parts):
    with pytest.raises(ValueError, match="it that are not an array"):
        array_of(changed_state(np.arange(6.0).reshape(2, 3), **parts), "it")
