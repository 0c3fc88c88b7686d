"""Outcomes of damaged files of cells and models: each file has one kind of damage, drawn at random.

    python benchmarks/damage.py                        # 2,000 files, every tenth by the command line
    python benchmarks/damage.py --number 100 --seed 10
    python benchmarks/damage.py --only 173             # only this file, with its error
    python benchmarks/damage.py --number 1000 --kinds "CellTypist .pkl"

The files hold cells of PBMC 3k, the packaged model, or a model as CellTypist writes it. A damage changes up to 4,096
bytes of a region (other bytes, zeros, ones), or truncates the file there. Every file is read, annotated or imported in
a process of its own, limited to 60 s of CPU time and 4 GiB of memory, and ended if it starts a program or opens a
connection. The result is compared with that of the undamaged file (a model of CellTypist always differs: it records the
checksum of its file); "after the look" are errors of files/hdf5_guard.py.
"""

import argparse
import contextlib
import functools
import hashlib
import io
import os
import pickle
import pickletools
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import anndata as ad
import h5py
import numpy as np
import zarr
from machine import machine
from scipy import sparse

from scperformer.base import errors
from scperformer.command import cli
from scperformer.files import Rows, open_cells, read_cells
from scperformer.files.safety import READ_ERRORS
from scperformer.importing import import_model
from scperformer.model import PACKAGED_MODEL, read_model

NUM_CELLS = 200  # cells of PBMC 3k
GENE_STEP = 10  # every tenth of its genes
SECONDS = 60  # CPU seconds of a process
MEMORY = 4 * 2**30  # bytes of a process
COMMAND_STEP = 10  # one of so many files is read by a command
ENDINGS = (".h5ad", ".csv", ".zarr")  # of its outputs, in turn
SAME = "as before"
OTHER = "other values"
REFUSED = "one line of error"
WATCHED = "one line after the look"
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
OF_THE_LOOK = (
    "does not come to an end",
    "crashes the HDF5 library",
    "far more memory",
)  # messages of files/hdf5_guard.py
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
    paths |= {"10x .h5": folder / "tenx.h5", "loom": folder / "cells.loom", "zarr": folder / "cells.zarr"}
    with h5py.File(paths["10x .h5"], "w") as file:
        group = file.create_group("matrix")
        for part in ("data", "indices", "indptr"):
            group.create_dataset(part, data=getattr(stored["csr"], part), chunks=(100,), compression="gzip")
        group["shape"] = adata.shape[::-1]
        group["barcodes"] = adata.obs_names.to_numpy("S")
        names = {"id": adata.var_names, "name": adata.var_names, "feature_type": ["Gene Expression"] * adata.n_vars}
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
        size = int.from_bytes(content[place + 8 : place + 16], "little") if is_heap else 1024  # more or less
        region[place : place + size] = names.index("strings" if is_heap else "indexes")

    def mark(name: str, node: h5py.Dataset | h5py.Group) -> None:
        if not isinstance(node, h5py.Dataset) or not node.id.get_storage_size():
            return
        number = names.index(
            "matrix" if name.split("/")[0] in ("X", "matrix") and node.dtype.kind in "iuf" else "strings"
        )
        if node.chunks is None:
            region[node.id.get_offset() : node.id.get_offset() + node.id.get_storage_size()] = number
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
            regions.setdefault(name, []).append((file.relative_to(path), np.arange(file.stat().st_size)))
    return regions


