"""Nothing outside an input is read, and nothing in it is executed."""

import importlib.util
import json
import os
import shutil

import h5py
import numpy as np
import pytest
from support.inputs import WRITERS, same, write_h5ad, write_zarr
from support.refusal import refusal

from scperformer.io.read import read_cells, require_readable

# Safety


def external_link(file, other):
    file["uns/away"] = h5py.ExternalLink(str(other), "/secret")


def external_storage(file, other):
    file.create_dataset("uns/away", shape=(2,), dtype="u1", external=[(str(other), 0, 2)])


def virtual_dataset(file, other):
    layout = h5py.VirtualLayout(shape=(2,), dtype="i8")
    layout[:] = h5py.VirtualSource(str(other), "secret", shape=(2,))
    file.create_virtual_dataset("uns/away", layout)


def link_in_a_hidden_group(file, other):
    file.create_group("uns/deep/deeper")["away"] = h5py.ExternalLink(str(other), "/secret")


LINKS = [external_link, external_storage, virtual_dataset, link_in_a_hidden_group]


@pytest.mark.parametrize("add", LINKS, ids=lambda add: add.__name__)
@pytest.mark.parametrize("kind", ["h5ad", "loom"])
def test_nothing_in_another_file_is_read(kind, add, cells, tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["secret"] = np.arange(2)
    path = WRITERS[kind](cells, tmp_path)
    with h5py.File(path, "r+") as file:
        add(file, tmp_path / "secret.h5")
    for read in (read_cells, require_readable):
        with refusal("outside-data"):
            read(path)


OWN_SOURCE = {
    "another dataset": ("obs/leak", "/obs/_index"),
    "itself": ("obs/leak", "/obs/leak"),
    "X": ("X", "/X"),
}


@pytest.mark.parametrize("case", OWN_SOURCE)
@pytest.mark.parametrize(
    "step", [["check"], ["train", "label_key=label"], ["report"], ["evaluate", "truth_key=label"]]
)
def test_virtual_datasets_of_the_file_itself_are_refused(case, step, cells, command, tmp_path):
    """libhdf5 crashes on a dataset that is its own source."""
    path = write_h5ad(cells, tmp_path)
    name, source = OWN_SOURCE[case]
    with h5py.File(path, "r+") as file:
        if name in file:
            del file[name]
        shape = cells.shape if name == "X" else (cells.n_obs,)
        layout = h5py.VirtualLayout(shape=shape, dtype="f4")
        layout[:] = h5py.VirtualSource(".", source, shape=shape)
        file.create_virtual_dataset(name, layout).attrs.update(
            {"encoding-type": "array", "encoding-version": "0.2.0"}
        )
        if name != "X":
            file["obs"].attrs["column-order"] = [*file["obs"].attrs["column-order"], "leak"]
    ran = command(step[0], path, *step[1:])
    assert ran.code == 2
    assert (
        f"{path} has a virtual dataset ('/{name}' -> .); expected a file that holds all of its data"
        in ran.out + ran.err
    )


def test_a_filter_that_is_not_installed_is_named(cells, tmp_path):
    path = write_h5ad(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        kind = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        kind.set_chunk((cells.n_obs,))
        kind.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))
        space = h5py.h5s.create_simple((cells.n_obs,))
        made = h5py.h5d.create(file["obs"].id, b"depth", h5py.h5t.IEEE_F32LE, space, kind)
        made.write_direct_chunk((0,), bytes(4 * cells.n_obs), filter_mask=0)
    if h5py.h5z.filter_avail(32015) or importlib.util.find_spec("hdf5plugin"):
        assert require_readable(path) == "h5ad"
        return
    with refusal("unknown-filter"):
        read_cells(path)


