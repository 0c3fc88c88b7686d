"""Small seeded data for all tests."""

import gc
import logging
import os
import signal
import subprocess
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy
import torch
from scipy import sparse
from support.inputs import small_cells
from support.words import as_options

from scperformer.base import parallel
from scperformer.fits.linear import LinearOptions

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which parts of torch do

from scperformer.fits.choose_linear import choose_linear_options
from scperformer.training import strategies  # after that

# Ignored in the background of a script, or under nohup; commands under test would inherit it.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# most tests are of one model; those of tissues delete it
os.environ["SCPERFORMER_MODEL"] = "pbmc3k"

# minutes each
LONG = ("test_wheel", "test_docs", "test_workflow", "test_app", "test_r", "test_fuzz")
NUM_CELLS, NUM_GENES = 120, 200
LABELS = ("B cell", "T cell", "Monocyte")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that no process of xdist waits for another at the end."""
    items.sort(key=lambda item: item.path.stem not in LONG)


QUICK_OPTIONS = LinearOptions((0.5, 2.0), c=0.1, class_weights="none", weighting="standard")


@pytest.fixture(scope="module", autouse=True)
def _fast_garbage_collection() -> None:
    """Leave out the libraries and what earlier tests keep: to look through all of it takes a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _quick_linear_options() -> Iterator[None]:
    """Leave out the cross-validation that chooses the options of the linear branch: most tests are about others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategies, "choose_linear_options", lambda *_, **__: QUICK_OPTIONS)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Leave out what only a power failure needs: on a busy disk it is most of the time of a small training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _no_block_left_open() -> Iterator[None]:
    """Fail a test after which products stay limited to one thread: a generator was not closed."""
    yield
    if parallel._blas_of_all.num_blocks:
        gc.collect()
    assert parallel._blas_of_all.num_blocks == 0


@pytest.fixture(autouse=True)
def _chosen_linear_options(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose the options of the linear branch in tests with the mark `chosen_linear_options`."""
    if request.node.get_closest_marker("chosen_linear_options"):
        monkeypatch.setattr(strategies, "choose_linear_options", choose_linear_options)


@pytest.fixture(autouse=True)
def _logging_unchanged() -> Iterator[None]:
    """Put back the logging of the package: the command line, the benchmarks and helping processes change it."""
    logger = logging.getLogger("scperformer")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)  # not `level =`: the loggers below remember what it was


@pytest.fixture(scope="session")
def _pbmc() -> ad.AnnData:
    return scanpy.datasets.pbmc68k_reduced()


@pytest.fixture
def pbmc(_pbmc) -> ad.AnnData:
    """700 PBMC, 765 genes: scaled X, log-normalised raw, 10 labels in obs.bulk_labels; a fresh copy."""
    return _pbmc.copy()


def make_counts() -> ad.AnnData:
    """120 cells x 200 genes of negative binomial counts (CSR), 40 cells of each of 3 labels in obs.cell_type.

    Each label expresses 30 genes of its own five times as strongly.
    """
    rng = np.random.default_rng(0)
    label_of_cell = np.arange(NUM_CELLS) % len(LABELS)
    mean = np.tile(rng.gamma(2.0, 1.0, NUM_GENES), (NUM_CELLS, 1))
    for label in range(len(LABELS)):
        mean[np.ix_(label_of_cell == label, np.arange(30 * label, 30 * label + 30))] *= 5
    depth = rng.uniform(0.5, 2.0, (NUM_CELLS, 1))
    dispersion = 2.0
    counts = rng.negative_binomial(dispersion, dispersion / (dispersion + mean * depth))
    return ad.AnnData(
        sparse.csr_matrix(counts, dtype=np.float32),
        obs=pd.DataFrame(
            {"cell_type": pd.Categorical(np.array(LABELS)[label_of_cell])},
            index=[f"cell{i}" for i in range(NUM_CELLS)],
        ),
        var=pd.DataFrame(index=[f"GENE{i}" for i in range(NUM_GENES)]),
    )


