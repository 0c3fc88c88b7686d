"""No file of options, preset, sheet or model imports a module: a hundred hostile files, watched by Python itself."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from itertools import product
from pathlib import Path

import pytest

WATCHED = Path(__file__).parents[1] / "support" / "watched.py"
EVIL = "open('marked', 'w').close()\n\nclass Cls:\n    Options = dict\n"
# What stands in place of a value, as YAML.
PAYLOADS = {
    "a class": '"evil:Cls"',
    "a file": "evil.py",
    "a list": '["evil:Cls"]',
    "a target": "{_target_: evil.Cls}",
    "a tag that calls": "!!python/object/apply:evil.Cls []",
    "a resolver": '"${oc.decode:evil}"',
}
OPTIONS = (
    "attention",
    "attention.name",
    "attention.source",
    "model",
    "model.gene2vec_path",
    "tokens.name",
    "head",
)
OPTIONS += (
    "logger",
    "trainer.accelerator",
    "init",
    "plugin",
    "--plugin",
    "hydra.callbacks.x._target_",
)


class Evil:
    """Imports `evil` when it is unpickled."""

    def __reduce__(self):
        return __import__, ("evil",)


def options_files() -> dict[str, str]:
    """Files for --config: payloads in the place of each option, as a mapping and as a list of words."""
    files = {}
    payloads = list(PAYLOADS.values())
    pairs = [*product(OPTIONS[:2], payloads), *product(OPTIONS[2:], payloads[::3])]
    for number, (option, payload) in enumerate(pairs):
        files[f"mapping{number}.yaml"] = f'overrides: {{train: {{"{option}": {payload}}}}}'
    for number, option in enumerate(OPTIONS):
        files[f"words{number}.yaml"] = f'overrides: {{train: ["{option}=evil:Cls"]}}'
    return files


def presets() -> dict[str, str]:
    """Presets of attention, and of any group."""
    files = {}
    for number, payload in enumerate(PAYLOADS.values()):
        files[f"attention/own{number}.yaml"] = f"attention.name: {payload}"
        files[f"experiment/nested{number}.yaml"] = f"attention: {{name: {payload}}}"
        for place, option in enumerate(("attention", "attention.name", "logger")):
            files[f"experiment/flat{place}{number}.yaml"] = f'"{option}": {payload}'
    return files


MODELS = {
    **{f"attention {value}": {"attention": value} for value in ("evil:Cls", "evil")},
    **{
        f"name {value}": {"attention": {"name": value}} for value in ("evil:Cls", "evil", "evil.py")
    },
    "name in a list": {"attention": {"name": ["evil:Cls"]}},
    "source": {"attention": {"name": "evil", "source": "evil.py"}},
    "source of ours": {"attention": {"name": "favor", "source": "evil.py"}},
    "target": {"attention": {"name": "favor", "_target_": "evil.Cls"}},
    "network": {"network": {"kind": "evil:Cls"}},
    "tokens": {"tokens": {"name": "evil:Cls"}},
    "head": {"head": {"name": "evil:Cls"}},
}


@pytest.fixture
def commands(tmp_path, tiny_model, counts_adata, monkeypatch) -> list[list[str]]:
    """The commands that use the hostile files, in the folder with evil.py."""
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text(EVIL)
    counts_adata[:20].copy().write_h5ad("cells.h5ad")
    start = ["train", "absent.h5ad", "label_key=x", "model=tiny"]
    words = [["check", "absent.h5ad"]]
    for name, content in options_files().items():
        Path(name).write_text(content)
        words.append(["workflow", "absent.tsv", "--config", name])
    for name, content in presets().items():
        path = Path("own", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        words.append([*start, f"{path.parent.name}={path.stem}", "--config-dir", "own"])
    for number, config in enumerate(MODELS.values()):
        shutil.copytree(tiny_model, f"model{number}")
        bundle = json.loads(Path(f"model{number}", "bundle.json").read_text())
        bundle["config"] |= config
        Path(f"model{number}", "bundle.json").write_text(json.dumps(bundle))
        words.append(
            [
                "predict",
                "cells.h5ad",
                f"model_path=model{number}",
                "output=calls.csv",
                "overwrite=true",
            ]
        )
    for number, row in enumerate(("evil.py", "--plugin", "evil:Cls", "'; import evil'")):
        Path(f"sheet{number}.csv").write_text(f"sample,path\na,{row}\n")
        words.append(["predict", row, f"sample_sheet=sheet{number}.csv"])
    Path("model.pkl").write_bytes(pickle.dumps(Evil()))
    with zipfile.ZipFile("model.pt", "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(Evil()))
    with zipfile.ZipFile("model.zip", "w") as archive:
        archive.writestr("bundle.json", '{"format": "evil:Cls"}')
    for name in ("model.pkl", "model.pt", "model.zip", "evil.py"):
        words.append(["models", "import", name, "output=library"])
        words.append(
            ["train", "cells.h5ad", "label_key=cell_type", f"init={name}", "output=trained"]
        )
    words.append(["models", "import", "evil:Cls"])
    return words


def watched(commands: list[list[str]]) -> list[tuple[int, list[str]]]:
    """Run the commands in one watched process; return the exit code of each, and what it imported or started."""
    Path("commands.json").write_text(json.dumps(commands))
    environment = os.environ | {"PYTHONPATH": ".", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    ran = subprocess.run(
        [sys.executable, WATCHED, "commands.json", "seen.json"],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert "internal error" not in ran.stderr
    return json.loads(Path("seen.json").read_text())


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_no_file_imports_anything(every, commands):
    commands = commands[::every]
    assert len(commands) > 80 / every
    for words, (code, seen) in zip(commands, watched(commands), strict=True):
        assert (code, seen) == (2, []), words
    assert not Path("marked").exists()


@pytest.mark.slow
def test_what_is_imported_would_be_seen(commands):
    plugin = ["--plugin", "evil.py", "check", "cells.h5ad"]
    _, (_, seen) = watched([commands[0], plugin])
    assert any(text.startswith("executed") and text.endswith("evil.py") for text in seen)
    assert Path("marked").exists()
