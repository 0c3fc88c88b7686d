"""The same cells from every kind of input, unsupported inputs, and steps that read any kind."""

import logging
import os
import tarfile
from contextlib import nullcontext
from pathlib import Path

import anndata as ad
import h5py
import numpy as np
import pytest
import zarr
from support.inputs import NUM_CELLS, WRITERS, dense, same, write_loom
from support.logs import said
from support.refusal import refusal

from scperformer.base.errors import InputError
from scperformer.io.read import checksum, default_output, open_adata, read_cells, require_readable
from scperformer.io.rows import Rows


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_gives_the_same_cells(kind, cells, tmp_path, caplog, recwarn):
    caplog.set_level(logging.INFO, "scperformer")
    path = WRITERS[kind](cells.copy(), tmp_path)
    recwarn.clear()
    found = read_cells(path)
    assert same(found, cells)
    assert np.issubdtype(found.X.dtype, np.floating if "float" in kind else np.integer)
    assert len(recwarn) == 0
    line = said(caplog, "read_cells", path, 30, 60)
    assert len(caplog.records) == len(line.splitlines()) == 1
    if "table" not in line:
        ids = found.var["Accession" if kind == "loom" else "gene_ids"]
        assert list(ids) == list(cells.var["gene_ids"])


def swap_bytes(file) -> None:
    """Store all numbers of an HDF5 file or a zarr store as big-endian."""
    for name in list(file):
        node = file[name]
        if not hasattr(node, "dtype"):
            swap_bytes(node)
        elif node.dtype.kind in "iuf" and node.shape:
            values, attributes = node[:], dict(node.attrs)
            del file[name]
            create = file.create_dataset if isinstance(file, h5py.Group) else file.create_array
            create(name, data=values.astype(values.dtype.newbyteorder(">"))).attrs.update(
                attributes
            )


BINARY = [kind for kind in WRITERS if kind.startswith(("h5ad", "zarr", "10x h5", "loom"))]


@pytest.mark.parametrize("kind", BINARY)
@pytest.mark.parametrize("is_open", [False, True])
def test_big_endian_numbers(kind, is_open, cells, tmp_path):
    cells.X = cells.X.astype(np.float32)
    cells.obs["depth"] = np.arange(cells.n_obs) / 2
    path = WRITERS[kind](cells.copy(), tmp_path)
    if path.suffix == ".zarr":
        swap_bytes(zarr.open_group(path, mode="r+", use_consolidated=False))
        zarr.consolidate_metadata(path)
    else:
        with h5py.File(path, "r+") as file:
            swap_bytes(file)
    with open_adata(path) if is_open else nullcontext(read_cells(path)) as found:
        np.testing.assert_array_equal(dense(Rows(found.X).block(0, cells.n_obs)), dense(cells.X))
        assert list(found.obs_names) == list(cells.obs_names)
        assert (
            not kind.startswith("h5ad")
            or found.obs["depth"].groupby(found.obs["depth"]).size().eq(1).all()
        )


def test_a_loom_file_keeps_labels_and_layers_and_is_read_in_blocks(cells, tmp_path, monkeypatch):
    monkeypatch.setattr("scperformer.io.rows.BLOCK_VALUES", 8 * NUM_CELLS)  # blocks of 8 genes
    found = read_cells(write_loom(cells, tmp_path))
    assert same(found, cells)
    assert list(found.obs["label"]) == list(cells.obs["label"])
    np.testing.assert_array_equal(found.layers["spliced"].toarray(), 2 * cells.X.toarray())


def test_paths_that_are_not_a_file(tmp_path):
    with refusal("no-file"):
        require_readable(tmp_path / "nowhere")
    for url in ("https://example.org/run.h5ad", "s3://bucket/run.zarr"):
        with refusal("no-file"):
            require_readable(url)
    os.mkfifo(tmp_path / "pipe")
    with refusal("not-a-file"):
        require_readable(tmp_path / "pipe")


@pytest.mark.parametrize("kind", ["h5ad", "10x h5", "loom"])
def test_an_hdf5_file_with_a_user_block_is_recognised(kind, cells, tmp_path):
    path = WRITERS.get(kind, WRITERS["10x h5 v3"])(cells, tmp_path)
    path.write_bytes(b"some text of another program".ljust(1024, b"\0") + path.read_bytes())
    assert require_readable(path) == kind
    assert same(read_cells(path), cells)
    path.rename(tmp_path / "sample.data")
    assert same(read_cells(tmp_path / "sample.data"), cells)


@pytest.mark.parametrize("ending", ["h5mu", "zarr"])
def test_mudata_is_refused_with_a_remedy(ending, cells, tmp_path):
    path = tmp_path / f"cells.{ending}"
    root = zarr.open_group(path, mode="w", zarr_format=2) if ending == "zarr" else None
    with (
        nullcontext(root) if root is not None else h5py.File(path, "w", userblock_size=512) as file
    ):
        ad.io.write_elem(file.create_group("mod"), "rna", cells)
        ad.io.write_elem(file, "obs", cells.obs)
        ad.io.write_elem(file, "var", cells.var)
    for read in (read_cells, require_readable):
        with refusal("several-modalities"):
            read(path)


