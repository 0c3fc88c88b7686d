"""What of inputs and faults has been tried, counted by the tests themselves; the table in docs/inputs.md.

A row belongs to tests: each of their cases that passes is one input or fault with one outcome, `right` or `refused`;
tests that draw inputs by chance count each of them with `record`. With SCPERFORMER_TRIED=1, a run of the tests that
all pass writes the table:

    SCPERFORMER_TRIED=1 python -m pytest tests -p no:xdist -m ""
"""

import re
from collections import Counter
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "inputs.md"
BEGIN, END = "<!-- tried -->", "<!-- end of tried -->"
RIGHT, REFUSED, EITHER = "right", "refused", "either"
# Row -> what comes out of its cases, and the tests that try them.
ROWS = {
    "every kind of file, well made": (
        RIGHT,
        "test_readers.py::test_every_kind",
        "test_readers.py::test_check_of_any_kind",
    ),
    "odd h5ad files of other programs": (RIGHT, "test_lenient.py::"),
    "files that are no input": (REFUSED, "test_readers.py::test_what_is_no_file", "test_readers.py::test_other_hdf5"),
    "truncated files": (
        REFUSED,
        *("test_readers.py::test_truncated", "test_bad_input.py::test_truncated", "test_faults.py::test_cut_files"),
    ),
    "files that point to others, or hold objects": (
        REFUSED,
        "test_trust.py::test_nothing",
        "test_trust.py::test_pickled",
    ),
    "cells of every shape, type and name, by chance": (EITHER,),
    "damaged bytes, by chance": (EITHER,),
    "unusable expression, labels or genes": (
        REFUSED,
        *("test_bad_input.py::test_unusable", "test_bad_input.py::test_bad_labels", "test_bad_input.py::test_genes_"),
    ),
    "wrong options": (REFUSED, "test_bad_input.py::test_bad_options"),
    "damaged or hostile models": (
        REFUSED,
        *(
            "test_bad_input.py::test_damaged_model",
            "test_bad_input.py::test_model_changed",
            "test_bundle.py::test_refuses",
        ),
        *("test_hostile.py::test_sizes", "test_hostile.py::test_weights", "test_hostile.py::test_logistic"),
        *("test_hostile.py::test_json", "test_hostile.py::test_links", "test_hostile.py::test_content"),
    ),
    "hostile or damaged archives of models": (
        REFUSED,
        *("test_library.py::test_hostile", "test_library.py::test_cut", "test_library.py::test_bombs"),
        *("test_library.py::test_a_header", "test_library.py::test_names"),
    ),
    "hostile names and labels": (
        RIGHT,
        *("test_hostile.py::test_hostile_names", "test_hostile.py::test_labels_that_differ"),
        *("test_hostile.py::test_names_of", "test_hostile.py::test_tables"),
    ),
    "labels that no line can hold": (REFUSED, "test_hostile.py::test_labels_that_no_line"),
    "full disk, then room": (REFUSED, "test_faults.py::test_a_full_disk"),
    "no permission to read or write": (
        REFUSED,
        *(
            "test_faults.py::test_a_disk_that",
            "test_faults.py::test_a_file_that",
            "test_bad_input.py::test_folder_without",
        ),
    ),
    "killed, then resumed": (
        RIGHT,
        *("test_training.py::test_killed_run", "test_faults.py::test_kill", "test_streaming.py::test_kill"),
    ),
    "a process of a distributed training dies": (REFUSED, "test_faults.py::test_a_helper"),
    "counts in some cells, logarithms in others": (REFUSED, "test_detect.py::test_a_mix"),
    "values that are no known logarithms": (REFUSED, "test_detect.py::test_values_that_are_no_known"),
    "too few of the model's genes, or another species": (
        REFUSED,
        *("test_bad_input.py::test_no_overlap", "test_genenames.py::test_another"),
    ),
    "tables that are none": (REFUSED, "test_tables.py::test_tables_that_are_refused"),
    "input changed meanwhile": (REFUSED, "test_faults.py::test_an_input"),
}
counts: Counter[tuple[str, str]] = Counter()


def record(row: str, outcome: str) -> None:
    """Count an input or fault."""
    assert row in ROWS
    assert outcome in (RIGHT, REFUSED)
    counts[row, outcome] += 1


def record_test(nodeid: str) -> None:
    """Count a case that has passed, if it belongs to a row."""
    name = nodeid.rpartition("/")[2]
    for row, (outcome, *tests) in ROWS.items():
        if any(name.startswith(test) for test in tests):
            record(row, outcome)


def table() -> str:
    """The table as Markdown."""
    lines = ["| Tried | Inputs or faults | Right answer | One line of error | Anything else |", "|---|---|---|---|---|"]
    total: Counter[str] = Counter()
    for row in ROWS:
        right, refused = counts[row, RIGHT], counts[row, REFUSED]
        total += Counter({RIGHT: right, REFUSED: refused})
        lines.append(f"| {row} | {right + refused} | {right} | {refused} | 0 |")
    all_of_them = f"| all | {total[RIGHT] + total[REFUSED]} | {total[RIGHT]} | {total[REFUSED]} | 0 |"
    return "\n".join([*lines, all_of_them])


def write_table() -> None:
    """Put the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{after}", encoding="utf-8")


def rows_of_page() -> dict[str, list[int]]:
    """Row -> its numbers, as the page has them."""
    part = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    found = re.findall(r"^\| ([^|]+) ((?:\| \d+ )+)\|$", part, flags=re.MULTILINE)
    return {name: [int(number) for number in numbers.split("|")[1:]] for name, numbers in found}
