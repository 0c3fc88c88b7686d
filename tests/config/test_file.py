"""Options from a YAML file in the format of the workflow."""

import logging

import pytest

from scperformer.cli import to_overrides
from scperformer.config import make_config
from scperformer.errors import InputError

CONFIG = """
reference: my reference.h5ad
samples: samples.tsv
label_key: cell type
model_path: my_model
overrides:
  train: {seed: 3, trainer.max_epochs: 4, tissue: "blood, of = me", label_tree: null}
  predict: [min_confidence=0.1, "deny_labels=[DC,Platelet]"]
"""


@pytest.fixture
def file(tmp_path) -> str:
    (tmp_path / "my.yaml").write_text(CONFIG)
    return str(tmp_path / "my.yaml")


def test_options_of_the_step_are_read_and_named(file, caplog):
    with caplog.at_level(logging.INFO, "scperformer"):
        cfg = make_config("train", to_overrides(["--config", file], "train"))
    assert (cfg.inputs, cfg.label_key, cfg.seed) == (["my reference.h5ad"], "cell type", 3)
    assert (cfg.trainer.max_epochs, cfg.tissue) == (4, "blood, of = me")
    assert f"{file}: my reference.h5ad label_key='cell type' seed=3" in caplog.text
    cfg = make_config("predict", to_overrides(["a.h5ad", "--config", file], "predict"))
    assert (cfg.inputs, cfg.model_path, cfg.min_confidence, cfg.deny_labels) == (
        ["a.h5ad"],
        "my_model",
        0.1,
        ["DC", "Platelet"],
    )


def test_the_command_line_goes_before_the_file(file):
    words = ["other.h5ad", "--config", file, "seed=1", "label_key=type"]
    cfg = make_config("train", to_overrides(words, "train"))
    assert (cfg.inputs, cfg.label_key, cfg.seed, cfg.trainer.max_epochs) == (["other.h5ad"], "type", 1, 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("overides: {}", "'overides'; expected one of reference, .*: did you mean 'overrides'"),
        ("overrides: {predct: {}}", "overrides: 'predct'; .*: did you mean 'predict'"),
        ("overrides: {predict: {trainer: {seed: 1}}}", "overrides: predict; expected options by their names"),
        ("overrides: {predict: [alpha]}", "overrides: predict; expected options by their names"),
        ("- alpha", "no mapping of names to values"),
        ("a: [", "cannot be read"),
        ("!!python/object/apply:os.system [ls]", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_wrong_files_are_refused(tmp_path, content, message):
    path = tmp_path / "my.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=message):
        to_overrides(["--config", str(path)], "predict")


def test_the_value_of_the_flag_is_needed():
    with pytest.raises(InputError, match="--config without a value"):
        to_overrides(["--config"], "predict")
