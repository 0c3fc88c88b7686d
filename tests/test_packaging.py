"""The files for package managers, catalogues and services load, and say what pyproject.toml says."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

import scperformer
from scperformer.config.file import workflow_options

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA = {
    "lazy-loader": "lazy_loader",
    "torch": "pytorch",
    "matplotlib": "matplotlib-base",
    "igraph": "python-igraph",
    "snakemake": "snakemake-minimal",
}
FILES = [
    *ROOT.glob(".*.y*ml"),
    *ROOT.glob(".github/**/*.yml"),
    *ROOT.glob("packaging/**/*.yaml"),
    ROOT / "CITATION.cff",
]


def load(path: str) -> dict:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_file_is_a_mapping(path):
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


def test_one_version_licence_and_name():
    citation, recipe, entry = (
        load("CITATION.cff"),
        load("packaging/conda/recipe.yaml"),
        load("packaging/scverse/meta.yaml"),
    )
    versions = {PROJECT["version"], scperformer.__version__, citation["version"], entry["version"]}
    assert versions | {recipe["context"]["version"]} == {PROJECT["version"]}
    assert {PROJECT["license"], citation["license"], recipe["about"]["license"], entry["license"]} == {"BSD-3-Clause"}
    names = {PROJECT["name"], citation["title"], recipe["package"]["name"], entry["name"], entry["install"]["pypi"]}
    assert names == {"scperformer"}


def test_citation_has_the_keys_of_its_format():
    citation = load("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)  # required by version 1.2.0
    assert citation["cff-version"] == "1.2.0"
    assert all(set(author) <= {"name", "website"} for author in citation["authors"])  # entities, not persons


def test_conda_recipe_asks_for_the_same_packages():
    recipe = load("packaging/conda/recipe.yaml")
    wanted = {CONDA.get(need.name, need.name): need.specifier for need in map(Requirement, PROJECT["dependencies"])}
    listed = {need.name: need.specifier for need in map(Requirement, recipe["requirements"]["run"])}
    assert listed.pop("python") == PROJECT["requires-python"]
    assert listed == wanted
    extras = [Requirement(need) for name in ("parquet", "workflow") for need in extra(name)]
    optional = {need.name: need.specifier for need in map(Requirement, recipe["requirements"]["run_constraints"])}
    assert optional == {CONDA.get(need.name, need.name): need.specifier for need in extras}
    scripts = [f"{name} = {place}" for name, place in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts


def extra(name: str) -> list[str]:
    return PROJECT["optional-dependencies"][name]


def test_scverse_entry_has_keys_of_its_schema():
    keys = {"name", "description", "project_home", "documentation_home", "tutorials_home", "install", "license", "tags"}
    assert set(load("packaging/scverse/meta.yaml")) <= keys | {
        "publications",
        "version",
        "contact",
        "logo",
        "test_command",
    }


def test_workflow_catalogue_names_what_exists():
    """The catalogue of Snakemake workflows wants workflow/Snakefile and config/README.md, too."""
    usage = load(".snakemake-workflow-catalog.yml")["usage"]
    flags = usage["mandatory-flags"]["flags"].removeprefix("--config ").split()
    given = dict(flag.split("=") for flag in flags)
    assert workflow_options(given)[0].label_key == "cell_type"
    assert usage["software-stack-deployment"] == {"conda": False, "apptainer": False, "report": True}
    assert (ROOT / "workflow/Snakefile").is_file()
    defaults = load("config/config.yaml")
    assert workflow_options(defaults) == workflow_options({})
    described = re.findall(r"^\| `(\w+)` \|", (ROOT / "config/README.md").read_text(), flags=re.MULTILINE)
    assert set(defaults) <= set(described)


def test_hooks_run_programs_of_the_test_environment():
    hooks = load(".pre-commit-config.yaml")["repos"][0]["hooks"]
    programs = {Requirement(need).name for need in extra("test")} | {"python"}
    assert {hook["entry"].split()[0].replace("lint-imports", "import-linter") for hook in hooks} <= programs


def test_ci_of_github_runs_the_same_script():
    jobs = load(".github/workflows/ci.yml")["jobs"]
    assert {"run": ".ci/run"} in jobs["all"]["steps"]


def test_lowest_versions_are_those_of_pyproject():
    """Torch excepted: its builds of then need libraries of a GPU (the file says so)."""
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints-lowest.txt").read_text().splitlines() if "==" in line
    )
    for need in map(Requirement, PROJECT["dependencies"]):
        lowest = next(part.version for part in need.specifier if part.operator == ">=")
        if need.name != "torch":
            assert Version(pinned[need.name]) == Version(lowest), need.name
