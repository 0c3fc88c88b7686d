"""Reading with clear errors; adding to a copy that leaves the rest bit for bit."""

import hashlib
from pathlib import Path

import anndata as ad
import h5py
import pytest
import scanpy
from anndata.tests.helpers import assert_equal
from support.inputs import write_h5ad as write_h5ad_file
from support.inputs import write_loom

from scperformer.errors import InputError
from scperformer.files import checksum, require_h5ad, sha256, write_h5ad
from scperformer.files.read import read_cells

OLD_FILE = Path(scanpy.__file__).parent / "datasets" / "10x_pbmc68k_reduced.h5ad"  # anndata before 0.7


# reading


def test_read_gives_what_anndata_gives(rich, write):
    path = write(rich)
    assert_equal(read_cells(path), ad.read_h5ad(path), exact=True)


def test_read_old_format_without_warnings(recwarn):
    adata = read_cells(OLD_FILE)
    assert adata.shape == (700, 765)
    assert len(recwarn) == 0


def test_read_keeps_repeated_cell_names_and_warns_once(counts_adata, write, recwarn):
    names = ["same", "same", *counts_adata.obs_names[2:]]
    counts_adata.obs_names = names
    path = write(counts_adata)
    recwarn.clear()
    assert list(read_cells(path).obs_names) == names
    assert [str(warning.message) for warning in recwarn] == [
        f"1 cell names in {path} repeat earlier ones; they are kept as they are"
    ]


def test_read_errors_are_one_line(counts_adata, write, tmp_path):
    whole = write(counts_adata).read_bytes()
    (tmp_path / "half.h5ad").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "empty.h5ad").write_bytes(b"")
    (tmp_path / "text.h5ad").write_text("cell,gene\n")
    with h5py.File(tmp_path / "tenx.h5", "w") as file:
        file.create_group("matrix")
    write(counts_adata[:0], "nocells.h5ad")
    write(counts_adata[:, :0], "nogenes.h5ad")
    cases = {
        "missing.h5ad": r"no file .*missing.h5ad",
        ".": "is a folder",
        "half.h5ad": r"half.h5ad is truncated; expected a complete HDF5 file: copy or download it again",
        "empty.h5ad": r"is empty \(0 bytes\)",
        "text.h5ad": "is not an HDF5 file",
        "tenx.h5": r"of an unknown kind \(it holds matrix\).*scanpy",
        "nocells.h5ad": r"no cells in .*\(0 cells x 200 genes\)",
        "nogenes.h5ad": r"no genes in .*\(120 cells x 0 genes\)",
    }
    for name, match in cases.items():
        with pytest.raises(InputError, match=match) as error:
            read_cells(tmp_path / name)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("damage", ["length", "encoding", "compressed"])
def test_read_damaged_content(counts_adata, tmp_path, damage):
    path = tmp_path / "bad.h5ad"
    counts_adata.write_h5ad(path, compression="gzip")
    with h5py.File(path, "r+") as file:
        if damage == "length":
            del file["obs/cell_type"]
        elif damage == "encoding":
            file["obs/cell_type"].attrs["encoding-type"] = "from-the-future"
        else:
            start = file["X/data"].id.get_chunk_info(0).byte_offset
    if damage == "compressed":
        content = bytearray(path.read_bytes())
        content[start : start + 50] = b"\xff" * 50
        path.write_bytes(content)
    with pytest.raises(InputError, match="is damaged"):
        read_cells(path)


def test_truncated_real_file(shared_data, tmp_path):
    content = (shared_data / "pbmc3k.h5ad").read_bytes()
    path = tmp_path / "half.h5ad"
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match="is truncated"):
        read_cells(path)


def test_only_h5ad_files_pass_require_h5ad(cells, tmp_path):
    require_h5ad(write_h5ad_file(cells, tmp_path))
    with pytest.raises(InputError, match=r"run.loom is of the kind 'loom'; expected an h5ad file: read it with scanpy"):
        require_h5ad(write_loom(cells, tmp_path))


def test_sha256(tmp_path):
    content = bytes(range(256)) * 1000
    (tmp_path / "f").write_bytes(content)
    expected = hashlib.sha256(content).hexdigest()
    assert sha256(tmp_path / "f") == checksum(tmp_path / "f") == expected
    of_both = hashlib.sha256(f"{expected} {expected}".encode()).hexdigest()
    assert checksum(tmp_path / "f", tmp_path / "f") == of_both


def test_write_h5ad_round_trip(rich, tmp_path):
    path = tmp_path / "new" / "folder" / "out.h5ad"
    write_h5ad(rich, path)
    assert_equal(read_cells(path), rich, exact=True)
    with pytest.raises(InputError, match="exists"):
        write_h5ad(rich, path)
