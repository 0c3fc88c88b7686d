"""`trainer.batch_size=auto`: the largest batch that fits into a GPU, which a resumed run keeps."""

from pathlib import Path

import pytest
import torch

from scperformer.base.errors import InputError
from scperformer.cells.on_disk import Sample
from scperformer.cells.reference import make_reference
from scperformer.cli.compose import make_config
from scperformer.lab import batch_size
from scperformer.lab.batch_size import largest_batch, try_step, with_batch_size
from scperformer.lab.supervised import Learner
from scperformer.model.batches import Cells
from scperformer.training.run_folder import training_run
from scperformer.training.train import new_network
from scperformer.training.trainer import Device

CPU = Device("cpu", "32-true", "")


@pytest.fixture
def trial(counts_adata):
    """A learner, its training cells and options."""
    words = ["inputs=[x]", "label_key=cell_type", "model=tiny", "data.min_genes=0", "trainer.batch_size=auto"]
    cfg = make_config("train", words)
    reference = make_reference(Sample(counts_adata, Path("x")), cfg)
    train = Cells(reference.x, cfg.tokens, reference.labels)
    return Learner(new_network(reference, cfg), train.known_labels, cfg), train, cfg


@pytest.fixture
def memory(monkeypatch):
    """A function that sets the number of cells that fit into the memory of a GPU."""
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share: None)
    original = try_step

    def of(num_cells: int) -> None:
        def limited(learner, train, num, *rest):
            original(learner, train, num, *rest)
            if num > num_cells:
                raise torch.OutOfMemoryError

        monkeypatch.setattr(batch_size, "try_step", limited)

    return of


@pytest.mark.parametrize(("fits", "size"), [(3, 2), (1000, 32)])  # 120 cells have no use for more
def test_the_largest_size_that_fits_is_chosen(trial, memory, fits, size):
    learner, *_ = trial
    before = {name: tensor.clone() for name, tensor in learner.network.state_dict().items()}
    state = torch.get_rng_state()
    memory(fits)
    assert largest_batch(*trial, CPU) == size
    assert all(torch.equal(tensor, before[name]) for name, tensor in learner.network.state_dict().items())
    assert all(parameter.grad is None for parameter in learner.network.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_memory_too_small_for_one_cell_is_refused(trial, memory):
    memory(0)
    with pytest.raises(
        InputError, match=r"one cell of \d+ tokens, which needs more memory; .*: choose a smaller model"
    ):
        largest_batch(*trial, CPU)


def test_a_run_records_the_size_and_keeps_it_when_resumed(trial, tmp_path, monkeypatch):
    learner, train, cfg = trial
    with training_run(cfg, tmp_path / "m", []) as run:
        assert with_batch_size(cfg, train, learner, run).trainer.batch_size == 32  # on a CPU
        run.remember(batch_size=8)
        assert with_batch_size(cfg, train, learner, run).trainer.batch_size == 8
