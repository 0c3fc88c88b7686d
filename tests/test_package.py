"""The rules of the code itself: who imports whom, what loads when, sizes, docstrings, no traces of a machine."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "scperformer"

MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}

# A new mechanism needs no line here: it may import what the others may, and those that others build on.
BUILT_ON = ("attention.favor", "attention.window")
SHARED = ("attention.base", "attention.additive", "attention.projections", "attention.fastfood", "attention.fused")
MECHANISM = " ".join((*SHARED, "errors", "options"))
OTHERS = [name for name in MODULES if name.startswith("attention.") and name not in (*SHARED, *BUILT_ON)]

# Module -> the modules of scperformer that it may import; each of them stands above it, so there are no circles.
LAYERS = {
    "__init__": "",
    "errors": "",
    "texts": "",
    "rows": "",
    "logarithms": "",
    "values": "logarithms rows",
    "metrics": "",
    "figures": "",
    "baseline": "",
    "calibrate": "",
    "linear": "baseline calibrate",
    "options": "errors",
    "groups": "options",
    "config": "errors groups options",
    "processor": "",
    "resources": "",
    "outputs": "errors",
    "history": "outputs",
    "curve": "figures history",
    "epochs": "history resources",
    "genes": "errors texts",
    "overlap": "errors genes",
    "genetables": "errors",
    "hgnc": "config errors outputs",
    "genenames": "errors genes genetables hgnc",
    "lenient": "",
    "trust": "errors lenient",
    "io": "errors lenient outputs trust",
    "detect": "errors genes logarithms rows values",
    "tokens": "groups",
    "attention.base": "errors",
    "attention.additive": "attention.base",
    "attention.projections": "",
    "attention.fastfood": "",
    "attention.fused": "",
    **dict.fromkeys(BUILT_ON, MECHANISM),
    **dict.fromkeys(OTHERS, " ".join((MECHANISM, *BUILT_ON))),
    "attention": " ".join(("errors", "options", "attention.base", *BUILT_ON, *OTHERS)),
    "compose": "config errors",
    "cards": "",
    "model_trust": "groups options texts",
    "bundle": "cards errors io model_trust",
    "orientation": "errors genes",
    "tenx": "errors io trust",
    "loom": "errors io tenx",
    "tables": "bundle errors io orientation tenx",
    "readers": "errors io lenient loom tables tenx trust",
    "labels": "errors groups texts",
    "splits": "errors groups labels",
    "alignment": "detect genenames genes logarithms overlap",
    "preprocess": "alignment bundle config groups detect errors genes io readers",
    "h5ad_copy": "errors io outputs",
    "zarr_copy": "h5ad_copy io outputs",
    "backed": "detect errors h5ad_copy io trust",
    "joining": "errors genenames genes overlap",
    "collection": "alignment backed config detect errors genenames genes joining preprocess readers rows",
    "reference": "backed collection config detect errors labels preprocess splits",
    "query": "alignment backed bundle config detect errors h5ad_copy overlap readers rows",
    "quality": "detect genenames genes genetables rows",
    "check_text": "config detect errors genes groups labels quality texts",
    "check": "alignment backed bundle check_text config detect errors genes groups io labels quality query readers "
    "reference rows",
    "runs": "attention compose config curve errors history outputs",
    "gene2vec": "errors",
    "embedding": "groups tokens",
    "pieces": "attention.additive",
    "encoder": "attention attention.additive groups embedding errors pieces",
    "model": "groups embedding encoder linear",
    "data": "groups embedding tokens",
    "streaming": "collection data embedding groups",
    "encoder_start": "config data encoder gene2vec",
    "masking": "embedding groups tokens",
    "masked_model": "embedding encoder",
    "corpus": "alignment collection config errors genes joining preprocess readers",
    "transfer": "attention bundle config embedding encoder errors genenames genes groups masked_model model reference",
    "head_start": "baseline config data model",
    "inference": "baseline bundle groups data embedding errors model processor",
    "partial": "errors outputs",
    "calls_table": "outputs texts",
    "annotation": "backed bundle config data h5ad_copy inference overlap partial query",
    "predict": "__init__ annotation backed calls_table compose config errors h5ad_copy inference io partial query "
    "readers zarr_copy",
    "analysis": "",
    "analysis.inputs": "data embedding encoder",
    "analysis.spectrum": "analysis.inputs",
    "analysis.approximation": "analysis.inputs attention",
    "analysis.figures": "analysis.spectrum figures",
    "analyze": "analysis.approximation analysis.figures analysis.inputs analysis.spectrum annotation config data "
    "errors inference io readers",
    "datamodule": "data embedding streaming",
    "processes": "errors",
    "interruption": "",
    "cluster": "errors groups",
    "fitting": "cluster config datamodule errors groups interruption processes processor",
    "learner": "calibrate config groups data datamodule embedding epochs fitting metrics model streaming",
    "masked_learner": "fitting config data datamodule embedding learner masked_model masking streaming",
    "batchsize": "config data errors groups learner model resources runs",
    "training": "batchsize groups baseline linear bundle calibrate compose config data errors inference io "
    "learner metrics model readers reference runs attention encoder encoder_start transfer head_start collection "
    "streaming",
    "estimate": "baseline batchsize collection config data encoder encoder_start inference learner model reference "
    "resources training transfer",
    "pretraining": "bundle collection compose config corpus data encoder encoder_start errors inference io "
    "masked_learner masked_model readers runs streaming transfer",
    "annotated": "errors io",
    "evaluate": "annotated config errors io metrics texts",
    "summary": "annotated evaluate figures",
    "report": "annotated bundle config errors evaluate figures io summary",
    "sweep": "bundle errors outputs texts",
    "archives": "errors",
    "library": "archives bundle config encoder errors groups inference io transfer",
    "cli": "compose errors sweep __init__",
    "__main__": "cli",
}
# Package -> the only modules that may import it.
ONLY = {
    "hydra": "compose cli",
    "omegaconf": "compose",
    "pytorch_lightning": "cluster epochs fitting interruption processes learner masked_learner datamodule",
    "torch": " ".join(name for name in MODULES if name.startswith("attention"))
    + " embedding encoder model pieces processor data streaming datamodule inference fitting processes learner "
    "batchsize training estimate masking masked_model masked_learner encoder_start head_start transfer pretraining "
    "library analysis.approximation analysis.inputs analysis.spectrum",
    "anndata": "io rows detect check preprocess reference annotation backed h5ad_copy predict training corpus "
    "pretraining annotated analyze lenient trust tenx loom tables readers quality query zarr_copy",
    "zarr": "backed zarr_copy",
    "triton": "attention.fused",
    "h5py": "io rows annotated backed h5ad_copy lenient trust tenx loom readers zarr_copy",
    "scanpy": "preprocess quality",
    "safetensors": "bundle",
    "sklearn": "baseline figures",
    "matplotlib": "curve figures analysis.figures",
    "umap": "figures",
    "jinja2": "report",
}


def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imports(module: str) -> tuple[set[str], set[str]]:
    """What a module imports anywhere in it: modules of scperformer, and other packages."""
    ours, others = set(), set()
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            names = [node.module or ""]
            if node.module == "scperformer":
                names = [f"scperformer.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, _, rest = name.partition(".")
            if first == "scperformer":
                ours.add(rest if rest in MODULES else "__init__")
            else:
                others.add(first)
    return ours, others


def functions(module: str) -> list[ast.FunctionDef]:
    return [node for node in ast.walk(tree(module)) if isinstance(node, ast.FunctionDef)]


# Imports


def test_every_module_is_in_the_table():
    assert set(LAYERS) == set(MODULES)


def test_the_table_has_no_circles():
    above: set[str] = set()
    for module, allowed in LAYERS.items():
        assert set(allowed.split()) <= above, module
        above.add(module)


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_table(module):
    ours, _ = imports(module)
    assert ours <= set(LAYERS[module].split())


@pytest.mark.parametrize("package", ONLY)
def test_packages_stay_where_they_belong(package):
    found = {module for module in MODULES if package in imports(module)[1]}
    assert found == set(ONLY[package].split())


HEAVY = ("torch", "scanpy", "hydra", "omegaconf", "pandas", "numpy", "anndata", "matplotlib", "sklearn")
START = {
    "import": "import scperformer",
    "help": "from scperformer.cli import main; main(['--help'])",
    "help of a step": "from scperformer.cli import main; main(['train', '--help'])",
}


@pytest.mark.parametrize("code", START)
def test_nothing_heavy_is_loaded_before_it_is_needed(code):
    check = f"import sys\n{START[code]}\nprint(*(name for name in {HEAVY} if name in sys.modules), file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stderr.split() == []


def test_steps_without_a_network_do_without_torch():
    steps = "from scperformer import bundle, check, evaluate, preprocess, report"
    check = f"import sys\n{steps}\nprint(*(name for name in ('torch', 'scanpy', 'hydra') if name in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True, cwd=ROOT)
    assert ran.stdout.split() == []


def test_public_names():
    import scperformer

    assert all(callable(getattr(scperformer, name)) for name in ("load_model", "annotate", "train", "pretrain"))
    assert set(scperformer.__all__) == {"__version__", "load_model", "annotate", "train", "pretrain"}
    assert set(scperformer.__all__) <= set(dir(scperformer))
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        _ = scperformer.no_such_name


# Style


@pytest.mark.parametrize("module", MODULES)
def test_files_and_functions_are_short(module):
    assert len(MODULES[module].read_text(encoding="utf-8").splitlines()) <= 400
    long = {node.name: size for node in functions(module) if (size := node.end_lineno - node.lineno + 1) > 60}
    assert long == {}


@pytest.mark.parametrize("module", MODULES)
def test_public_things_have_docstrings(module):
    """Modules, classes and functions; methods that override one of Lightning, torch or logging inherit theirs."""
    code = tree(module)
    assert ast.get_docstring(code)
    things = [node for node in code.body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    missing = [node.name for node in things if not node.name.startswith("_") and not ast.get_docstring(node)]
    assert missing == []


@pytest.mark.parametrize("module", MODULES)
def test_no_error_is_swallowed(module):
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"bare except in line {node.lineno}"
            caught = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)}
            # The command line is where every error ends as a line; elsewhere it must go on its way.
            passed_on = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            assert module == "cli" or passed_on or not caught & {"Exception", "BaseException"}, f"line {node.lineno}"


@pytest.mark.parametrize("module", MODULES)
def test_print_is_for_the_command_line_and_reports(module):
    calls = {node.func.id for node in ast.walk(tree(module)) if isinstance(node, ast.Call) and hasattr(node.func, "id")}
    assert "print" not in calls or module in ("cli", "check", "estimate", "library")


# The project's files


FOLDERS = ("scperformer", "conf", "workflows", "docs", "tests", "data", "benchmarks", "containers", ".ci")
TEXT = {"", ".py", ".md", ".yaml", ".toml", ".smk", ".sh", ".txt", ".jinja", ".css", ".rst", ".tsv", ".csv", ".json"}
PLACES = tuple(f"/{name}/" for name in ("work", "tmp", "root", "home", "Users"))  # folders of one machine


def project_files() -> list[Path]:
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    hidden = [path for path in inside if any(part == "__pycache__" for part in path.parts)]
    return [
        path
        for path in sorted([*ROOT.glob("*"), *set(inside).difference(hidden)])
        if path.is_file() and path.suffix in TEXT
    ]


def test_no_file_names_a_folder_of_a_machine():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in project_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if any(place in line for place in PLACES)
    ]
    assert found == []


def test_files_end_with_one_newline_and_hold_no_tabs_at_the_end():
    for path in project_files():
        text = path.read_text(encoding="utf-8")
        assert text == "" or (text.endswith("\n") and not text.endswith("\n\n")), path
        assert not [line for line in text.split("\n") if line != line.rstrip()], path