def write_celltypist(source: Path, path: Path) -> None:
    """Write a model as CellTypist does: a classifier of scikit-learn with its genes, and the scaler before it."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    adata = ad.read_h5ad(source)[:NUM_CELLS, ::GENE_STEP]
    x = np.log1p(sparse.csr_matrix(adata.X).toarray())
    scaler = StandardScaler().fit(x)
    classifier = LogisticRegression(max_iter=20).fit(np.minimum(scaler.transform(x), 10), adata.obs["cell_type"])
    classifier.features = adata.var_names.to_numpy(object)
    content = {"Model": classifier, "Scaler_": scaler, "description": {"version": "v1", "source": "nobody"}}
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


def damage(kind: Kind, folder: Path, rng: np.random.Generator) -> tuple[Path, str]:
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
        return read_model(import_model(path, path.parent / "library")).hash
    adata = read_cells(path)
    for part in (adata.obs.to_csv(), adata.var.to_csv(), sparse.csr_matrix(adata.X).toarray().tobytes()):
        seen.update(part.encode() if isinstance(part, str) else part)
    for place in (adata.obsm, adata.uns, adata.layers):
        seen.update(repr({name: place[name] for name in sorted(place)}).encode())
    with open_cells(path) as cells:
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
    words = ["predict", str(path), f"output={out}", "adapt=false", "min_overlap=0"]
    if is_model:
        words = ["models", "import", str(path), f"output={library}"]
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = cli.main(words)
    lines = [line for line in said.getvalue().splitlines() if line.startswith(("error", "internal", "Traceback"))]
    if code == 2 and len(lines) == 1:
        if sorted(path.parent.iterdir()) != before:
            raise FileExistsError("something was left behind")
        raise errors.InputError(lines[0], "", "")
    if code != 0:
        raise AssertionError(said.getvalue())
    if is_model:
        return read_model(next(library.iterdir())).hash
    if ending == ".csv":
        return hashlib.sha256(out.read_bytes()).hexdigest()
    with h5py.File(out) if ending == ".h5ad" else contextlib.nullcontext(zarr.open_group(out, mode="r")) as file:
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
                by_look = any(text in str(known) for text in OF_THE_LOOK)
                kind = WATCHED if by_look else MEMORY_OUT if "memory ran out" in str(known) else REFUSED
                code = OUTCOMES.index(kind)
            os.write(2, f"{known}\n".encode() if known else traceback.format_exc().encode())
        finally:
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return OUTCOMES[status] if status >= 0 else HANG if -status in (signal.SIGXCPU, signal.SIGKILL) else CRASH


def table(rows: dict[str, Counter[str]]) -> str:
    """Return the numbers of each outcome as Markdown."""
    lines = [f"| | files | {' | '.join(OUTCOMES)} |", f"|---|{'---|' * (len(OUTCOMES) + 1)}"]
    for name, row in {**rows, "all": sum(rows.values(), Counter())}.items():
        lines.append(f"| {name} | {row.total()} | {' | '.join(str(row[outcome]) for outcome in OUTCOMES)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=2000, help="damaged files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one file")
    parser.add_argument("--kinds", nargs="+", help="kinds of files, by their names in the table; default: all")
    parser.add_argument("--source", type=Path, default=Path(__file__).parents[1] / "data" / "pbmc3k.h5ad")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: dict[str, Counter[str]] = {}
    regions: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as name:
        kinds = make_kinds(arguments.source, Path(name))
        kinds = {kind: kinds[kind] for kind in arguments.kinds or kinds}
        log = Path(name) / "log"
        expected: dict[tuple[str, str], str] = {}
        numbers = range(arguments.number) if arguments.only is None else [arguments.only]
        for number in numbers:
            if number % 100 == 0:
                print(f"{number} of {arguments.number}", file=sys.stderr, flush=True)
            kind = list(kinds)[number % len(kinds)]
            step = number // len(kinds)
            ending = "" if step % COMMAND_STEP else ENDINGS[step // COMMAND_STEP % len(ENDINGS)]
            read = functools.partial(run_command, ending=ending) if ending else digest
            with tempfile.TemporaryDirectory(dir=name) as folder:
                if (kind, ending) not in expected:
                    whole = Path(folder) / "whole" / kinds[kind].path.name
                    whole.parent.mkdir()
                    (shutil.copytree if kinds[kind].path.is_dir() else shutil.copyfile)(kinds[kind].path, whole)
                    expected[kind, ending] = read(whole)
                    shutil.rmtree(whole.parent)
                path, what = damage(kinds[kind], Path(folder), np.random.default_rng([arguments.seed, number]))
                found = outcome(path, read, expected[kind, ending], log)
            rows.setdefault(kind, Counter())[found] += 1
            regions.setdefault(what.partition(":")[0], Counter())[found] += 1
            if arguments.only is not None or found not in (SAME, OTHER, REFUSED, WATCHED):
                last = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
                print(
                    f"{number} {kind}, {f'command, {ending}' if ending else 'read'}: {what}: {found}\n{last}",
                    flush=True,
                )
    print(
        f"\n{machine()}, h5py {h5py.__version__}, HDF5 {h5py.version.hdf5_version}\n\n{table(rows)}\n\n{table(regions)}"
    )


if __name__ == "__main__":
    main()