@pytest.fixture
def counts_adata() -> ad.AnnData:
    """The cells of `make_counts`; a fresh copy."""
    return make_counts()


@pytest.fixture
def cells() -> ad.AnnData:
    """30 cells x 60 genes of `inputs.small_cells`, which writes them as every kind of input; a fresh copy."""
    return small_cells()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder trained on the cells of `make_counts` for one epoch; tests that change it copy it first.

    Its encoder is used even if its gain is not significant: tests are to see what it does. It has no label tree, like
    models of earlier versions.
    """
    from scperformer.cli.compose import make_config
    from scperformer.cli.train import run as run_train

    reference = tmp_path_factory.mktemp("tiny_model") / "reference.h5ad"
    make_counts().write_h5ad(reference)
    options = ["label_key=cell_type", "model=tiny", "trainer.max_epochs=1", "logger=none"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scperformer.fits.scales.MIN_GAIN", -np.inf)
        patch.setattr("scperformer.training.strategies.MIN_ERRORS", 0.0)
        return run_train(
            make_config("train", [f"inputs=['{reference}']", "ontology=none", *options])
        )


@pytest.fixture(scope="session")
def pbmc_model(_pbmc, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder trained on the cells and the 765 genes of `pbmc`; it keeps no more than a cell of each label."""
    import scperformer

    options = ["experiment=linear", "keep_cells=1", "logger=none"]
    return scperformer.train(
        _pbmc.copy(),
        "bulk_labels",
        output=tmp_path_factory.mktemp("pbmc_model") / "pbmc",
        options=as_options(options),
    ).path


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write an AnnData into the test's folder and give its path: `write(adata, "sample.h5ad")`."""

    def write_file(adata: ad.AnnData, name: str = "sample.h5ad") -> Path:
        path = tmp_path / name
        adata.write_h5ad(path)
        return path

    return write_file


@pytest.fixture
def torch_unchanged() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """A block after which torch must have as many threads, and draw the same numbers, as before."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(3)  # neither our default nor a machine's usual number of cores

    @contextmanager
    def unchanged() -> Iterator[None]:
        state = torch.get_rng_state()
        yield
        assert torch.get_num_threads() == 3
        assert torch.equal(torch.get_rng_state(), state)

    yield unchanged
    torch.set_num_threads(threads)


@dataclass
class Ran:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(tmp_path, monkeypatch, capsys, _logging_unchanged) -> Callable[..., Ran]:
    """Run the command line in this process, inside the test's folder: `command("predict", "sample.h5ad")`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCPERFORMER_DEBUG", raising=False)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "")  # main sets it: this puts it back
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def run(*words: object) -> Ran:
        from scperformer.cli.main import main

        capsys.readouterr()
        code = main([str(word) for word in words])
        return Ran(code, *capsys.readouterr())

    return run


@pytest.fixture
def refused(command, tmp_path):
    """Run a command that must be refused, and return its one line of error."""

    def everything() -> dict[str, bytes]:
        return {
            str(path): path.read_bytes() if path.is_file() else b"" for path in tmp_path.rglob("*")
        }

    def run(*words) -> str:
        before = everything()
        ran = command(*words)
        *logged, error = ran.err.splitlines()
        assert ran.code == 2
        assert error.startswith("error: ")
        assert not [line for line in logged if line.startswith(("error", "Error", "Traceback"))]
        found, _, rest = error.partition("; expected ")
        assert found
        assert ": " in rest, "no remedy"
        assert everything() == before
        return error

    return run


@pytest.fixture(scope="session")
def slurm() -> Iterator[None]:
    """A Slurm of two nodes, node1 and node2, with the partition `short`; skipped where it cannot be had."""
    scripts = Path(__file__).parent / "slurm"
    started = subprocess.run([scripts / "start"], capture_output=True, text=True)
    if started.returncode == 3:
        pytest.skip(started.stderr.strip())
    assert started.returncode == 0, started.stderr
    yield
    subprocess.run([scripts / "stop"], check=True)


