"""The files for package managers, catalogues and services load, and say what pyproject.toml says."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import scperformer
from scperformer.cli.workflow_config import workflow_options

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT, BUILD = PYPROJECT["project"], PYPROJECT["tool"]["hatch"]["build"]
CONDA = {
    "torch": "pytorch",
    "matplotlib": "matplotlib-base",
    "igraph": "python-igraph",
    "snakemake": "snakemake-minimal",
}


def load(path: str) -> dict:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_one_version_licence_and_name():
    citation, recipe, entry = (
        load("CITATION.cff"),
        load("packaging/conda/recipe.yaml"),
        load("packaging/scverse/meta.yaml"),
    )
    versions = {PROJECT["version"], scperformer.__version__, citation["version"], entry["version"]}
    assert versions | {recipe["context"]["version"]} == {PROJECT["version"]}
    assert {
        PROJECT["license"],
        citation["license"],
        recipe["about"]["license"],
        entry["license"],
    } == {"BSD-3-Clause"}
    names = {
        PROJECT["name"],
        citation["title"],
        recipe["package"]["name"],
        entry["name"],
        entry["install"]["pypi"],
    }
    assert names == {"scperformer"}


def test_conda_recipe_asks_for_the_same_packages():
    recipe = load("packaging/conda/recipe.yaml")
    wanted = {
        CONDA.get(need.name, need.name): need.specifier
        for need in map(Requirement, PROJECT["dependencies"])
    }
    listed = {need.name: need.specifier for need in map(Requirement, recipe["requirements"]["run"])}
    assert listed.pop("python") == PROJECT["requires-python"]
    assert listed == wanted
    scripts = [f"{name} = {place}" for name, place in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts


def test_top_level_has_the_names_that_users_look_for():
    folders, files = (
        ("scperformer", "conf", "workflows", "data", "tests"),
        ("pyproject.toml", "Snakefile", "README.md"),
    )
    assert all((ROOT / name).is_dir() for name in folders)
    assert all((ROOT / name).is_file() for name in files)
    assert len((ROOT / "Snakefile").read_text(encoding="utf-8").splitlines()) < 40
    assert {path.name for path in (ROOT / "workflows").iterdir()} == {
        "README.md",
        "config.yaml",
        "profiles",
        "report",
        "rules",
    }


def test_snakemake_finds_the_default_profile_beside_the_snakefile():
    """In a checkout and in the wheel: Snakemake looks for profiles/default there, and in the working directory."""
    assert (ROOT / "profiles/default/config.yaml").samefile(
        ROOT / "workflows/profiles/default/config.yaml"
    )
    placed = BUILD["targets"]["wheel"]["force-include"]
    assert placed["profiles/default"] == f"{Path(placed['Snakefile']).parent}/profiles/default"


def test_keys_of_the_workflow_are_described():
    defaults = load("workflows/config.yaml")
    assert workflow_options(defaults) == workflow_options({})
    described = re.findall(
        r"^\| `(\w+)` \|", (ROOT / "workflows/README.md").read_text(), flags=re.MULTILINE
    )
    assert set(defaults) <= set(described)


def test_lowest_versions_are_those_of_pyproject():
    """Torch excepted: its builds of then need libraries of a GPU (the file says so)."""
    pinned = dict(
        line.split("==")
        for line in (ROOT / "packaging/constraints-lowest.txt").read_text().splitlines()
        if "==" in line
    )
    for need in map(Requirement, PROJECT["dependencies"]):
        lowest = next(part.version for part in need.specifier if part.operator == ">=")
        if need.name != "torch":
            assert Version(pinned[need.name]) == Version(lowest), need.name
