"""HDF5 files equal those of anndata; a failed write is an error, not a crash of libhdf5."""

import errno
import subprocess
import sys

import anndata as ad
import h5py
import numpy as np
import pytest
from support.refusal import refusal

from scperformer.io.writing import _KeepsErrors, hdf5_to_write, write_anndata


def content(path):
    """Return the attributes and values of each element by its name."""
    with h5py.File(path) as file:
        names: list[str] = ["/"]
        file.visit(names.append)
        found = {
            name: {key: np.asarray(value).tolist() for key, value in file[name].attrs.items()}
            for name in names
        }
        for name in names:
            if isinstance(node := file[name], h5py.Dataset):
                found[name] |= {
                    "values": np.asarray(node[()]).tolist(),
                    "form": (str(node.dtype), node.compression),
                }
    return found


@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}], ids=str)
def test_files_equal_those_of_anndata(rich, tmp_path, options):
    rich.obs["words"] = ["a", "b"] * (rich.n_obs // 2)
    rich.copy().write_h5ad(tmp_path / "theirs.h5ad", **options)
    write_anndata(rich.copy(), tmp_path / "ours.h5ad", **options)
    assert content(tmp_path / "ours.h5ad") == content(tmp_path / "theirs.h5ad")
    del rich.raw
    rich.X = None
    rich.copy().write_h5ad(tmp_path / "theirs.h5ad")
    write_anndata(rich.copy(), tmp_path / "ours.h5ad")
    ours, theirs = (ad.read_h5ad(tmp_path / f"{name}.h5ad") for name in ("ours", "theirs"))
    assert (ours.X, ours.raw, ours.shape) == (theirs.X, theirs.raw, theirs.shape)


@pytest.mark.parametrize(
    "share", [0, 0.02, *(pytest.param(each, marks=pytest.mark.slow) for each in (0.1, 0.5, 0.97))]
)
@pytest.mark.parametrize("mode", ["w", "r+"])
def test_a_limit_on_file_sizes_is_an_error_and_no_crash(rich, tmp_path, mode, share):
    """In a separate process, as libhdf5 may also crash when the process ends."""
    rich.write_h5ad(tmp_path / "cells.h5ad")
    size = (tmp_path / "cells.h5ad").stat().st_size
    limit = int(share * size) if mode == "w" else int(size * (1 + share))
    program = f"""
import errno, resource, shutil
import anndata as ad, numpy as np
from anndata.io import write_elem
from scperformer.io.writing import hdf5_to_write, write_anndata
cells = ad.read_h5ad("cells.h5ad")
shutil.copyfile("cells.h5ad", "out.h5ad")
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    if "{mode}" == "w":
        write_anndata(cells, "out.h5ad")
    with hdf5_to_write("out.h5ad", "r+") as file:
        write_elem(file, "more", np.ones(({size}, 2), dtype="i1"))
        write_elem(file, "obs", cells.obs)
except OSError as error:
    assert error.errno == errno.EFBIG, error
    assert ad.read_h5ad("cells.h5ad").shape == cells.shape  # libhdf5 still works
    print("refused")
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout) == (0, "refused\n"), ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left on device")], ids=repr
)
def test_an_error_while_hdf5_writes_is_raised_when_the_file_is_closed(tmp_path, monkeypatch, error):
    written = []
    write_all = _KeepsErrors.write_all

    def fail(self, data):
        written.append(len(data))
        if len(written) > 3:
            raise error
        write_all(self, data)

    monkeypatch.setattr(_KeepsErrors, "write_all", fail)

    def write():
        with hdf5_to_write(tmp_path / "a.h5", "w") as file:
            for number in range(20):
                file[f"x{number}"] = np.arange(1000)

    with pytest.raises(type(error) if isinstance(error, Exception) else error):
        write()
    assert len(written) == 4


def test_a_text_with_a_null_character_is_refused(cells, tmp_path):
    """Zarr can hold it, and HDF5 cannot."""
    cells.uns["author"] = np.array(["no\0body"], dtype=object)
    with refusal("null-character"):
        write_anndata(cells, tmp_path / "cells.h5ad")
