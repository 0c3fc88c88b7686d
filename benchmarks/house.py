"""Measure the code: how far values walk, what interfaces say, long functions, and sizes.

    python benchmarks/house.py                  # this tree
    python benchmarks/house.py FOLDER           # a checkout of another version, for a comparison

A walk follows a parameter of a function through the calls that pass it on, to the bottom. A value, its attributes, and
what a call makes of it are all the value. Each call that takes it to a function or a class of the package is a stay;
each function is entered once for each of its parameters. A return is a stay in a file that was left before; a move is a
step between subpackages. The walk reads names, not types, so that calls of methods of other objects are left out.
"""

import argparse
import ast
import re
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path

WALKS = (  # file, function, parameter; those of other versions are left out where they do not exist
    ("api.py", "annotate", "cells"),
    ("annotation/predict.py", "annotate_cells", "adata"),
    ("annotation/predict.py", "annotate_file", "path"),
    ("cli/predict.py", "run", "cfg"),
    ("cli/train.py", "run", "cfg"),
    ("training/train.py", "train_cells", "cfg"),
)
PATTERNS = {
    "cells in memory or on disk, in signatures": r"AnnData \| BackedH5ad",
    "isinstance of it": r"isinstance\([^()]*BackedH5ad",
    'path = "the data"': r'path: str(?: \| Path)? = "the data"',
    "conditions on the kind of a model": r"\b(?:if|elif|assert|not)\b[^\n]*(?:\bis_tissue\b|\.members\b|\.studies\b"
    r'|\.imported\b|"network" in|"profiles" in|isinstance\([\w.]*network|saved\.families is)',
    "dict[str, Any]": r"dict\[str, Any\]",
    "entries of a record by string keys": r"(?:facts|record|recorded|shift|coverage|condition|tissue)"
    r"""(?:\[|\.get\()["']""",
}
BRANCHES = (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.IfExp, ast.BoolOp, ast.comprehension)


@dataclass
class Module:
    """A file of the package."""

    path: Path
    name: str  # with dots
    tree: ast.Module

    @cached_property
    def defined(self) -> dict[str, ast.AST]:
        """Functions, classes, and methods as `Class.method`, by their names."""
        found: dict[str, ast.AST] = {}
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = node
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{item.name}": item for item in node.body if isinstance(item, ast.FunctionDef)}
        return found

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """The module and the name behind each name that is imported from the package."""
        return {
            alias.asname or alias.name: (node.module or "", alias.name)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("scperformer")
            for alias in node.names
        }