def test_links_within_a_file_are_followed(cells, tmp_path):
    path = write_h5ad(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        file["uns/same"] = h5py.SoftLink("/obs/label")
        file["uns/hard"] = file["obs/label"]
        file["uns/nowhere"] = h5py.SoftLink("/nothing")
    assert require_readable(path) == "h5ad"


def soft(name, target):
    def add(file):
        file[name] = h5py.SoftLink(target)

    return add


def hard(name, target):
    def add(file):
        file[name] = file[target]

    return add


def circle_of_two(file):
    one, other = file.create_group("uns/one"), file.create_group("uns/other")
    one["b"], other["a"] = other, one


def twice_and_twice_again(file):
    group = file.create_group("uns/0")
    for number in range(40):
        group["left"] = group["right"] = inner = file.create_group(f"uns/inner{number}")
        group = inner


CIRCLES = {
    "soft to the root": (soft("uns/me", "/"), "group-links", "'/uns/me'"),
    "hard to the root": (hard("uns/me", "/"), "group-links", "'/uns/me'"),
    "relative": (soft("obsm/me", "."), "group-links", "'/obsm/me'"),
    "two": (circle_of_two, "group-links", "/uns/o"),
    "twice": (twice_and_twice_again, "group-links", "100,000"),
    "a name that leads to itself": (soft("uns/me", "/uns/me"), "damaged-file", ""),
}


@pytest.mark.parametrize("case", CIRCLES)
def test_links_in_a_circle_are_an_error_of_one_line(case, cells, tmp_path):
    """Readers that follow links would never finish."""
    add, *refused = CIRCLES[case]
    path = write_h5ad(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        for place in ("uns", "obsm", "layers"):
            file.require_group(place)
        add(file)
    for read in (require_readable, read_cells):
        with refusal(*refused):
            read(path)


@pytest.mark.parametrize(
    ("target", "code"), [("..", "group-links"), ("me", "zarr-entry"), ("../obs/you", "group-links")]
)
def test_links_in_a_circle_in_a_zarr_folder_are_refused(target, code, cells, tmp_path):
    path = write_zarr(cells, tmp_path, 2)
    shutil.rmtree(path / "layers", ignore_errors=True)
    (path / "uns").mkdir(exist_ok=True)
    (path / "obs" / "you").symlink_to("../uns")
    (path / "X" / "me").symlink_to("../uns")  # no circle
    assert require_readable(path) == "zarr"
    (path / "uns" / "me").symlink_to(target)
    with refusal(code):
        require_readable(path)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_links_that_leave_a_zarr_folder_are_refused(zarr_format, cells, tmp_path):
    path = write_zarr(cells, tmp_path, zarr_format)
    (tmp_path / "secret").write_text("secret")
    os.symlink(path / "obs", path / "inside")
    assert same(read_cells(path), cells)
    os.symlink(tmp_path / "secret", path / "obs" / "away")
    with refusal("outside-data"):
        read_cells(path)
    (path / "obs" / "away").unlink()
    os.mkfifo(path / "pipe")
    with refusal("zarr-entry"):
        require_readable(path)


@pytest.mark.parametrize("where", [".zarray", ".zmetadata"])
@pytest.mark.parametrize("codec", ["pickle", "json2"])
def test_pickled_arrays_are_never_loaded(where, codec, cells, tmp_path):
    path = write_zarr(cells, tmp_path, 2)
    info = json.loads((path / "obs/_index/.zarray").read_text())
    bad = info | {"dtype": "|O", "filters": [{"id": codec}]}
    if where == ".zarray":
        (path / "obs/_index/.zarray").write_text(json.dumps(bad))
    else:
        (path / where).write_text(
            json.dumps({"metadata": {"obs/_index/.zarray": bad}, "zarr_consolidated_format": 1})
        )
    with refusal("zarr-objects"):
        read_cells(path)


def test_null_characters_in_names_are_refused(cells, tmp_path):
    path = WRITERS["10x folder v2"](cells, tmp_path)
    content = (path / "genes.tsv").read_bytes()
    (path / "genes.tsv").write_bytes(content.replace(b"CD", b"C\0", 1))
    with refusal("damaged-file"):
        read_cells(path)


@pytest.mark.parametrize(
    ("damage", "code"),
    [("no JSON", "damaged-file"), ("chunk", "damaged-file"), ("not AnnData", "zarr-without-cells")],
)
def test_damaged_zarr_folders_are_refused(damage, code, cells, tmp_path):
    path = write_zarr(cells, tmp_path, 3)
    if damage == "no JSON":
        (path / "zarr.json").write_text("{")
    elif damage == "chunk":
        chunks = [
            file
            for file in (path / "X/data").rglob("*")
            if file.is_file() and file.name != "zarr.json"
        ]
        chunks[0].write_bytes(b"damaged")
    else:
        shutil.rmtree(path / "var")
        (path / "zarr.json").write_text(
            '{"zarr_format": 3, "node_type": "group", "attributes": {}}'
        )
    with refusal(code):
        read_cells(path)


def test_a_damaged_length_of_a_compressed_chunk_is_an_error_of_one_line(cells, command, tmp_path):
    """Python ends in a SystemError where Blosc is to make a text of a negative length."""
    cells.uns["author"] = "nobody"
    path = write_zarr(cells, tmp_path, 2)
    chunk = next(
        file for file in (path / "uns" / "author").iterdir() if not file.name.startswith(".")
    )
    content = bytearray(chunk.read_bytes())
    content[4:8] = b"\xff\xff\xff\xff"
    chunk.write_bytes(content)
    ran = command(
        "predict", path, "model_path=pbmc3k", "min_overlap=0", f"output={tmp_path / 'out.h5ad'}"
    )
    assert (ran.code, (tmp_path / "out.h5ad").exists()) == (2, False)
    assert "is damaged" in ran.err
