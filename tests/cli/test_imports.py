"""Imports of the command line: no circles, and none from the functions for Python."""

from graphlib import TopologicalSorter

import grimp
import pytest


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph("scperformer", exclude_type_checking_imports=True)


@pytest.mark.parametrize("subpackage", ["cli", "config"])
def test_files_import_each_other_in_no_circle(subpackage, graph):
    files = graph.find_children(f"scperformer.{subpackage}")
    assert len(files) > 5
    TopologicalSorter({file: graph.find_modules_directly_imported_by(file) & files for file in files}).prepare()


def test_functions_for_python_do_not_need_the_command_line(graph):
    below = graph.find_upstream_modules("scperformer.api")
    assert not [module for module in below if module.startswith("scperformer.cli")]