@dataclass
class Walk:
    """The stays of a value, in the order of the code."""

    modules: dict[str, Module]
    stays: list[str] = field(default_factory=list)  # modules
    entered: set[tuple[str, str, str]] = field(default_factory=set)

    def enter(self, module: Module, name: str, parameter: str) -> None:
        """Follow a parameter through a function."""
        function = module.defined.get(name)
        if (module.name, name, parameter) in self.entered or not isinstance(function, ast.FunctionDef):
            return
        self.entered.add((module.name, name, parameter))
        known = {parameter}
        for node in ast.walk(function):  # names that the value gets, in the order of the code
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if self.is_known(node.value, known):
                    known |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
            elif isinstance(node, ast.With):
                for item in node.items:
                    if item.optional_vars is not None and self.is_known(item.context_expr, known):
                        known |= {part.id for part in ast.walk(item.optional_vars) if isinstance(part, ast.Name)}
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        for call in sorted(calls, key=lambda call: (call.lineno, call.col_offset)):
            self.follow(module, name, call, known)

    def is_known(self, node: ast.AST, known: set[str]) -> bool:
        """Whether an expression is the value, one of its attributes, or a call that takes it."""
        if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred | ast.Await):
            return self.is_known(node.value, known)
        if isinstance(node, ast.Call):
            given = [*node.args, *(word.value for word in node.keywords)]
            return self.is_known(node.func, known) or any(self.is_known(part, known) for part in given)
        return isinstance(node, ast.Name) and node.id in known

    def follow(self, module: Module, inside: str, call: ast.Call, known: set[str]) -> None:
        """Stay in the function or class that a call takes the value to, and enter it."""
        target = self.resolve(module, inside, call.func, known)
        given = [*enumerate(call.args), *((word.arg, word.value) for word in call.keywords)]
        places = [place for place, value in given if self.is_known(value, known)]
        is_method = isinstance(call.func, ast.Attribute) and self.is_known(call.func.value, known)
        if target is None or not (places or is_method):
            return
        there, name = target
        self.stays.append(there.name)
        function = there.defined.get(name)
        if isinstance(function, ast.ClassDef):
            name, function = f"{name}.__init__", there.defined.get(f"{name}.__init__")
        if not isinstance(function, ast.FunctionDef):
            return
        parameters = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
        parameters = parameters[1:] if "." in name else parameters
        words = {*parameters, *(argument.arg for argument in function.args.kwonlyargs)}
        if is_method:
            self.enter(there, name, "self")
        for place in places:
            if isinstance(place, int) and place < len(parameters):
                self.enter(there, name, parameters[place])
            elif place in words:
                self.enter(there, name, str(place))

    def resolve(self, module: Module, inside: str, func: ast.AST, known: set[str]) -> tuple[Module, str] | None:
        """Return the module and the name of what is called, if the package defines it."""
        if isinstance(func, ast.Name):
            if func.id in module.defined:
                return module, func.id
            where, name = module.imported.get(func.id, ("", ""))
            found = self.modules.get(where)
            return (found, name) if found is not None and name in found.defined else None
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name):
            if func.value.id == "self" and f"{inside.partition('.')[0]}.{func.attr}" in module.defined:
                return module, f"{inside.partition('.')[0]}.{func.attr}"
            where, name = module.imported.get(func.value.id, ("", ""))
            found = self.modules.get(f"{where}.{name}")
            return (found, func.attr) if found is not None and func.attr in found.defined else None
        return None

    def __str__(self) -> str:
        returns = sum(here in self.stays[:number] for number, here in enumerate(self.stays) if self.left(number))
        rooms = [name.split(".")[1] for name in self.stays]
        moves = sum(one != other for one, other in pairwise(rooms))
        return f"{len(self.stays)} stays, {len(set(self.stays))} files, {returns} returns, {moves} moves"

    def left(self, number: int) -> bool:
        """Whether a stay is in another file than the one before it."""
        return number > 0 and self.stays[number] != self.stays[number - 1]


def functions_of(modules: dict[str, Module]) -> list[tuple[int, int, int, str]]:
    """Return lines of the body, parameters, branches and the place of each function, the longest first."""
    found = []
    for module in modules.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) and len(node.body) > 1 else node.body
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                num = len([argument for argument in arguments if argument.arg not in ("self", "cls")])
                branches = sum(isinstance(part, BRANCHES) for part in ast.walk(node))
                place = f"{module.name.removeprefix('scperformer.')}.{node.name}"
                found.append(((node.end_lineno or 0) - body[0].lineno + 1, num, branches, place))
    return sorted(found, reverse=True)


def main(root: Path) -> None:
    """Print all measures of a tree."""
    modules = {}
    for path in sorted((root / "scperformer").rglob("*.py")):
        name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        modules[name] = Module(path, name, ast.parse(path.read_text(encoding="utf-8")))
    for file, function, parameter in WALKS:
        module = modules.get(f"scperformer.{file.removesuffix('.py').replace('/', '.')}")
        if module is not None and function in module.defined:
            walk = Walk(modules)
            walk.enter(module, function, parameter)
            print(f"{file}:{function}:{parameter}: {walk}")
    texts = {module.path: module.path.read_text(encoding="utf-8") for module in modules.values()}
    for title, pattern in PATTERNS.items():
        counts = {path: len(re.findall(pattern, text)) for path, text in texts.items()}
        places = len({path.parent for path, number in counts.items() if number})
        print(f"{title}: {sum(counts.values())}, in {places} subpackages")
    print("longest functions: lines, parameters, branches")
    for lines, num, branches, place in functions_of(modules)[:8]:
        print(f"  {lines:3} {num:3} {branches:3} {place}")
    sizes = {
        name: sum(len(path.read_text(encoding="utf-8").splitlines()) for path in (root / name).rglob("*.py"))
        for name in ("scperformer", "tests", "benchmarks")
    }
    pages = [*(root / "docs").glob("*.md"), root / "README.md"]
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    pictures = sum(page.read_text(encoding="utf-8").count("![") for page in pages)
    pictures += sum(page.read_text(encoding="utf-8").count("```mermaid") for page in pages)
    print(f"lines: {sizes}; {words} words and {pictures} pictures in the docs")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1], help="a checkout")
    main(parser.parse_args().folder)
