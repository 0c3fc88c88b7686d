"""What of inputs and faults has been tried, counted by the tests themselves: the tables in docs/inputs.md and tried.md.

A row belongs to tests: each of their cases that passes is one input or fault with one outcome, `right` or `refused`;
tests that draw inputs by chance count each of them with `record`. With SCPERFORMER_TRIED=1, a run of the tests that
all pass writes the tables, the sums and the list of all cases:

    SCPERFORMER_TRIED=1 python -m pytest tests -p no:xdist -m ""
"""

import re
from collections import Counter
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "inputs.md"
CASES_PAGE = PAGE.with_name("tried.md")
BEGIN, END = "<!-- tried -->", "<!-- end of tried -->"
RIGHT, REFUSED, EITHER = "right", "refused", "either"
OUTCOMES = {RIGHT: "right answer", REFUSED: "one line of error"}
# Row -> what comes out of its cases, and the tests that try them.
ROWS = {
    "every kind of file, well made": (
        RIGHT,
        *("test_streaming.py::test_blocks_of_a_file", "test_streaming.py::test_other_outputs"),
        "test_readers.py::test_every_kind",
        "test_readers.py::test_check_of_any_kind",
    ),
    "odd h5ad files of other programs": (RIGHT, "test_lenient.py::"),
    "files that are no input": (REFUSED, "test_readers.py::test_what_is_no_file", "test_readers.py::test_other_hdf5"),
    "truncated files": (
        REFUSED,
        *("test_readers.py::test_truncated", "test_bad_input.py::test_truncated", "test_faults.py::test_cut_files"),
    ),
    "files that point to others, or hold objects or null characters": (
        REFUSED,
        "test_trust.py::test_nothing",
        "test_trust.py::test_pickled",
        "test_trust.py::test_null",
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
    "values of one kind in some cells, of another in others": (
        REFUSED,
        *("test_detect.py::test_a_mix", "test_detect.py::test_logarithms_of_two", "test_detect.py::test_a_sample_of"),
        "test_detect.py::test_corrected_counts_beside_logarithms",
    ),
    "samples normalised apart and put together": (RIGHT, "test_detect.py::test_samples_normalised_apart"),
    "values that are no known logarithms": (REFUSED, "test_detect.py::test_values_that_are_no_known"),
    "too few of the model's genes, or another species": (
        REFUSED,
        *("test_bad_input.py::test_no_overlap", "test_genenames.py::test_another"),
    ),
    "tables that are none": (REFUSED, "test_tables.py::test_tables_that_are_refused"),
    "input changed meanwhile": (REFUSED, "test_faults.py::test_an_input"),
}
counts: Counter[tuple[str, str, str]] = Counter()


def record(row: str, outcome: str, case: str) -> None:
    """Count an input or fault."""
    assert row in ROWS
    assert outcome in OUTCOMES
    counts[row, case, outcome] += 1


def record_test(nodeid: str) -> None:
    """Count a case that has passed, if it belongs to a row."""
    name = nodeid.partition("[")[0].rpartition("/")[2]
    words, _, parameter = nodeid.partition("::")[2].removeprefix("test_").partition("[")
    case = ": ".join(part for part in (words.replace("_", " "), parameter.removesuffix("]")) if part)
    for row, (outcome, *tests) in ROWS.items():
        if any(name.startswith(test) for test in tests):
            record(row, outcome, case)


def table() -> str:
    """The table as Markdown."""
    lines = ["| Tried | Inputs or faults | Right answer | One line of error | Anything else |", "|---|---|---|---|---|"]
    total: Counter[str] = Counter()
    for row in ROWS:
        right, refused = (
            sum(number for (of, _, outcome), number in counts.items() if (of, outcome) == (row, which))
            for which in OUTCOMES
        )
        total += Counter({RIGHT: right, REFUSED: refused})
        lines.append(f"| {row} | {right + refused} | {right} | {refused} | 0 |")
    all_of_them = f"| all | {total[RIGHT] + total[REFUSED]} | {total[RIGHT]} | {total[REFUSED]} | 0 |"
    return "\n".join([*lines, all_of_them])


def cases_table() -> str:
    """All cases as Markdown: a table for each row of the other one, in alphabetical order."""
    lines = []
    for row in ROWS:
        lines += ["", f"## {row[0].upper()}{row[1:]}", "", "| Input or fault | Outcome | Times |", "|---|---|---|"]
        of_row = sorted((case, outcome, number) for (of, case, outcome), number in counts.items() if of == row)
        lines += [f"| {_cell(case)} | {OUTCOMES[outcome]} | {number} |" for case, outcome, number in of_row]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    escaped = text.replace("|", "\\|").replace("<", "&lt;")
    return escaped if len(escaped) <= 150 else f"{escaped[:150]}..."


def write_tables() -> None:
    """Put the tables into the pages."""
    for page, content in ((PAGE, table()), (CASES_PAGE, cases_table())):
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        page.write_text(f"{before}{BEGIN}\n{content}\n{END}{after}", encoding="utf-8")


def cases_of_page() -> dict[str, int]:
    """Row -> how many inputs and faults the list of cases has of it."""
    part = CASES_PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    sections = {section.partition("\n")[0]: section for section in part.split("\n## ")[1:]}
    numbers = {
        title: sum(map(int, re.findall(r"\| (\d+) \|$", section, re.MULTILINE))) for title, section in sections.items()
    }
    return {row: numbers[f"{row[0].upper()}{row[1:]}"] for row in ROWS}


def rows_of_page() -> dict[str, list[int]]:
    """Row -> its numbers, as the page has them."""
    part = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    found = re.findall(r"^\| ([^|]+) ((?:\| \d+ )+)\|$", part, flags=re.MULTILINE)
    return {name: [int(number) for number in numbers.split("|")[1:]] for name, numbers in found}
