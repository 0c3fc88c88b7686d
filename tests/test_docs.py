"""Every block of code in README, CONTRIBUTING and docs is run, or states why not; the pages and their links hold.

Blocks of one page run in order, in a folder of their own with the example of data/make_example.py. HTML comments, which
no reader sees, steer this:

    <!-- run first: COMMAND -->   before the page's blocks
    <!-- run with: WORDS -->      the next block, with these words behind each training, analysis and snakemake
    <!-- alternatives -->         the commands of the next block, each in a copy of the folder
    <!-- not run: REASON -->      the next block

Cells of the notebooks run when the site is built (`make docs`).
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path

import anndata as ad
import pytest
import yaml
from support import celltypist

from scperformer.fits import performer
from scperformer.model.tissues import collection

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "data/README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
HOWS = ("not run", "run with", "alternatives")
BLOCK = re.compile(
    rf"(?:^<!-- (?P<how>{'|'.join(HOWS)})(?:: (?P<words>.*))? -->\n)?"
    r"^(?P<indent> *)```(?P<kind>\S*).*\n(?P<text>(?:.*\n)*?)(?P=indent)```$",
    re.MULTILINE,
)
FIRST = re.compile(r"^<!-- run first: (.*) -->$", re.MULTILINE)
PROGRAMS = (
    "scperformer",
    "snakemake",
    "python",
    "make",
    "pip",
    "ruff",
    "docker",
    "git",
    "SCPERFORMER_",
)
DIRECTIVES = ("{toctree}", "{eval-rst}", "{code-cell}", "mermaid")  # of the site


@dataclass
class Block:
    """A block of a page."""

    page: Path
    line: int
    kind: str  # bash, python, yaml, toml, ... or text
    text: str
    how: str | None  # of the comment before it, such as "not run"
    words: str  # of this comment

    def commands(self) -> list[str]:
        """The commands of a block of bash."""
        lines = [
            re.sub(r"\s+#.*", "", line) for line in self.text.replace("\\\n", " ").splitlines()
        ]
        if self.how == "run with":
            takers = r"^(scperformer (train|pretrain|analyze)|snakemake) .*"
            lines = [re.sub(takers, rf"\g<0> {self.words}", line) for line in lines]
        return [line for line in lines if line]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page; one without a language is bash if it begins with a program's name, else text."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        code = re.sub(f"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        kind = match["kind"] or ("bash" if code.startswith(PROGRAMS) else "text")
        line = text[: match.start()].count("\n") + 1
        found.append(Block(page, line, kind, code, match["how"], match["words"] or ""))
    return found


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def runs(page: Path) -> list[Block]:
    return [
        block
        for block in blocks(page)
        if block.kind in ("bash", "python") and block.how != "not run"
    ]


@pytest.fixture(scope="module", autouse=True)
def _few_steps() -> Iterator[None]:
    """Train encoders for a few steps: the pages show commands, and not how good a model is."""
    train = performer.train_readouts

    def few(encoder, sums, labels, sides, cfg, folder=None):
        trainer = replace(cfg.trainer, max_steps=min(cfg.trainer.max_steps, 20))
        return train(encoder, sums, labels, sides, replace(cfg, trainer=trainer), folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(performer, "train_readouts", few)
        yield


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Path:
    """The example, with few cells and the names that the pages use, and models."""
    from scperformer import train

    folder = tmp_path_factory.mktemp("docs") / "example"
    subprocess.run([sys.executable, ROOT / "data/make_example.py", folder], check=True)
    for file in folder.glob("*.h5ad"):
        cells = ad.read_h5ad(file)
        cells[:: 6 if file.stem == "reference" else 2].copy().write_h5ad(file)
    shutil.copy(folder / "sample_full.h5ad", folder / "sample.h5ad")
    panel = ad.read_h5ad(folder / "sample_panel.h5ad").var_names
    (folder / "panel.txt").write_text("".join(f"{gene}\n" for gene in panel))
    for name in ("Snakefile", "workflows", "profiles", "conf", "data"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "Immune_All_Low.pkl").write_bytes(
        celltypist.pickled(celltypist.fit(celltypist.pbmc3k()))
    )
    train(
        ad.read_h5ad(folder / "reference.h5ad"),
        "cell_type",
        output=folder / "trained",
        options={"logger": "none"},
    )
    return folder


@pytest.fixture
def run(command, monkeypatch, tmp_path):
    """Run a line of a page in a folder: commands of scperformer in this process, which has loaded the libraries."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("SCPERFORMER_MODELS", str(tmp_path / "models"))

    def run_line(line: str, folder: Path) -> None:
        monkeypatch.chdir(folder)
        if line.startswith("scperformer "):
            ran = command(
                *(name for word in shlex.split(line)[1:] for name in sorted(glob(word)) or [word])
            )
            code, said = ran.code, ran.out + ran.err
        else:
            shell = subprocess.run(
                ["bash", "-c", line], capture_output=True, text=True, check=False
            )
            code, said = shell.returncode, shell.stdout + shell.stderr
        assert code == 0, f"{line}\n{said[-3000:]}"

    return run_line


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if runs(page)], ids=name)
def test_blocks_run(page, example, tmp_path, run, monkeypatch):
    folder = tmp_path / "page"
    shutil.copytree(example, folder, symlinks=True)
    for line in FIRST.findall(page.read_text(encoding="utf-8")):
        run(line, folder)
    names: dict[str, object] = {}  # the blocks of Python of a page are one program
    for block in runs(page):
        if block.kind == "python":
            (folder / "page.py").write_text(block.text)
            monkeypatch.chdir(folder)
            exec(compile(block.text, f"{name(page)}:{block.line}", "exec"), names)
            continue
        for number, line in enumerate(block.commands()):
            alone = block.how == "alternatives"
            run(
                line,
                shutil.copytree(folder, tmp_path / f"{block.line}-{number}", symlinks=True)
                if alone
                else folder,
            )


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.read_text().startswith("---\n")], ids=name
)
def test_notebooks_name_their_kernel_as_jupyter_demands(page):
    kernel = next(yaml.safe_load_all(page.read_text(encoding="utf-8").partition("\n# ")[0]))[
        "kernelspec"
    ]
    assert kernel == {"display_name": "Python 3", "name": "python3"}