@pytest.fixture(scope="session")
def _few_pbmc() -> ad.AnnData:
    cells = ad.read_h5ad(Path(__file__).parents[1] / "data" / "pbmc3k.h5ad")[::44].copy()
    cells.obs, cells.uns = cells.obs[["cell_type"]], {}
    return cells


@pytest.fixture
def few_pbmc(_few_pbmc) -> ad.AnnData:
    """60 cells of PBMC 3k with 13,714 genes, counts; a fresh copy."""
    return _few_pbmc.copy()


@pytest.fixture
def raw_pbmc(few_pbmc) -> ad.AnnData:
    """The cells of `few_pbmc` among 600 droplets without a cell, in a random order; `obs.is_cell` tells them."""
    rng = np.random.default_rng(1)
    ambient = np.asarray(few_pbmc.X.sum(axis=0)).ravel().astype(float)
    totals = rng.choice([0, 1, 1, 2, 2, 3, 5, 10, 60], 600)
    empty = sparse.csr_matrix(
        np.stack([rng.multinomial(total, ambient / ambient.sum()) for total in totals])
    )
    names = [*few_pbmc.obs_names, *(f"EMPTY{i}-1" for i in range(600))]
    obs = pd.DataFrame({"is_cell": np.arange(len(names)) < few_pbmc.n_obs}, index=names)
    x = sparse.vstack([few_pbmc.X, empty], "csr").astype(np.float32)
    return ad.AnnData(x, obs=obs, var=few_pbmc.var.copy())[rng.permutation(len(names))].copy()


@pytest.fixture
def cite_pbmc(few_pbmc) -> ad.AnnData:
    """The cells of `few_pbmc` with the counts of 4 antibodies, two named as genes, as scanpy reads 10x files."""
    antibodies = np.random.default_rng(2).poisson(400, (few_pbmc.n_obs, 4))
    x = sparse.hstack([few_pbmc.X, sparse.csr_matrix(antibodies)], "csr").astype(np.float32)
    kinds = ["Gene Expression"] * few_pbmc.n_vars + ["Antibody Capture"] * 4
    names = [*few_pbmc.var_names, "CD3", "CD4", "CD14", "IgG1"]
    return ad.AnnData(
        x, obs=few_pbmc.obs.copy(), var=pd.DataFrame({"feature_types": kinds}, index=names)
    )


@pytest.fixture
def rich(counts_adata):
    """An AnnData that uses every place: X, layers, raw, obs of many types, obsm, obsp, varm, uns."""
    adata = counts_adata
    rng = np.random.default_rng(2)
    adata.raw = adata.copy()
    adata.layers["counts"] = adata.X.astype(np.int32)
    adata.layers["dense"] = rng.normal(size=adata.shape)
    adata.obs["score"] = rng.normal(size=adata.n_obs)
    adata.obs["flag"] = rng.random(adata.n_obs) < 0.5
    adata.obs["text"] = [f"t{i}" for i in range(adata.n_obs)]
    adata.obs["ordered"] = pd.Categorical(["low"] * adata.n_obs, ["low", "unused"], ordered=True)
    adata.obs["maybe"] = pd.array([True, None] * (adata.n_obs // 2), dtype="boolean")
    adata.obsm["X_umap"] = rng.normal(size=(adata.n_obs, 2))
    adata.varm["PCs"] = rng.normal(size=(adata.n_vars, 3))
    adata.obsp["distances"] = adata.X @ adata.X.T
    adata.uns["nested"] = {"a": {"b": np.arange(3)}, "text": "x"}
    return adata


@pytest.fixture(scope="session")
def pbmc3k() -> ad.AnnData:
    """1,000 PBMC x 13,714 genes of counts; tests that change them copy them first."""
    return ad.read_h5ad(Path(__file__).parents[1] / "data" / "pbmc3k.h5ad")[:1000].copy()
