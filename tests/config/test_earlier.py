"""Options and presets of earlier versions: the names of today, constants, and what a sweep hands to Hydra."""

import logging

import pytest

from scperformer.base.errors import InputError
from scperformer.config import make_config
from scperformer.config.earlier import CARD_TABLES, CONSTANTS, RENAMED
from scperformer.config.sweeps import words_for_hydra

TRAIN = ["inputs=[a.h5ad]", "label_key=x"]
STEPS = {"conformal": "predict", "num_draws": "analyze"}  # train has the others


@pytest.fixture(autouse=True)
def _warnings(caplog):
    caplog.set_level(logging.WARNING, logger="scperformer")


def test_an_old_name_sets_the_new_option_and_is_named(caplog):
    cfg = make_config("train", [*TRAIN, "model.wide=false", "model.wide_powers=[1.0]"])
    assert (cfg.model.linear, cfg.model.linear_powers) == (False, [1.0])
    assert "the option model.wide is called model.linear now" in caplog.text


def test_old_names_are_not_options_of_today():
    train, pretrain = make_config("train", TRAIN), make_config("pretrain", ["inputs=[a.h5ad]"])
    for name in (*RENAMED, *CONSTANTS):
        group, _, option = name.partition(".")
        for cfg in (train, pretrain):
            place = getattr(cfg, group, None) if option else cfg
            assert name in STEPS or not hasattr(place, option or group), name


def test_an_old_preset_is_the_one_of_today(caplog):
    assert make_config("train", [*TRAIN, "model=coexpression"]) == make_config("train", [*TRAIN, "model=pooled"])
    assert "the preset model=coexpression is called model=pooled now" in caplog.text


@pytest.mark.parametrize("name", sorted(CONSTANTS.keys() - STEPS.keys() - {"masking.class_weights"}))
def test_a_constant_can_be_named_with_its_value_alone(name, caplog):
    step = "pretrain" if name.startswith("masking.") else "train"
    words = ["inputs=[a.h5ad]"] if step == "pretrain" else TRAIN
    value = str(CONSTANTS[name][0]).lower()
    assert make_config(step, [*words, f"{name}={value}"]) == make_config(step, words)
    assert f"{name}={value} can be left out" in caplog.text
    with pytest.raises(InputError, match=rf"{name}=7; expected {name}={value}, which cannot be changed any more"):
        make_config(step, [*words, f"{name}=7"])


@pytest.mark.parametrize("name", CARD_TABLES)
def test_the_tables_of_the_model_card_are_one_option(name, caplog):
    assert make_config("train", [*TRAIN, f"{name}=true"]).card == "full"
    for value in ("false", "False", "no", "off", "0"):
        assert make_config("train", [*TRAIN, f"{name}={value}"]).card == "short"
    assert f"the option {name} is part of card=full now" in caplog.text


@pytest.mark.parametrize("name", CARD_TABLES)
def test_a_table_of_the_model_card_is_on_or_off(name):
    with pytest.raises(InputError, match=rf"{name}=7; expected true or false"):
        make_config("train", [*TRAIN, f"{name}=7"])


def test_a_sweep_gets_the_current_names_and_values():
    words = [
        "model.wide_powers=[1.0],[0.5,2.0]",
        "model=coexpression,tiny",
        "conditions_table=true,false",
        "estimate=false",
    ]
    expected = ["model.linear_powers=[1.0],[0.5,2.0]", "model=pooled,tiny", "card=full,short"]
    assert words_for_hydra("train", [*TRAIN, *words], None) == [*TRAIN, *expected]
    assert words_for_hydra("train", [*TRAIN, "novelty_table=true"], None) == [*TRAIN, "card=full"]
    assert words_for_hydra("train", [*TRAIN, "novelty_table=false"], None) == TRAIN


def test_presets_of_users_may_hold_old_names(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nmodel:\n  deep: false\n  activation: gelu\n"
    )
    assert not make_config("train", [*TRAIN, "experiment=mine"], tmp_path).model.encoder


@pytest.mark.slow
def test_a_sweep_takes_old_names(command, counts_adata, write, tmp_path):
    reference = write(counts_adata, "reference.h5ad")
    words = ["train", reference, "label_key=cell_type", "experiment=linear", "logger=none", "data.min_genes=0"]
    ran = command(*words, "-m", "model.wide_powers=[1.0],[0.5,2.0]", "optim.wide_c=0.1", "hydra.sweep.dir=sweep")
    assert ran.code == 0, ran.err
    assert "2 runs, 0 failed" in ran.out