def test_tissues_are_described():
    """The tables have the tissues of the packaged profiles (docs/tissues.md) and the merged types (data/README.md)."""
    rows, merged = (
        [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
            if line.startswith("| ")
        ]
        for page in ("docs/tissues.md", "data/README.md")
    )
    text = " ".join((ROOT / "docs/tissues.md").read_text(encoding="utf-8").split())
    found = {row[0]: row for row in rows if " + " in row[1]}
    for tissue in collection().tissues().itertuples():
        labels = collection().labels(tissue.name)
        num_own = (labels["set"] == tissue.set).sum()
        num_types = f"{num_own} + {len(labels) - num_own}"
        assert f"[{tissue.title.rpartition(', ')[0]}]({tissue.url})" in text
        if tissue.name in found:  # else it is in one of the paragraphs
            assert (found[tissue.name][1], found[tissue.name][-1]) == (num_types, tissue.note)
        else:
            assert re.search(rf"[:;] {tissue.name} \({re.escape(num_types)}[,)]", text)
            assert tissue.orthologs_of or tissue.note in text
        is_merged = (
            (labels["set"] == tissue.set) & (labels["merged"] != "") & (tissue.orthologs_of == "")
        )
        for label in labels[is_merged].itertuples():
            assert [tissue.name, label.label, label.merged] in merged


@pytest.mark.slow
def test_pictures_are_those_of_the_command(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import pictures

    assert pictures.rule_graph() in (ROOT / "docs/workflow.md").read_text(encoding="utf-8")
    pictures.draw(tmp_path)
    drawn = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert {*drawn, "app.png", "report.png"} == {
        file.name for file in (ROOT / "docs").glob("*.png")
    }
    assert sum(drawn.values()) < 1_000_000


def test_pictures_exist():
    for page in PAGES:
        shown = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
        assert [file for file in shown if not (page.parent / file).is_file()] == []


def test_each_block_is_run_or_says_why_not():
    found = [block for page in PAGES for block in blocks(page)]
    known = {"bash", "python", "yaml", "toml", "text", *DIRECTIVES}
    unknown = [
        f"{name(b.page)}:{b.line}: {b.kind}"
        for b in found
        if b.kind not in known and b.how != "not run"
    ]
    assert unknown == []
    for block in found:
        if block.kind in ("yaml", "toml"):
            assert (yaml.safe_load if block.kind == "yaml" else tomllib.loads)(block.text)
        if block.how in ("not run", "run with"):
            assert block.words
    comments = sum(
        page.read_text(encoding="utf-8").count(f"<!-- {how}") for page in PAGES for how in HOWS
    )
    # each comment is before a block
    assert comments == sum(block.how is not None for block in found)


def test_the_site_draws_its_flowcharts_without_a_script():
    spec = importlib.util.spec_from_file_location("site", ROOT / "docs/conf.py")
    site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(site)
    assert not [name for name in site.extensions if "mermaid" in name]
    for page in ("architecture", "workflow"):
        source = [(ROOT / f"docs/{page}.md").read_text(encoding="utf-8")]
        [text] = re.findall(r"```mermaid\n(.*?)```", source[0], re.DOTALL)
        arrows = re.sub(r'\[".*"\]', "", text.partition("\n")[2])
        names = set(re.findall(r"\w+", arrows))
        site.take_page(None, page, source)
        assert "mermaid" not in source[0]
        [picture] = re.findall(r"<svg.*</svg>", source[0])
        assert set(re.findall(r'font-weight="bold">(\w+)<', picture)) == names
        assert picture.count('marker-end="url(#tip)"') >= text.count("-->")
        assert "script" not in picture
