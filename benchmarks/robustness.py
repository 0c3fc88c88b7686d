"""Damaged, unusual and interrupted: what commands make of files and signals that are not as they should be.

    python benchmarks/robustness.py damage                     # 2,000 files, every tenth by the command line
    python benchmarks/robustness.py damage --only 173          # only this file, with its error
    python benchmarks/robustness.py damage --number 1000 --kinds "CellTypist .pkl"
    python benchmarks/robustness.py forms
    python benchmarks/robustness.py kills --moments 6 --only "predict to h5ad"
    python benchmarks/robustness.py soak --number 60

`damage`: files of cells, the packaged model, or a model as CellTypist writes it; up to 4,096 bytes are changed, or the
file is truncated. Each is read, annotated or imported in a process of its own, limited to 60 s of CPU time and 4 GiB
of memory, and ended if it starts a program or opens a connection. The result is compared with the undamaged file (a
model of CellTypist always differs: it records the checksum of its file); "guarded" are errors of io/hdf5_guard.py.

`forms`: cells of PBMC 3k in formats that other programs write. All confidences must equal those from counts in an h5ad
file bit for bit, except that logarithms are rounded.

`kills`: each command first runs undisturbed, then gets a signal at moments spread over that time. Afterwards no output
may be incomplete, inputs and model must be unchanged, and the same command (with resume=true where available) must give
the same output and leave no other files.

`soak`: annotations in one process, in threads and in process pools must give equal results in constant memory.
"""

import argparse
import contextlib
import functools
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import pickle
import pickletools
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import anndata as ad
import h5py
import numpy as np
import pandas as pd
import psutil
import zarr
from machine import machine
from panel import be_quiet
from scipy import sparse
from scipy.io import mmwrite
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

import scperformer
from scperformer.base import errors
from scperformer.cli import main as cli
from scperformer.importing.folders import import_into_library
from scperformer.io.gene_table import human_genes
from scperformer.io.read import open_adata, read_cells
from scperformer.io.rows import Rows
from scperformer.io.safety import READ_ERRORS
from scperformer.model.folder import PACKAGED_MODEL, read_model

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "data" / "pbmc3k.h5ad"
NUM_CELLS = 200  # cells of PBMC 3k
GENE_STEP = 10  # every tenth of its genes
SECONDS = 60  # CPU seconds of a process
MEMORY = 4 * 2**30  # bytes of a process
COMMAND_STEP = 10  # one of so many files is read by a command
ENDINGS = (".h5ad", ".csv", ".zarr")  # of its outputs, in turn
SAME = "as before"
OTHER = "other values"
REFUSED = "one line of error"
WATCHED = "one line, guarded"
HANG = "hang"
MEMORY_OUT = "memory ran out"
CRASH = "crash"
TRACEBACK = "traceback"
HALF = "half a file"
EXECUTED = "executed something"
OUTCOMES = (SAME, OTHER, REFUSED, WATCHED, HANG, MEMORY_OUT, CRASH, TRACEBACK, HALF, EXECUTED)
EXECUTING = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "subprocess.Popen",
    "socket.connect",
    "pty.spawn",
)
# messages of io/hdf5_guard.py
OF_GUARD = ("does not come to an end", "crashes the HDF5 library", "far more memory")
DAMAGES = ("flip", "cut", "zeros", "ones")


class Kind(NamedTuple):
    """A file or folder, and its regions: for each, a file and the positions of its bytes."""

    path: Path
    regions: dict[str, list[tuple[Path, np.ndarray]]]


def write_cells(source: Path, folder: Path) -> dict[str, Path]:
    """Write the same cells in every format."""
    adata = ad.read_h5ad(source)[:NUM_CELLS, ::GENE_STEP].copy()
    adata.X = sparse.csr_matrix(adata.X)
    adata.obs["text"] = [f"text {i}" for i in range(NUM_CELLS)]
    adata.obsm["X_pca"] = np.random.default_rng(0).normal(size=(NUM_CELLS, 10))
    adata.uns["record"] = {"author": "nobody", "steps": np.array(["one", "two"], dtype=object)}
    stored = {"csr": adata.X, "csc": sparse.csc_matrix(adata.X), "dense": adata.X.toarray()}
    paths = {f"h5ad, {name}": folder / f"{name}.h5ad" for name in stored}
    for (name, x), path in zip(stored.items(), paths.values(), strict=True):
        adata.X = x
        adata.write_h5ad(path, compression="gzip" if name == "csr" else None)
    paths |= {
        "10x .h5": folder / "tenx.h5",
        "loom": folder / "cells.loom",
        "zarr": folder / "cells.zarr",
    }
    with h5py.File(paths["10x .h5"], "w") as file:
        group = file.create_group("matrix")
        for part in ("data", "indices", "indptr"):
            group.create_dataset(
                part, data=getattr(stored["csr"], part), chunks=(100,), compression="gzip"
            )
        group["shape"] = adata.shape[::-1]
        group["barcodes"] = adata.obs_names.to_numpy("S")
        names = {
            "id": adata.var_names,
            "name": adata.var_names,
            "feature_type": ["Gene Expression"] * adata.n_vars,
        }
        for name, values in names.items():
            group[f"features/{name}"] = np.array(values, dtype="S")
    with h5py.File(paths["loom"], "w") as file:
        file.create_dataset("matrix", data=stored["dense"].T, chunks=(64, 64), compression="gzip")
        file["row_attrs/Gene"] = adata.var_names.to_numpy(object)
        file["col_attrs/CellID"] = adata.obs_names.to_numpy(object)
        file.create_group("layers")
        file.attrs["LOOM_SPEC_VERSION"] = "3.0.0"
    adata.X = stored["csr"]
    adata.write_zarr(paths["zarr"])
    return paths


