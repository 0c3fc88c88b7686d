"""Several annotations at once, in threads and processes, give the same results as one after the other."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import anndata as ad
import numpy as np
import pytest
import torch

import scperformer
from scperformer.base.errors import InputError

NUM = 2


@pytest.fixture(scope="module")
def samples(pbmc_counts) -> list[ad.AnnData]:
    """Cells of different genes and depths: each needs its own adapted model."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(NUM):
        genes = np.sort(rng.permutation(pbmc_counts.n_vars)[: 4000 + 1500 * number])
        made.append(pbmc_counts[number * 20 : number * 20 + 40, genes].copy())
    return made


@pytest.fixture(scope="module")
def pbmc_counts() -> ad.AnnData:
    return ad.read_h5ad(Path(__file__).parents[2] / "data" / "pbmc3k.h5ad")[:200].copy()


def confidences(cells: ad.AnnData, model: object) -> np.ndarray:
    return scperformer.annotate(cells.copy(), model).obs["scperformer_confidence"].to_numpy()


@pytest.fixture(scope="module")
def expected(samples) -> list[np.ndarray]:
    """The confidences of one sample after the other."""
    return [confidences(cells, scperformer.load_model()) for cells in samples]


@pytest.mark.slow
def test_threads_with_one_model_adapt_it_to_their_own_files(samples, expected):
    torch.manual_seed(5)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    model = scperformer.load_model()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(partial(confidences, model=model), samples))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_threads_with_layers_of_attention_see_the_genes_of_their_own_file(tiny_model, counts_adata):
    """The encoder of a model is told which genes a file has: here, each thread has another half of them."""
    model = scperformer.load_model(tiny_model)
    parts = [counts_adata[:, number::2].copy() for number in (0, 1)]
    options = {"adapt": "false", "min_overlap": 0}
    annotate = partial(scperformer.annotate, options=options)
    expected = [annotate(cells.copy(), model).obsm["X_scperformer"] for cells in parts]
    with ThreadPoolExecutor(4) as pool:
        found = list(
            pool.map(lambda cells: annotate(cells.copy(), model).obsm["X_scperformer"], parts * 2)
        )
    np.testing.assert_array_equal(found, expected * 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_processes(samples, expected):
    """Of a process that has annotated before, with threads of its own, for which a forked process would wait."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.zeros(10**6).fill_(1)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
        found = list(pool.map(partial(confidences, model=None), samples))
        with pytest.raises(InputError, match=r"no folder at .nowhere"):
            pool.submit(scperformer.load_model, "nowhere").result()
    torch.set_num_threads(threads)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