def test_a_tar_archive_of_an_hdf5_file_is_refused_as_an_archive(cells, tmp_path):
    path = WRITERS["h5ad"](cells, tmp_path)
    with tarfile.open(tmp_path / "cells.tar", "w") as tar:
        tar.add(path)
    with refusal("unknown-kind"):
        require_readable(tmp_path / "cells.tar")


def test_a_folder_of_xenium_names_the_file_in_it(cells, tmp_path):
    (tmp_path / "outs" / "cell_feature_matrix").mkdir(parents=True)
    for name in (
        "analysis.h5",
        "cell_feature_matrix.h5",
        "cells.csv.gz",
        "cell_feature_matrix/matrix.mtx.gz",
    ):
        (tmp_path / "outs" / name).touch()
    with refusal("unknown-kind", "cell_feature_matrix.h5"):
        require_readable(tmp_path / "outs")


@pytest.mark.parametrize(
    ("kind", "reader"), [("c1", "qs2::qs_read("), ("cd", "qs2::qd_read("), ("0c", "qs::qread(")]
)
def test_files_of_qs_name_the_function_that_reads_them(kind, reader, tmp_path):
    (tmp_path / "object.qs2").write_bytes(bytes.fromhex(f"0b0e0a{kind}0000") + bytes(60))
    with refusal("unknown-kind", f"{reader}'object.qs2')"):
        require_readable(tmp_path / "object.qs2")


FOREIGN_HDF5 = {"mod": "MuData", "assays": "LoadH5Seurat", "some": "holds some"}


@pytest.mark.parametrize("group", FOREIGN_HDF5)
def test_other_hdf5_files_are_refused(group, tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_group(group)
    with pytest.raises(InputError, match=FOREIGN_HDF5[group]):
        read_cells(tmp_path / "a.h5")


@pytest.mark.parametrize("share", [0.02, 0.98])
@pytest.mark.parametrize("kind", ["10x h5 v3", "loom", "csv.gz of genes x cells"])
def test_truncated_files_are_refused(kind, share, cells, tmp_path):
    path = WRITERS[kind](cells, tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with refusal("damaged-file"):
        read_cells(path)


def test_a_loom_file_without_gene_names_is_refused(cells, tmp_path):
    path = write_loom(cells, tmp_path)
    with h5py.File(path, "r+") as file:
        del file["row_attrs/Gene"]
    assert list(read_cells(path).var_names) == list(cells.var["gene_ids"])
    with h5py.File(path, "r+") as file:
        file.move("row_attrs/Accession", "row_attrs/Whatever")
    with refusal("no-gene-names"):
        read_cells(path)


@pytest.mark.parametrize("kind", ["h5ad", "zarr 3"])
def test_genes_in_rows_are_refused(kind, cells, tmp_path, command):
    cells.var_names = ["CD3D", "MS4A1", *cells.var_names[2:]]
    path = WRITERS[kind](cells.T.copy(), tmp_path)
    with refusal("transposed"):
        read_cells(path)
    ran = command("check", path)
    assert ran.code == 2
    assert "genes in obs_names" in ran.out


# Names


NAMES = {
    "a.csv.gz": "a",
    "b.h5": "b",
    "a.b.h5ad": "a.b",
    "GSM1_matrix.mtx.gz": "GSM1",
    "run1/matrix.mtx": "run1",
    "x.zarr": "x",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_an_input_without_its_endings(name, tmp_path):
    assert default_output(tmp_path / name, "").name == NAMES[name]


def test_default_outputs_are_in_the_folder_of_the_input(tmp_path, monkeypatch):
    (tmp_path / "run.1").mkdir()
    assert default_output(tmp_path / "run.1", "").name == "run.1"
    assert default_output(tmp_path / "run.1", ".model") == tmp_path / "run.1.model"
    monkeypatch.chdir(tmp_path / "run.1")
    assert default_output(".", ".model") == tmp_path / "run.1.model"
    assert default_output("a.csv", ".model") == Path("a.model")


@pytest.mark.parametrize("kind", ["csv", "10x folder", "mtx file", "zarr 3"])
def test_the_checksum_changes_with_the_content(kind, cells, tmp_path):
    path = WRITERS[kind](cells, tmp_path)
    before = checksum(path)
    assert before == checksum(path)
    assert len(before) == 64
    part = next(
        file
        for file in sorted((path if path.is_dir() else path.parent).rglob("*"))
        if file.is_file()
    )
    part.write_bytes(part.read_bytes() + b" ")
    assert checksum(path) != before
