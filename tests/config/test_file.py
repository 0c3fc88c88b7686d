"""Options from a YAML file in the format of the workflow."""

import json
import logging

import pytest

from scperformer.base.errors import InputError
from scperformer.cli.compose import make_config
from scperformer.cli.words import to_overrides

CONFIG = """
reference: my reference.h5ad
sample_sheet: samples.tsv
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
        ("overides: {}", "'overides'; expected one of sample_sheet, .*: did you mean 'overrides'"),
        ("overrides: {predct: {}}", "overrides: 'predct'; .*: did you mean 'predict'"),
        ("overrides: {predict: {trainer: {seed: 1}}}", "overrides: predict; expected options by their names"),
        ("overrides: {predict: [alpha]}", "overrides: predict; expected options by their names"),
        ("- alpha", "no mapping of names to values"),
        ("a: [", "cannot be read"),
        ("!!python/object/apply:os.system [ls]", "cannot be read"),
        (None, "cannot be read"),
        ("overrides: {predict: {alpha: 1, alpha: 2}}", "'alpha' twice"),
        ("a: &a [1]\noverrides: *a", r"cannot be read \(an alias, \*a"),
        ("a: &a [x,x]\nb: &b [*a,*a,*a]\nc: [*b,*b,*b]", "an alias"),
        ("overrides: {predict: {alpha: !!binary aGk=}}", "cannot be read .could not determine a constructor"),
        ("overrides: {predict: {alpha: !!set {a, b}}}", "cannot be read .could not determine a constructor"),
        ("overrides: {predict: {deny_labels: [[a]]}}", "deny_labels, a value of type list; expected a text, a number"),
        ("overrides: " + 30 * "[", "more than 20 lists or mappings in each other"),
        ("overrides: " + 30 * "{a: ", "more than 20 lists or mappings in each other"),
        ("#" + (2**20) * "x", "more than 1,048,576 bytes"),
        ("\xff\xfe", "cannot be read"),
    ],
)
def test_wrong_files_are_refused(tmp_path, content, message):
    path = tmp_path / "my.yaml"
    if content is not None:
        path.write_text(content, encoding="latin-1")
    with pytest.raises(InputError, match=message):
        to_overrides(["--config", str(path)], "predict")


def test_the_value_of_the_flag_is_needed():
    with pytest.raises(InputError, match="--config without a value"):
        to_overrides(["--config"], "predict")


# A file from elsewhere sets options of the step, and nothing else.

HOSTILE = {
    "callback": ["+hydra.callbacks.x._target_=pandas.read_pickle", "+hydra.callbacks.x.filepath_or_buffer=e.pkl"],
    "callback in a mapping": {"+hydra.callbacks.x._target_": "os.system"},
    "launcher": ["hydra/launcher=submitit_local"],
    "setup of a launcher": {"hydra.launcher.setup": ["touch marked"]},
    "folder of Hydra": ["hydra.run.dir=elsewhere"],
    "search path": ["hydra.searchpath=[file:///tmp]"],
    "logging": {"hydra.job_logging.handlers.x.()": "os.system"},
    "target": {"_target_": "os.system"},
    "target in a group": {"model._target_": "os.system"},
    "target of the mechanism": {"attention._target_": "os.system"},
    "nested target": {"attention": {"_target_": "os.system"}},
    "added": ["+seed=3"],
    "added by force": ["++seed=3"],
    "removed": ["~seed=3"],
    "package": ["model@hydra.callbacks=tiny"],
    "sweep": ["seed=1,2"],
    "class of a file": ["attention=evil:Mechanism"],
    "class of a file by its name": {"attention.name": "evil:Mechanism"},
    "class of a file in a list": {"attention": ["evil:Mechanism"]},
    "class of a file in a word with a list": ["attention=[evil:Mechanism]"],
    "file by the flag": {"--plugin": "evil.py"},
    "file by the flag in a word": ["--plugin=evil.py"],
    "option called plugin": {"plugin": "evil.py"},
    "source of the mechanism": {"attention.source": "evil.py"},
    "preset elsewhere": {"model": "../../evil"},
    "flag": ["--config-dir=."],
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("flags", [(), ("-m", "seed=1,2"), ("--config-dir", "."), ("--cfg", "hydra")], ids=" ".join)
def test_a_hostile_file_is_refused_and_nothing_runs(case, flags, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('marked', 'w')")
    (tmp_path / "e.pkl").write_bytes(b"cbuiltins\nopen\n(S'marked'\nS'w'\ntR.")
    (tmp_path / "my.yaml").write_text(json.dumps({"overrides": {"train": HOSTILE[case]}}))
    ran = command("train", "a.h5ad", "label_key=x", "--config", "my.yaml", *flags)
    assert ran.code == 2
    lines = [line for line in ran.err.splitlines() if not line.startswith("scperformer train")]
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("error: my.yaml: overrides: train")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.pkl", "evil.py", "my.yaml"]


def test_a_date_is_a_text(tmp_path):
    (tmp_path / "my.yaml").write_text("overrides: {train: {tissue: 2026-11-26}}")
    words = to_overrides(["a.h5ad", "label_key=x", "--config", str(tmp_path / "my.yaml")], "train")
    assert make_config("train", words).tissue == "2026-11-26"


@pytest.mark.parametrize("words", ["['tissue=${oc.env:HOME}']", "{tissue: '${oc.env:HOME}'}"])
def test_nothing_is_put_in_place_of_a_text_of_a_file(words, tmp_path):
    (tmp_path / "my.yaml").write_text(f"overrides: {{train: {words}}}")
    words = to_overrides(["a.h5ad", "label_key=x", "--config", str(tmp_path / "my.yaml")], "train")
    assert make_config("train", words).tissue == "${oc.env:HOME}"


PRESETS = {
    "Hydra": "# @package _global_\nhydra: {callbacks: {x: {_target_: os.system}}}",
    "Hydra as package": "# @package hydra\ncallbacks: {x: {_target_: os.system}}",
    "target": "# @package _global_\nmodel: {_target_: os.system}",
    "defaults of Hydra": "# @package _global_\ndefaults: [{override /hydra/launcher: submitit_local}]",
    "another file": "# @package _global_\ndefaults: [/etc/passwd]",
    "tag": "# @package _global_\ntissue: !!python/object/apply:os.system [touch marked]",
    "alias": "# @package _global_\na: &a [1]\nb: *a",
    "class of a file": "# @package _global_\nattention: {name: 'evil:Mechanism'}",
    "class of a file by its full name": "# @package _global_\nattention.name: 'evil:Mechanism'",
    "class of a file in a list": "# @package _global_\nattention: ['evil:Mechanism']",
    "class of a file as a name": "# @package _global_\nattention: {name: ['evil:Mechanism']}",
    "mechanism as a text": "# @package _global_\nattention: evil:Mechanism",
    "choice of a class": "# @package _global_\ndefaults: [{override /attention: 'evil:Mechanism'}]",
    "flag": "# @package _global_\n--plugin: evil.py",
    "list": "[1, 2]",
}


@pytest.mark.parametrize("case", PRESETS)
@pytest.mark.parametrize("flags", [(), ("-m", "seed=1,2"), ("--cfg", "job"), ("--cfg", "hydra")], ids=" ".join)
def test_a_hostile_preset_is_refused_and_nothing_runs(case, flags, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(PRESETS[case])
    (tmp_path / "own" / "train_schema.yaml").write_text("hydra: {callbacks: {x: {_target_: os.system}}}")
    (tmp_path / "evil.py").write_text("open('marked', 'w')")
    ran = command("train", "a.h5ad", "label_key=x", "experiment=mine", "--config-dir", "own", *flags)
    assert ran.code == 2, ran.err
    assert len([line for line in ran.err.splitlines() if line.startswith("error: ")]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.py", "own"]


def test_presets_of_hydra_in_the_users_folder_are_not_read(tmp_path, monkeypatch, command):
    """They would go before those of installed launchers, and so could call anything."""
    monkeypatch.chdir(tmp_path)
    marked = "{x: {_target_: builtins.open, file: marked, mode: w}}"
    for name in ("hydra/launcher/basic", "hydra/callbacks/default", "train_schema", "quiet", "train", "model/tiny"):
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / f"{name}.yaml").write_text(f"# @package _global_\nhydra: {{callbacks: {marked}}}")
    ran = command("train", "a.h5ad", "label_key=x", "model=tiny", "--config-dir", "own", "-m", "seed=1")
    assert "error: no file a.h5ad" in ran.err
    assert not (tmp_path / "marked").exists()
