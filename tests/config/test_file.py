"""Options from YAML files: of a workflow, and presets of users. They set options, and nothing else."""

import json

import pytest
from support.refusal import refusal

from scperformer.cli.compose import make_config
from scperformer.cli.workflow_config import workflow_options

HOSTILE = {
    "callback": [
        "+hydra.callbacks.x._target_=pandas.read_pickle",
        "+hydra.callbacks.x.filepath_or_buffer=e.pkl",
    ],
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
def test_a_hostile_file_is_refused_and_nothing_runs(case, tmp_path, command):
    (tmp_path / "evil.py").write_text("open('marked', 'w')")
    (tmp_path / "e.pkl").write_bytes(b"cbuiltins\nopen\n(S'marked'\nS'w'\ntR.")
    (tmp_path / "my.yaml").write_text(json.dumps({"overrides": {"train": HOSTILE[case]}}))
    ran = command("workflow", "--config", "my.yaml")
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith("error: my.yaml: overrides: train")
    assert len(ran.err.splitlines()) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.pkl", "evil.py", "my.yaml"]


@pytest.mark.parametrize(
    "content",
    ["a: [", "!!python/object/apply:os.system [ls]", "a: &a [1]\nb: *a", "\xff\xfe", None],
)
def test_files_that_are_no_plain_yaml_are_refused(content, tmp_path, command):
    if content is not None:
        (tmp_path / "my.yaml").write_text(content, encoding="latin-1")
    ran = command("workflow", "--config", "my.yaml")
    assert ran.code == 2
    assert ran.err.splitlines()[-1].startswith("error: my.yaml cannot be read (")


@pytest.mark.parametrize(
    "options", [["tissue=${oc.env:HOME}"], {"tissue": "${oc.env:HOME}"}], ids=["words", "mapping"]
)
def test_nothing_is_put_in_place_of_a_text_of_a_file(options):
    _, words = workflow_options({"overrides": {"train": options}})
    assert (
        make_config("train", ["inputs=[a]", "label_key=x", *words["train"]]).tissue
        == "${oc.env:HOME}"
    )


def test_presets_that_choose_each_other_are_refused(tmp_path):
    for group, other in (("head", "tokens"), ("tokens", "head")):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(f"{other}: mine")
    with refusal("preset-conflict"):
        make_config("train", ["inputs=[a]", "label_key=x", "head=mine"], tmp_path)


PRESETS = {
    "Hydra": "hydra: {callbacks: {x: {_target_: os.system}}}",
    "target": "model: {_target_: os.system}",
    "launcher of Hydra": "hydra/launcher: submitit_local",
    "another file": "head: /etc/passwd",
    "defaults": "defaults: [/etc/passwd]",
    "tag": "tissue: !!python/object/apply:os.system [touch marked]",
    "alias": "a: &a [1]\nb: *a",
    "class of a file": "attention: {name: 'evil:Mechanism'}",
    "class of a file by its full name": "attention.name: 'evil:Mechanism'",
    "class of a file in a list": "attention: ['evil:Mechanism']",
    "class of a file as a name": "attention: {name: ['evil:Mechanism']}",
    "options in a group": "model: {depth: 2}",
    "choice of a class": "attention: 'evil:Mechanism'",
    "flag": "--plugin: evil.py",
    "list": "[1, 2]",
}


@pytest.mark.parametrize("case", PRESETS)
@pytest.mark.parametrize("step", ["train", "bench"])
def test_a_hostile_preset_is_refused_and_nothing_runs(case, step, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(PRESETS[case])
    (tmp_path / "own" / "train_schema.yaml").write_text(
        "hydra: {callbacks: {x: {_target_: os.system}}}"
    )
    (tmp_path / "evil.py").write_text("open('marked', 'w')")
    ran = command(step, "a.h5ad", "label_key=x", "experiment=mine", "--config-dir", "own")
    assert ran.code == 2, ran.err
    assert len([line for line in ran.err.splitlines() if line.startswith("error: ")]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil.py", "own"]


def test_presets_of_hydra_in_the_users_folder_are_not_read(tmp_path, monkeypatch, command):
    """They would go before those of installed launchers, and so could call anything."""
    monkeypatch.chdir(tmp_path)
    marked = "{x: {_target_: builtins.open, file: marked, mode: w}}"
    for name in (
        "hydra/launcher/basic",
        "hydra/callbacks/default",
        "train_schema",
        "quiet",
        "train",
        "model/tiny",
    ):
        (tmp_path / "own" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "own" / f"{name}.yaml").write_text(f"hydra: {{callbacks: {marked}}}")
    command("bench", "a.h5ad", "label_key=x", "model=tiny", "--config-dir", "own")
    record = next((tmp_path / "bench").glob("*/run.json")).read_text()
    assert "no file a.h5ad" in record
    assert not (tmp_path / "marked").exists()