def hdf5_regions(path: Path) -> dict[str, list[tuple[Path, np.ndarray]]]:
    """Return the bytes of each region of an HDF5 file: its datasets, and known blocks of HDF5 itself."""
    content = path.read_bytes()
    names = ("headers, attributes", "superblock", "indexes", "strings", "matrix")
    region = np.zeros(len(content), dtype=np.uint8)
    for block in re.finditer(b"TREE|SNOD|HEAP|GCOL", content):
        place = block.start()
        is_heap = block[0] == b"GCOL"
        # more or less
        size = int.from_bytes(content[place + 8 : place + 16], "little") if is_heap else 1024
        region[place : place + size] = names.index("strings" if is_heap else "indexes")

    def mark(name: str, node: h5py.Dataset | h5py.Group) -> None:
        if not isinstance(node, h5py.Dataset) or not node.id.get_storage_size():
            return
        number = names.index(
            "matrix"
            if name.split("/")[0] in ("X", "matrix") and node.dtype.kind in "iuf"
            else "strings"
        )
        if node.chunks is None:
            region[node.id.get_offset() : node.id.get_offset() + node.id.get_storage_size()] = (
                number
            )
        else:
            for i in range(node.id.get_num_chunks()):
                chunk = node.id.get_chunk_info(i)
                region[chunk.byte_offset : chunk.byte_offset + chunk.size] = number

    with h5py.File(path) as file:
        file.visititems(mark)
    region[:96] = names.index("superblock")
    found = {name: np.flatnonzero(region == number) for number, name in enumerate(names)}
    return {name: [(Path(), places)] for name, places in found.items() if len(places)}


def folder_regions(path: Path) -> dict[str, list[tuple[Path, np.ndarray]]]:
    """Return the files of a folder as regions: JSON files, and all others by name or suffix."""
    regions: dict[str, list[tuple[Path, np.ndarray]]] = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.stat().st_size:
            text = file.suffix == ".json" or file.name.startswith(".z")
            in_matrix = "chunks of X" if "X" in file.relative_to(path).parts else "other chunks"
            name = "metadata" if text else in_matrix if path.suffix == ".zarr" else file.name
            regions.setdefault(name, []).append(
                (file.relative_to(path), np.arange(file.stat().st_size))
            )
    return regions


def write_celltypist(source: Path, path: Path) -> None:
    """Write a model as CellTypist does: a classifier of scikit-learn with its genes, and the scaler before it."""
    adata = ad.read_h5ad(source)[:NUM_CELLS, ::GENE_STEP]
    x = np.log1p(sparse.csr_matrix(adata.X).toarray())
    scaler = StandardScaler().fit(x)
    classifier = LogisticRegression(max_iter=20).fit(
        np.minimum(scaler.transform(x), 10), adata.obs["cell_type"]
    )
    classifier.features = adata.var_names.to_numpy(object)
    content = {
        "Model": classifier,
        "Scaler_": scaler,
        "description": {"version": "v1", "source": "nobody"},
    }
    path.write_bytes(pickle.dumps(content))


def pickle_regions(path: Path) -> dict[str, list[tuple[Path, np.ndarray]]]:
    """Return the bytes of a pickle as regions: numbers of arrays, names of genes, and all that holds them together."""
    content = path.read_bytes()
    kind = np.zeros(len(content), dtype=np.uint8)
    for _, argument, place in pickletools.genops(content):
        if isinstance(argument, bytes | str) and len(argument) > 2:
            size = len(argument if isinstance(argument, bytes) else argument.encode())
            kind[place + 2 : place + 2 + size] = 1 if isinstance(argument, bytes) else 2
    names = ("opcodes", "numbers", "texts")
    return {name: [(Path(), np.flatnonzero(kind == number))] for number, name in enumerate(names)}


def make_kinds(source: Path, folder: Path) -> dict[str, Kind]:
    """Write a file of every kind."""
    kinds = {}
    for name, path in write_cells(source, folder).items():
        kinds[name] = Kind(path, folder_regions(path) if path.is_dir() else hdf5_regions(path))
    shutil.copytree(PACKAGED_MODEL, folder / "model")
    kinds["model folder"] = Kind(folder / "model", folder_regions(folder / "model"))
    archive = Path(shutil.make_archive(str(folder / "model"), "zip", folder, "model"))
    size = archive.stat().st_size
    parts = {"members": np.arange(size - 1024), "directory": np.arange(size - 1024, size)}
    kinds["model zip"] = Kind(archive, {name: [(Path(), places)] for name, places in parts.items()})
    write_celltypist(source, folder / "model.pkl")
    kinds["CellTypist .pkl"] = Kind(folder / "model.pkl", pickle_regions(folder / "model.pkl"))
    return kinds


def damaged(kind: Kind, folder: Path, rng: np.random.Generator) -> tuple[Path, str]:
    """Copy a file and damage the copy; also return a description of the damage."""
    copy = folder / kind.path.name
    (shutil.copytree if kind.path.is_dir() else shutil.copyfile)(kind.path, copy)
    region = str(rng.choice(sorted(kind.regions)))
    how = str(rng.choice(DAMAGES))
    length = int(2 ** rng.uniform(0, 12))
    name, places = kind.regions[region][rng.integers(len(kind.regions[region]))]
    place = int(rng.choice(places))
    content = bytearray((copy / name).read_bytes())
    length = min(length, len(content) - place)
    if how == "cut":
        del content[place:]
    elif how == "flip":
        content[place : place + length] = rng.bytes(length)
    else:
        content[place : place + length] = (b"\0" if how == "zeros" else b"\xff") * length
    (copy / name).write_bytes(content)
    return copy, f"{region}: {how}, {length} bytes at {name / str(place)}"


