"""The calls of a block of cells by a model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix

from scperformer.cells import Query
from scperformer.config import PredictConfig
from scperformer.network import Cells, Model, choose_device, predict_cells, torch_state_kept
from scperformer.trust import Profile, cell_draws


@dataclass
class Calls:
    """The calls of N cells: C labels, embedding width D."""

    proba: np.ndarray  # float32 N x C, each row sums to 1
    embedding: np.ndarray  # float32 N x D; float64 if it is the scores of an imported model
    baseline: np.ndarray  # int32 N, index of the label by logistic regression; -1 without it
    empty: np.ndarray  # bool N, True for a cell that expresses none of the model's genes
    scores: np.ndarray  # float64 N, novelty scores (trust/novelty.py); NaN if the model has no held-out calls
    draws: np.ndarray  # float64 N, 0 to 1, the random parts of sets of labels (trust/conformal.py)
    by_encoder: np.ndarray  # bool N, True if the linear branch alone gives another label; False with a single branch


# Returns the calls of all cells of a file, block by block in the order of the cells. It can be called repeatedly: a
# file's calls are read from disk each time, so that they are never in memory as a whole.
Read = Callable[[], Iterable[Calls]]


def call_block(
    x: csr_matrix, model: Model, cfg: PredictConfig, query: Query, done: Callable[[int], None] | None = None
) -> Calls:
    """Call aligned cells of a file; the calls of a cell do not depend on the other cells.

    Parameters
    ----------
    x
        Expression, ln(1 + cp10k), N cells x G genes of the model.
    done
        Called with the number of cells of each finished batch.

    Raises
    ------
    InputError
        A cell has more tokens than the model's attention takes.
    """
    cells = Cells(x, model.tokens, measured=query.measured)
    model.network.require_length(int(cells.lengths.max(initial=0)), f"a cell of {query.path}")
    with torch_state_kept(cfg.threads):
        device = choose_device(cfg.device, cfg.precision)
        predicted = predict_cells(model.network, cells, cfg.batch_size, device, cfg.precision, done)
    baseline = np.full(x.shape[0], -1, dtype=np.int32)
    if model.baseline is not None:
        baseline = model.baseline.predict(x).astype(np.int32)
    held_out = model.saved.held_out
    scores = np.full(x.shape[0], np.nan)
    if held_out is not None:
        scores = Profile(**held_out.profile).scores(x)
    return Calls(
        predicted.proba,
        predicted.embedding,
        baseline,
        np.diff(x.indptr) == 0,
        scores,
        cell_draws(x),
        predicted.by_encoder,
    )
