"""Definitions of images and of the conda package: lint, files, users, one recipe; built where there is a builder."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKER = (ROOT / "packaging/containers" / "Dockerfile").read_text(encoding="utf-8")
APPTAINER = (ROOT / "packaging/containers" / "scperformer.def").read_text(encoding="utf-8")
ARGUMENTS = {"TORCH_INDEX": "https://download.pytorch.org/whl/cpu"}


def filled(text: str) -> str:
    """The text with its arguments at their defaults."""
    for name, value in ARGUMENTS.items():
        text = text.replace(f"${{{name}}}", value).replace(f"{{{{ {name} }}}}", value)
    return text


def section(name: str) -> list[str]:
    """The lines of a section of the Apptainer definition."""
    found = re.search(rf"^%{name}\n((?:[ ].*\n|\n)*)", APPTAINER + "\n", flags=re.MULTILINE)
    assert found, name
    return [line.strip() for line in found[1].splitlines() if line.strip()]


def docker(word: str) -> list[str]:
    """The arguments of an instruction of the Dockerfile, each time it occurs."""
    return re.findall(rf"^{word} (.*)$", DOCKER, flags=re.MULTILINE)


def copied() -> list[tuple[str, str]]:
    """Source in the checkout and place in the Docker image of everything that is copied."""
    pairs = []
    for line in map(filled, docker("COPY")):
        *sources, target = line.split()
        pairs += [(name, f"{target}{name}" if target.endswith("/") else target) for name in sources]
    return pairs


def test_what_is_copied_exists_and_is_let_in():
    rules = (
        (ROOT / "packaging/containers" / "Dockerfile.dockerignore")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    allowed = {rule.removeprefix("!") for rule in rules if rule.startswith("!")}
    assert "*" in rules
    for source, _ in copied():
        assert (ROOT / source).exists(), source
        assert source in allowed, source


def test_both_images_are_made_in_the_same_way():
    assert docker("FROM") == re.findall(r"^From: (.*)$", APPTAINER, flags=re.MULTILINE)
    assert dict(line.split("=", 1) for line in docker("ARG")) == ARGUMENTS
    assert dict(line.split("=", 1) for line in section("arguments")) == ARGUMENTS
    assert [tuple(filled(line).split()) for line in section("files")] == copied()
    assert [filled(line) for line in section("post")] == [
        filled(line) for line in docker("RUN") if "pip" in line
    ]
    assert section("environment") == [f"export {line}" for line in docker("ENV")]
    assert "-c /opt/scperformer/constraints.txt /opt/scperformer" in section("post")[0]


def test_images_take_the_tissue_of_each_file():
    """A model in the image would be used for every tissue: `SCPERFORMER_MODEL` names it for all commands."""
    assert "SCPERFORMER_MODEL" not in DOCKER + APPTAINER


def builds(*command: str | Path) -> None:
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-3000:]


@pytest.mark.slow
def test_the_image_is_built():
    if (
        not shutil.which("docker")
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no Docker that runs")
    builds("docker", "build", "-f", "packaging/containers/Dockerfile", ".")


@pytest.mark.slow
def test_the_conda_package_is_built(tmp_path):
    if not shutil.which("rattler-build"):
        pytest.skip("no rattler-build")
    builds("rattler-build", "build", "--recipe", "packaging/conda", "--output-dir", tmp_path)