def digest(path: Path) -> str:
    """Read cells as the commands do, in both ways, or import a model; return a checksum of everything that was read."""
    seen = hashlib.sha256()
    if path.name.startswith("model"):
        return read_model(import_into_library(path, path.parent / "library")).hash
    adata = read_cells(path)
    for part in (
        adata.obs.to_csv(),
        adata.var.to_csv(),
        sparse.csr_matrix(adata.X).toarray().tobytes(),
    ):
        seen.update(part.encode() if isinstance(part, str) else part)
    for place in (adata.obsm, adata.uns, adata.layers):
        seen.update(repr({name: place[name] for name in sorted(place)}).encode())
    with open_adata(path) as cells:
        seen.update(repr(list(cells.obs_names)).encode())
        for _, block in Rows(cells.X).blocks():
            seen.update(sparse.csr_matrix(block).toarray().astype(np.float32).tobytes())
    return seen.hexdigest()


def run_command(path: Path, ending: str) -> str:
    """Annotate cells or import a model on the command line, and return a checksum of the output.

    Raises
    ------
    InputError
        The command ended with one line of error and left no files behind.
    """
    is_model = path.name.startswith("model")
    before = sorted(path.parent.iterdir())
    out = path.parent / f"out{ending}"
    library = path.parent / "library"
    words = [
        "predict",
        str(path),
        f"output={out}",
        "model_path=pbmc3k",
        "adapt=false",
        "min_overlap=0",
    ]
    if is_model:
        words = ["models", "import", str(path), f"output={library}"]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = cli.main(words)
    lines = [
        line
        for line in said.getvalue().splitlines()
        if line.startswith(("error", "internal", "Traceback"))
    ]
    if code == 2 and len(lines) == 1:
        if sorted(path.parent.iterdir()) != before:
            raise FileExistsError("something was left behind")
        raise errors.InputError("command", lines[0], "", "")
    if code != 0:
        raise AssertionError(said.getvalue())
    if is_model:
        return read_model(next(library.iterdir())).hash
    if ending == ".csv":
        return hashlib.sha256(out.read_bytes()).hexdigest()
    with (
        h5py.File(out)
        if ending == ".h5ad"
        else contextlib.nullcontext(zarr.open_group(out, mode="r")) as file
    ):
        proba = ad.io.read_elem(file["obsm/scperformer_proba"])
        try:
            obs = ad.io.read_elem(file["obs"])
        except READ_ERRORS:
            return "a copy of columns of the input that are damaged, and that the command does not read"
    return hashlib.sha256(obs.to_csv().encode() + proba.to_csv().encode()).hexdigest()


def outcome(path: Path, read: Callable[[Path], str], expected: str, log: Path) -> str:
    """Read a file in a new process, and return its outcome; its error is written to the log."""
    child = os.fork()
    if child == 0:
        # Libraries are loaded already: what a file makes Python start or open is seen here.
        executed = OUTCOMES.index(EXECUTED)

        def watch(event: str, arguments: tuple) -> None:
            if event in EXECUTING:
                os.write(2, f"{event} {arguments}\n".encode())
                os._exit(executed)

        sys.addaudithook(watch)
        code = OUTCOMES.index(TRACEBACK)
        words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(words, 1), os.dup2(words, 2)
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        for kind, limit in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_AS, mapped + MEMORY)):
            resource.setrlimit(kind, (limit, limit + 1))
        try:
            code = OUTCOMES.index(SAME if read(path) == expected else OTHER)
        except FileExistsError:
            code = OUTCOMES.index(HALF)
        except Exception as error:  # noqa: BLE001 - as on the command line
            known = errors.as_input_error(error)
            if known is not None:
                guarded = any(text in str(known) for text in OF_GUARD)
                kind = (
                    WATCHED
                    if guarded
                    else MEMORY_OUT
                    if "memory ran out" in str(known)
                    else REFUSED
                )
                code = OUTCOMES.index(kind)
            os.write(2, f"{known}\n".encode() if known else traceback.format_exc().encode())
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return (
        OUTCOMES[status]
        if status >= 0
        else HANG
        if -status in (signal.SIGXCPU, signal.SIGKILL)
        else CRASH
    )


