"""What is said of epochs, and that a resumed run goes on with the table of the one that was cut off."""

import pytest

from scperformer.config.compose import make_config
from scperformer.training.epochs import log_time_left
from scperformer.training.history import read_history
from scperformer.training.learner import Learner
from scperformer.training.train import run_train


@pytest.mark.parametrize(("num", "text"), [(1, "1 more epoch of 90"), (29, "29 more epochs of 90"), (0, "")])
def test_time_left(num, text, caplog):
    with caplog.at_level("INFO", logger="scperformer"):
        log_time_left(num, 90)
    assert text.replace("90", "1 min 30 s") in caplog.text
    assert bool(caplog.text) == bool(num)


def test_a_resumed_run_goes_on_with_the_table(counts_adata, write, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(self, batch, batch_idx):
        if self.current_epoch == 2:
            raise Killed
        return original(self, batch, batch_idx)

    options = ["label_key=cell_type", "data.min_genes=0", "logger=none", "trainer.max_epochs=4", f"output={tmp_path}/m"]
    options.append(f"inputs=['{write(counts_adata)}']")
    original = Learner.training_step
    monkeypatch.setattr(Learner, "training_step", killed)
    with pytest.raises(Killed):
        run_train(make_config("train", options))
    first = read_history(tmp_path / "m.run")
    assert [epoch["epoch"] for epoch in first] == [1, 2]
    monkeypatch.setattr(Learner, "training_step", original)
    run_train(make_config("train", [*options, "resume=true"]))
    for folder in ("m", "m.run"):
        epochs = read_history(tmp_path / folder)
        assert [epoch["epoch"] for epoch in epochs] == [1, 2, 3, 4]
        assert epochs[:2] == first