def damage(arguments: argparse.Namespace) -> None:
    rows: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        kinds = make_kinds(arguments.source, Path(name))
        kinds = {kind: kinds[kind] for kind in arguments.kinds or kinds}
        log = Path(name) / "log"
        expected: dict[tuple[str, str], str] = {}
        for number in range(arguments.number) if arguments.only is None else [arguments.only]:
            kind = list(kinds)[number % len(kinds)]
            step = number // len(kinds)
            ending = "" if step % COMMAND_STEP else ENDINGS[step // COMMAND_STEP % len(ENDINGS)]
            read = functools.partial(run_command, ending=ending) if ending else digest
            with tempfile.TemporaryDirectory(dir=name) as folder:
                if (kind, ending) not in expected:
                    whole = Path(folder) / "whole" / kinds[kind].path.name
                    whole.parent.mkdir()
                    (shutil.copytree if kinds[kind].path.is_dir() else shutil.copyfile)(
                        kinds[kind].path, whole
                    )
                    expected[kind, ending] = read(whole)
                    shutil.rmtree(whole.parent)
                path, what = damaged(
                    kinds[kind], Path(folder), np.random.default_rng([arguments.seed, number])
                )
                found = outcome(path, read, expected[kind, ending], log)
            rows.setdefault(kind, Counter())[found] += 1
            if arguments.only is not None or found not in (SAME, OTHER, REFUSED, WATCHED):
                print(
                    f"{number} {kind} {ending}: {what}: {found}\n{log.read_text(errors='replace')[-2000:]}",
                    flush=True,
                )
    print(f"| | files | {' | '.join(OUTCOMES)} |\n|{'---|' * (len(OUTCOMES) + 2)}")
    for name, row in {**rows, "all": sum(rows.values(), Counter())}.items():
        print(
            f"| {name} | {row.total()} | {' | '.join(str(row[outcome]) for outcome in OUTCOMES)} |"
        )


Form = Callable[[ad.AnnData, Path], Path]
FORMS: dict[str, Form] = {}


def form(name: str) -> Callable[[Form], Form]:
    def add(function: Form) -> Form:
        FORMS[name] = function
        return function

    return add


def written(cells: ad.AnnData, folder: Path) -> Path:
    cells.write_h5ad(folder / "cells.h5ad")
    return folder / "cells.h5ad"


form("h5ad: counts, CSR int64")(written)
for dtype in (np.float32, np.float64, np.int32, np.int16, np.uint16, np.float16):

    @form(f"h5ad: CSR {np.dtype(dtype)}")
    def _(cells: ad.AnnData, folder: Path, dtype: type = dtype) -> Path:
        if dtype == np.float16:  # SciPy has no sparse float16
            cells.X = cells.X.toarray().astype(dtype)
        else:
            cells.X = cells.X.astype(dtype)
        return written(cells, folder)


for name, make in {
    "CSC": sparse.csc_matrix,
    "dense": lambda x: x.toarray(),
    "dense by columns": None,
}.items():

    @form(f"h5ad: {name}")
    def _(cells: ad.AnnData, folder: Path, make: Callable | None = make) -> Path:
        cells.X = np.asfortranarray(cells.X.toarray()) if make is None else make(cells.X)
        return written(cells, folder)


for compression in ("gzip", "lzf"):

    @form(f"h5ad: {compression}")
    def _(cells: ad.AnnData, folder: Path, compression: str = compression) -> Path:
        cells.write_h5ad(folder / "cells.h5ad", compression=compression)
        return folder / "cells.h5ad"


def logarithms(
    x: sparse.csr_matrix, total: float = 1e4, base: float | None = None
) -> sparse.csr_matrix:
    sums = np.asarray(x.sum(axis=1)).ravel()
    made = sparse.csr_matrix(sparse.diags(total / sums) @ x, dtype=np.float64)
    made.data = np.log1p(made.data) / (1.0 if base is None else np.log(base))
    return made


for name in ("counts", "raw_counts", "umi", "matrix"):

    @form(f"h5ad: layers['{name}'] beside logarithms")
    def _(cells: ad.AnnData, folder: Path, name: str = name) -> Path:
        cells.layers[name] = cells.X.copy()
        cells.X = logarithms(cells.X)
        return written(cells, folder)


@form("h5ad: raw counts beside scaled X of some genes")
def _(cells: ad.AnnData, folder: Path) -> Path:
    some = cells[:, :2000].copy()
    some.raw = cells
    x = some.X.toarray()
    some.X = (x - x.mean(0)) / (x.std(0) + 1e-3)
    return written(some, folder)


@form("h5ad: velocyto's layers beside counts")
def _(cells: ad.AnnData, folder: Path) -> Path:
    for name in ("spliced", "unspliced", "ambiguous"):
        cells.layers[name] = cells.X.copy()
    return written(cells, folder)


@form("h5ad: unsorted indices and explicit zeros")
def _(cells: ad.AnnData, folder: Path) -> Path:
    x = cells.X.tocoo()
    rows = np.append(x.row, [0, 1])
    columns = np.append(x.col, [5, 6])
    values = np.append(x.data, [0, 0])
    order = np.random.default_rng(0).permutation(len(rows))
    made = sparse.coo_matrix((values[order], (rows[order], columns[order])), shape=x.shape).tocsr()
    cells.X = made
    return written(cells, folder)


def ensembl(cells: ad.AnnData) -> ad.AnnData:
    """Return the genes that have one Ensembl id, with the ids as names."""
    ids = [human_genes().ids.get(name) for name in cells.var_names]
    found = pd.Series(ids)
    keep = (found.notna() & ~found.duplicated(keep=False)).to_numpy()
    made = cells[:, keep].copy()
    made.var["symbol"] = made.var_names
    made.var_names = found[keep].to_numpy()
    return made


NAMES: dict[str, Callable[[str, int], str]] = {
    "lower case": lambda name, _: name.lower(),
    "upper case": lambda name, _: name.upper(),
    "genome in front, Cell Ranger": lambda name, _: f"GRCh38_{name}",
    "genome in front, three underscores": lambda name, _: f"GRCh38___{name}",
    "genome in front, Seurat's dashes": lambda name, _: f"GRCh38---{name}",
    "genome in front, premrna": lambda name, _: f"GRCh38_premrna_{name}",
    "chromosome behind, CEL-Seq2": lambda name, _: f"{name}__chr7",
    "blanks around": lambda name, _: f" {name} ",
}
for name, renamed in NAMES.items():

    @form(f"genes: {name}")
    def _(cells: ad.AnnData, folder: Path, renamed: Callable[[str, int], str] = renamed) -> Path:
        cells.var_names = [renamed(gene, place) for place, gene in enumerate(cells.var_names)]
        return written(cells, folder)


@form("genes: in another order")
def _(cells: ad.AnnData, folder: Path) -> Path:
    return written(cells[:, np.random.default_rng(1).permutation(cells.n_vars)].copy(), folder)


@form("genes: symbols in var, numbers as names")
def _(cells: ad.AnnData, folder: Path) -> Path:
    cells.var["gene_symbols"] = cells.var_names.to_numpy()
    cells.var_names = [str(place) for place in range(cells.n_vars)]
    return written(cells, folder)


@form("genes: other features beside them")
def _(cells: ad.AnnData, folder: Path) -> Path:
    tags = ad.AnnData(sparse.csr_matrix(np.full((cells.n_obs, 3), 500)), obs=cells.obs)
    tags.var_names = ["CD4_TotalSeqB", "CD14_TotalSeqB", "Hashtag1"]
    tags.var["feature_types"] = "Antibody Capture"
    cells.var["feature_types"] = "Gene Expression"
    return written(ad.concat([cells, tags], axis=1, merge="same"), folder)


@form("cells: repeated names")
def _(cells: ad.AnnData, folder: Path) -> Path:
    cells.obs_names = ["cell"] * cells.n_obs
    return written(cells, folder)


@form("cells: nullable columns and names")
def _(cells: ad.AnnData, folder: Path) -> Path:
    cells.obs["text"] = pd.array(["a", pd.NA] * (cells.n_obs // 2), dtype="string")
    cells.obs["number"] = pd.array([1, pd.NA] * (cells.n_obs // 2), dtype="Int64")
    with ad.settings.override(allow_write_nullable_strings=True):
        return written(cells, folder)


@form("file: HDF5 behind a block of 512 bytes")
def _(cells: ad.AnnData, folder: Path) -> Path:
    with h5py.File(folder / "cells.h5ad", "w", userblock_size=512) as file:
        ad.io.write_elem(file, "/", cells)
    return folder / "cells.h5ad"


@form("zarr")
def _(cells: ad.AnnData, folder: Path) -> Path:
    cells.write_zarr(folder / "cells.zarr")
    return folder / "cells.zarr"


@form("zarr: dense, in chunks")
def _(cells: ad.AnnData, folder: Path) -> Path:
    cells.X = cells.X.toarray()
    cells.write_zarr(folder / "cells.zarr", chunks=(37, 1000))
    return folder / "cells.zarr"


def tenx(cells: ad.AnnData, folder: Path, version: int) -> Path:
    x = sparse.csr_matrix(cells.X)
    ids = np.array(
        [human_genes().ids.get(name, f"none{place}") for place, name in enumerate(cells.var_names)]
    )
    with h5py.File(folder / "cells.h5", "w") as file:
        group = file.create_group("matrix" if version == 3 else "GRCh38")
        for part in ("data", "indices", "indptr"):
            group[part] = getattr(x, part)
        group["shape"] = np.array(cells.shape[::-1])
        group["barcodes"] = cells.obs_names.to_numpy().astype("S")
        names = cells.var_names.to_numpy().astype("S")
        if version == 2:
            group["genes"] = ids.astype("S")
            group["gene_names"] = names
        else:
            group["features/id"] = ids.astype("S")
            group["features/name"] = names
            group["features/feature_type"] = np.full(len(names), b"Gene Expression")
            group["features/genome"] = np.full(len(names), b"GRCh38")
    return folder / "cells.h5"


form("10x h5, version 2")(lambda cells, folder: tenx(cells, folder, 2))
form("10x h5, version 3")(lambda cells, folder: tenx(cells, folder, 3))


@form("loom")
def _(cells: ad.AnnData, folder: Path) -> Path:
    with h5py.File(folder / "cells.loom", "w") as file:
        file["matrix"] = cells.X.toarray().T
        file["row_attrs/Gene"] = cells.var_names.to_numpy().astype("S")
        file["col_attrs/CellID"] = cells.obs_names.to_numpy().astype("S")
        file.create_group("layers")
    return folder / "cells.loom"


def mtx(cells: ad.AnnData, folder: Path, names: tuple[str, str, str], *, by_cells: bool = False,
        zipped: bool = False) -> Path:  # fmt: skip
    matrix, barcodes, genes = (folder / "run" / name for name in names)
    (folder / "run").mkdir()
    mmwrite(matrix, cells.X if by_cells else cells.X.T, field="integer")
    ids = [
        human_genes().ids.get(name, f"none{place}") for place, name in enumerate(cells.var_names)
    ]
    genes.write_text(
        "".join(f"{one}\t{name}\n" for one, name in zip(ids, cells.var_names, strict=True))
    )
    barcodes.write_text("".join(f"{name}\n" for name in cells.obs_names))
    if zipped:
        for path in (matrix, barcodes, genes):
            with gzip.open(f"{path}.gz", "wb") as file:
                file.write(path.read_bytes())
            path.unlink()
    return folder / "run"


form("mtx: 10x folder, version 2")(
    lambda c, f: mtx(c, f, ("matrix.mtx", "barcodes.tsv", "genes.tsv"))
)
form("mtx: 10x folder, gzip")(
    lambda c, f: mtx(c, f, ("matrix.mtx", "barcodes.tsv", "features.tsv"), zipped=True)
)
form("mtx: cells in rows")(
    lambda c, f: mtx(c, f, ("matrix.mtx", "barcodes.tsv", "genes.tsv"), by_cells=True)
)
KB = ("cells_x_genes.mtx", "cells_x_genes.barcodes.txt", "cells_x_genes.genes.txt")
form("mtx: kb-python")(lambda c, f: mtx(c, f, KB, by_cells=True))
ALEVIN = ("quants_mat.mtx", "quants_mat_rows.txt", "quants_mat_cols.txt")
form("mtx: alevin-fry")(lambda c, f: mtx(c, f, ALEVIN, by_cells=True))

TABLES = {
    "csv, cells in rows": (",", False, "csv", {}),
    "csv, genes in rows": (",", True, "csv", {}),
    "tsv, genes in rows": ("\t", True, "tsv", {}),
    "semicolons": (";", True, "csv", {}),
    "gzip": (",", True, "csv.gz", {}),
    "Windows line ends": (",", True, "csv", {"lineterminator": "\r\n"}),
    "quotes": (",", True, "csv", {"quoting": 2}),
    "decimals": (",", False, "csv", {"float_format": "%.2f"}),
}
for name, (separator, by_genes, ending, more) in TABLES.items():

    @form(f"table: {name}")
    def _(
        cells: ad.AnnData, folder: Path, how: tuple = (separator, by_genes, ending, more)
    ) -> Path:
        separator, by_genes, ending, more = how
        table = pd.DataFrame(cells.X.toarray(), index=cells.obs_names, columns=cells.var_names)
        table = table.astype(float) if "float_format" in more else table
        (table.T if by_genes else table).to_csv(folder / f"cells.{ending}", sep=separator, **more)
        return folder / f"cells.{ending}"


@form("table: comments in front, Drop-seq")
def _(cells: ad.AnnData, folder: Path) -> Path:
    table = pd.DataFrame(
        cells.X.T.toarray(), index=pd.Index(cells.var_names, name="GENE"), columns=cells.obs_names
    )
    text = "#DGE\tVERSION:1.1\tEXPRESSION_FORMAT:raw\n#HEADER_START\n" + table.to_csv(sep="\t")
    (folder / "cells.dge.txt").write_text(text)
    return folder / "cells.dge.txt"


@form("table: numbers as names of cells, MERSCOPE")
def _(cells: ad.AnnData, folder: Path) -> Path:
    numbers = pd.Index(
        [110883424764611924400221639916314253469 + place for place in range(cells.n_obs)],
        name="cell",
    )
    pd.DataFrame(cells.X.toarray(), index=numbers, columns=cells.var_names).to_csv(
        folder / "cell_by_gene.csv"
    )
    return folder / "cell_by_gene.csv"


LOGARITHMS = {
    "to base e": (1e4, None),
    "to base 2": (1e4, 2.0),
    "to base 10": (1e4, 10.0),
    "of CPM": (1e6, None),
}
for name, (total, base) in LOGARITHMS.items():

    @form(f"logarithms {name}")
    def _(cells: ad.AnnData, folder: Path, how: tuple = (total, base)) -> Path:
        cells.X = logarithms(cells.X, *how)
        return written(cells, folder)


def confidences(path: Path, model: object) -> pd.DataFrame:
    """Annotate a file; return the labels and confidences in the order of its cells."""
    out = path.parent / "out.csv"
    scperformer.annotate(path, model, output=out, options={"adapt": "false"})
    return pd.read_csv(out)[["scperformer_label", "scperformer_confidence"]]


def forms(arguments: argparse.Namespace) -> None:
    whole = ad.read_h5ad(SOURCE)
    cells = whole[:: whole.n_obs // NUM_CELLS][:NUM_CELLS].copy()
    x = sparse.csr_matrix(cells.X, dtype=np.int64)
    cells = ad.AnnData(
        x, obs=pd.DataFrame(index=cells.obs_names), var=pd.DataFrame(index=cells.var_names)
    )
    model = scperformer.load_model()
    expected: pd.DataFrame | None = None
    print("| Form | Same labels | Same confidences | Largest difference |\n|---|---|---|---|")
    tried = []
    for name, make in FORMS.items():
        if expected is not None and arguments.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = confidences(make(cells.copy(), Path(folder)), model)
            except scperformer.InputError as error:
                tried.append(False)
                print(f"| {name} | refused: {str(error)[:200]} | | |", flush=True)
                continue
        expected = found if expected is None else expected
        labels = (found["scperformer_label"] == expected["scperformer_label"]).mean()
        off = np.abs(found["scperformer_confidence"] - expected["scperformer_confidence"]).max()
        tried.append(off == 0)
        print(f"| {name} | {labels:.0%} | {'yes' if off == 0 else 'no'} | {off:.1g} |", flush=True)
    print(f"\n{sum(tried)} of {len(tried)} forms give the same bits")


SIGNALS = ("KILL", "TERM", "INT", "HUP")
# may stay after a kill
TEMPORARY = re.compile(r"\.scperformer-|.*\.partial$|.*\.run$|\.snakemake$")
VOLATILE = {"seconds", "config_json"}  # keys of a record that may differ: the time, and resume=true


class Step(NamedTuple):
    """A command and its outputs; `again` is added to the command after a kill."""

    words: str
    outputs: tuple[str, ...]
    again: str = ""


STEPS = {
    "predict to h5ad": Step("predict cells.h5ad output=out.h5ad", ("out.h5ad",), "resume=true"),
    "predict to zarr": Step("predict cells.h5ad output=out.zarr", ("out.zarr",), "resume=true"),
    "predict to csv": Step("predict cells.h5ad output=out.csv.gz", ("out.csv.gz",), "resume=true"),
    "predict, replacing": Step(
        "predict cells.h5ad output=old.h5ad overwrite=true", ("old.h5ad",), "resume=true"
    ),
    "predict of many files": Step(
        "predict a.h5ad cells.h5ad b.h5ad some.h5ad output_dir=many", ("many",), "resume=true"
    ),
    "train, fitted": Step("train some.h5ad label_key=cell_type output=m", ("m",), "resume=true"),
    "train, layers": Step(
        "train some.h5ad label_key=cell_type model=tiny trainer.max_epochs=3 output=m",
        ("m",),
        "resume=true",
    ),
    "train, replacing": Step(
        "train some.h5ad label_key=cell_type output=old overwrite=true", ("old",)
    ),
    "adapt": Step("adapt model panel.h5ad output=m", ("m",)),
    "report": Step("report annotated.h5ad output=page.html", ("page.html",)),
    "workflow": Step(
        "workflow samples.tsv model_path=model -- --cores 2", ("results",), "-- --rerun-incomplete"
    ),
}


def environment() -> dict[str, str]:
    """One thread per command, on any machine, with the package of this checkout."""
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": str(ROOT),
    }


def start(words: str, folder: Path) -> subprocess.Popen:
    """Start a command in a new process group, as a terminal does."""
    command = [sys.executable, "-m", "scperformer", *words.split()]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(
        command, cwd=folder, env=environment(), text=True, start_new_session=True, **streams
    )


def make_inputs(folder: Path) -> None:
    """Write the inputs of all commands: 17,000 cells in three blocks, a reference, a panel and earlier outputs."""
    cells = ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")
    rows = np.resize(np.arange(cells.n_obs), 17_000)
    many = cells[rows].copy()
    many.obs_names = [f"cell{number}" for number in range(len(rows))]
    many.write_h5ad(folder / "cells.h5ad")
    cells[::3].copy().write_h5ad(folder / "some.h5ad")
    cells[::10, ::20].copy().write_h5ad(folder / "panel.h5ad")
    for name in "ab":
        cells[1::20].copy().write_h5ad(folder / f"{name}.h5ad")
    (folder / "samples.tsv").write_text("sample\tpath\na\ta.h5ad\nb\tb.h5ad\n")
    shutil.copytree(PACKAGED_MODEL, folder / "model")
    for words in ("predict some.h5ad output=annotated.h5ad", "predict a.h5ad output=old.h5ad"):
        assert start(words, folder).wait() == 0
    assert (
        start("train some.h5ad label_key=cell_type experiment=linear output=old", folder).wait()
        == 0
    )
    shutil.rmtree(folder / "old.run")


def content(path: Path) -> str:
    """Return a checksum of an output that depends only on the result; raise an error if the output is incomplete."""
    if path.suffix in (".h5ad", ".zarr"):
        cells = ad.read_h5ad(path) if path.suffix == ".h5ad" else ad.read_zarr(path)
        record = {
            name: value for name, value in cells.uns["scperformer"].items() if name not in VOLATILE
        }
        text = cells.obs.to_csv() + cells.obsm["scperformer_proba"].to_csv() + repr(sorted(record))
        return hashlib.sha256(text.encode() + cells.obsm["X_scperformer"].tobytes()).hexdigest()
    if (path / "bundle.json").is_file():
        info = json.loads((path / "bundle.json").read_text())
        return str(sorted(info["files"].items()))
    if path.is_dir():  # an output of the workflow, or of predict
        return "".join(
            content(file)
            for file in sorted([*path.glob("annotated/[!.]*.h5ad"), *path.glob("[!.]*.h5ad")])
        )
    if path.suffix == ".html":
        text = path.read_text()
        assert text.rstrip().endswith("</html>")
        return str(len(text) // 10_000)  # contains times
    return hashlib.sha256(gzip.open(path).read()).hexdigest()


def fresh(inputs: Path, folder: Path) -> dict[str, str]:
    """Copy the inputs into an empty folder, and return the checksums of its files."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(inputs, folder)
    return checksums(folder)


def checksums(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def is_ours(name: str, step: Step) -> bool:
    first = name.partition("/")[0]
    return first in (*step.outputs, "results", ".snakemake") or TEMPORARY.match(first) is not None


def try_step(name: str, inputs: Path, folder: Path, moments: int) -> list[tuple[str, Counter[str]]]:
    """Kill a command with every signal at some moments; return a row for each signal."""
    step = STEPS[name]
    fresh(inputs, folder)
    begin = time.perf_counter()
    ran = start(step.words, folder)
    output, _ = ran.communicate()
    assert ran.returncode == 0, output
    seconds = time.perf_counter() - begin
    expected = {out: content(folder / out) for out in step.outputs}
    rows = []
    for kind in SIGNALS:
        row: Counter[str] = Counter()
        for moment in range(moments):
            before = fresh(inputs, folder)
            old = {out: content(folder / out) for out in step.outputs if (folder / out).exists()}
            process = start(step.words, folder)
            time.sleep(seconds * (moment + 0.5) / moments)
            ended = process.poll() is not None
            with contextlib.suppress(ProcessLookupError):  # it ended just before
                os.killpg(process.pid, getattr(signal, f"SIG{kind}"))
            printed, _ = process.communicate()
            row["sent"] += 1
            row["ended before"] += ended
            row["traceback"] += "Traceback" in printed or "internal error" in printed
            row["exit code"] = process.returncode if not ended else row["exit code"]
            after = checksums(folder)
            changed = [
                file
                for file in before
                if not is_ours(file, step) and after.get(file) != before[file]
            ]
            litter = [file for file in after if file not in before and not is_ours(file, step)]
            row["lost or changed"] += len(changed)
            row["other files"] += len(litter)
            for out in step.outputs:
                if name == "workflow":
                    continue  # its files are checked after it has run again
                try:
                    found = content(folder / out) if (folder / out).exists() else None
                except Exception as error:  # noqa: BLE001 - any error means that it is incomplete
                    print(f"{name}, {kind}, {moment}: half {out}: {error}", file=sys.stderr)
                    row["half"] += 1
                    continue
                row["lost or changed"] += out in old and found not in (old[out], expected[out])
            words = step.words
            if not ended or name != "workflow":
                there = all(
                    (folder / out).exists() and content(folder / out) == expected[out]
                    for out in step.outputs
                )
                if there and not old and name != "workflow":
                    words = ""  # it was written before the signal came
                elif step.again and name == "workflow":
                    words = step.words.replace("-- ", f"{step.again} ")
                elif step.again:
                    words = f"{step.words} {step.again}"
            if words:
                again = start(words, folder)
                printed, _ = again.communicate()
                if again.returncode != 0:
                    print(f"{name}, {kind}, {moment}: {words}\n{printed[-1500:]}", file=sys.stderr)
            same = all(
                (folder / out).exists() and content(folder / out) == expected[out]
                for out in step.outputs
            )
            row["same again"] += same
            left = [
                entry
                for entry in folder.rglob("*")
                if re.match(r"\.scperformer-|.*\.partial$", entry.name)
            ]
            row["left at the end"] += len(left)
        rows.append((kind, row))
    return rows


COLUMNS = (
    "sent",
    "ended before",
    "exit code",
    "traceback",
    "half",
    "lost or changed",
    "other files",
    "same again",
)
COLUMNS = (*COLUMNS, "left at the end")


def kills(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        inputs = Path(temporary) / "inputs"
        inputs.mkdir()
        make_inputs(inputs)
        print(f"| Command | Signal | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 2)}")
        for name in arguments.only or STEPS:
            for kind, row in try_step(name, inputs, Path(temporary) / "folder", arguments.moments):
                print(
                    f"| {name} | {kind} | {' | '.join(str(row[column]) for column in COLUMNS)} |",
                    flush=True,
                )


NUM_FILES = 6


@cache
def files() -> list[ad.AnnData]:
    """Cells with all genes, for the model itself, and with panels, for which the model is adapted."""
    cells = ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")
    made = []
    for number in range(NUM_FILES):
        genes = (
            np.arange(cells.n_vars)
            if number % 3
            else np.arange(number % 2, cells.n_vars, 2 + number // 2)
        )
        made.append(cells[number * NUM_CELLS : (number + 1) * NUM_CELLS, genes].copy())
    return made


@cache
def model() -> "scperformer.adaptation.fitted.Model":
    return scperformer.load_model()


def annotated(number: int) -> str:
    """Annotate one of the files; return a checksum of everything that is written."""
    cells = scperformer.annotate(files()[number % NUM_FILES].copy(), model())
    text = cells.obs.to_csv() + cells.obsm["scperformer_proba"].to_csv()
    return hashlib.sha256(text.encode() + cells.obsm["X_scperformer"].tobytes()).hexdigest()


def memory() -> float:
    """Memory of this process and its children in MiB."""
    process = psutil.Process()
    return (
        sum(each.memory_info().rss for each in (process, *process.children(recursive=True))) / 2**20
    )


def soak_row(name: str, pool: Executor | None, number: int, expected: list[str]) -> None:
    """Annotate `number` files; print wrong results, seconds, and memory after a sixth, a half and all of them."""
    begin = time.perf_counter()
    wrong = 0
    seen = []
    step = number // 6
    for first in range(0, number, step):
        numbers = range(first, min(first + step, number))
        found = map(annotated, numbers) if pool is None else pool.map(annotated, numbers)
        wrong += sum(
            one != expected[each % NUM_FILES] for each, one in zip(numbers, found, strict=True)
        )
        seen.append(memory())
    seconds = time.perf_counter() - begin
    sizes = " | ".join(f"{seen[place]:.0f}" for place in (0, len(seen) // 2, -1))
    print(f"| {name} | {number} | {wrong} | {seconds:.0f} | {sizes} |", flush=True)


def soak(arguments: argparse.Namespace) -> None:
    number = arguments.number
    expected = [annotated(each) for each in range(NUM_FILES)]
    print(
        "| | Annotations | Other results | Seconds | MiB after a sixth | after a half | at the end |"
    )
    print("|---|---|---|---|---|---|---|")
    soak_row("one after the other", None, number, expected)
    with ThreadPoolExecutor(4) as pool:
        soak_row("4 threads", pool, number, expected)
    for method in ("fork", "spawn"):
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
            soak_row(f"2 processes by {method}", pool, number, expected)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    steps = parser.add_subparsers(required=True)
    step = steps.add_parser("damage", help="random damage of files of cells and models")
    step.set_defaults(run=damage)
    step.add_argument("--number", type=int, default=2000, help="damaged files")
    step.add_argument("--seed", type=int, default=0)
    step.add_argument("--only", type=int, help="the number of one file, to see its error")
    step.add_argument(
        "--kinds", nargs="+", help="kinds of files, by their names in the table; default: all"
    )
    step.add_argument("--source", type=Path, default=SOURCE)
    step = steps.add_parser("forms", help="the same cells in more than 50 formats")
    step.set_defaults(run=forms)
    step.add_argument("--only", default="", help="a part of the names of the forms")
    step = steps.add_parser("kills", help="signals at random moments")
    step.set_defaults(run=kills)
    step.add_argument("--moments", type=int, default=3, help="moments at which each signal is sent")
    step.add_argument("--only", nargs="+", choices=STEPS)
    step = steps.add_parser("soak", help="many annotations in a process, in threads and in pools")
    step.set_defaults(run=soak)
    step.add_argument("--number", type=int, default=300, help="annotations in each row")
    arguments = parser.parse_args()
    be_quiet()
    print(f"{machine()}, h5py {h5py.__version__}, HDF5 {h5py.version.hdf5_version}\n")
    arguments.run(arguments)


if __name__ == "__main__":
    main()
