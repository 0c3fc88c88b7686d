"""Count the inputs and faults that the tests try, and write them as tables.

A row of the table belongs to some tests. Each of their cases that passes is one input or fault with one outcome; tests
that draw inputs by chance count each of them with `record`. If all tests pass, this writes the tables to PATH:

    SCPERFORMER_TRIED=PATH python -m pytest tests -p no:xdist -m ""
"""

import os
from collections import Counter
from pathlib import Path

RIGHT, REFUSED, EITHER = "right", "refused", "either"
OUTCOMES = {RIGHT: "right answer", REFUSED: "one line of error"}
# Row -> the outcome of its cases, and the tests that try them: the room of the test and how its name begins.
ROWS: dict[str, tuple[str, ...]] = {
    "every kind of file, well made": (
        RIGHT,
        *("files::test_every_kind", "files::test_check_of_any_kind"),
        *("end_to_end::test_blocks_of_a_file", "end_to_end::test_other_outputs"),
    ),
    "odd h5ad files of other programs": (RIGHT, "files::test_odd_h5ad_files"),
    "files that are not an input": (REFUSED, "files::test_paths_that_are_not_a_file", "files::test_other_hdf5"),
    "truncated files": (REFUSED, "files::test_truncated", "end_to_end::test_truncated"),
    "HDF5 files that are never read to their end, crash or fill the memory": (
        REFUSED,
        *(
            "files::test_strings_that_never",
            "files::test_a_command_on",
            "files::test_a_string_of",
            "files::test_every_end",
        ),
        *("files::test_a_dataset_that_declares", "files::test_a_sparse_matrix_that"),
    ),
    "damage that only a part of the outputs meets": (
        REFUSED,
        *("files::test_a_damaged_name", "files::test_damage_where"),
    ),
    "text that unpacks without end": (REFUSED, "files::test_a_line_that", "files::test_names_that_unpack"),
    "files that point to others, or hold objects or null characters": (
        REFUSED,
        *("files::test_nothing_in_another", "files::test_pickled", "files::test_null"),
    ),
    "tables that cannot be used": (REFUSED, "files::test_tables_that_are_refused", "files::test_names_that_do_not"),
    "cells of every shape, type and name, by chance": (EITHER,),
    "damaged bytes, by chance": (EITHER,),
    "unusable expression, labels or genes": (
        REFUSED,
        *("end_to_end::test_unusable", "end_to_end::test_bad_labels", "end_to_end::test_genes_without"),
    ),
    "too few of the model's genes, or another species": (
        REFUSED,
        *("end_to_end::test_no_overlap", "genes::test_another"),
    ),
    "values of one kind in some cells, of another in others": (
        REFUSED,
        *("cells::test_a_mix", "cells::test_logarithms_of_two", "cells::test_a_sample_of"),
        "cells::test_corrected_counts_beside_logarithms",
    ),
    "samples normalised apart and put together": (RIGHT, "cells::test_samples_normalised_apart"),
    "values that are no known logarithms": (REFUSED, "cells::test_values_that_are_no_known"),
    "wrong options": (REFUSED, "end_to_end::test_bad_options"),
    "damaged or hostile models": (
        REFUSED,
        *("end_to_end::test_damaged_model", "end_to_end::test_model_changed", "model::test_refuses"),
        *("model::test_sizes_are", "model::test_weights_that", "model::test_logistic"),
        *("model::test_json", "model::test_links", "model::test_content"),
    ),
    "hostile or damaged archives of models": (
        REFUSED,
        *("model::test_hostile_members", "model::test_long_paths", "model::test_names_in_a_zip", "model::test_entries"),
        *(
            "model::test_a_file_twice",
            "model::test_an_encrypted",
            "model::test_cut_archives",
            "model::test_files_of_other_kinds",
        ),
        *("model::test_a_zip_", "model::test_sizes_and", "model::test_headers", "model::test_many"),
        "command::test_names_that_no",
    ),
    "hostile names and labels": (
        RIGHT,
        *("end_to_end::test_hostile_names", "end_to_end::test_labels_that_differ"),
        *("end_to_end::test_names_of", "end_to_end::test_tables_of"),
    ),
    "labels that a line cannot hold": (REFUSED, "end_to_end::test_labels_that_no_line"),
    "full disk, then room": (REFUSED, "end_to_end::test_a_full_disk"),
    "no permission to read or write": (
        REFUSED,
        *("end_to_end::test_a_disk_that", "end_to_end::test_a_file_that_may", "end_to_end::test_folder_without"),
    ),
    "killed, then resumed": (RIGHT, "training::test_killed_run", "end_to_end::test_kill"),
    "a process of a distributed training dies": (REFUSED, "end_to_end::test_a_helper"),
    "input changed meanwhile": (REFUSED, "end_to_end::test_an_input"),
    "labels that mean none or end early": (RIGHT, "end_to_end::test_no_label", "end_to_end::test_ragged"),
    "objects in place of labels": (REFUSED, "end_to_end::test_objects"),
    "cells in two studies, or in reference and query": (RIGHT, "end_to_end::test_shared_cells_of"),
    "true labels as other programs and people write them": (
        RIGHT,
        *("end_to_end::test_truth_tables", "end_to_end::test_spellings"),
    ),
    "sample sheets that cannot be used": (REFUSED, "end_to_end::test_sheets"),
    "panels as vendors and R write them": (RIGHT, "end_to_end::test_panels"),
    "options, presets and torch files that run or exhaust something": (
        REFUSED,
        *("end_to_end::test_options", "end_to_end::test_torch_files"),
    ),
    "numbers and devices without end": (REFUSED, "end_to_end::test_numbers"),
    "true labels and studies that are not there": (
        REFUSED,
        *("end_to_end::test_truth_columns", "end_to_end::test_shared_cells_a"),
    ),
}
counts: Counter[tuple[str, str, str]] = Counter()


def record(row: str, outcome: str, case: str) -> None:
    """Count an input or fault."""
    assert row in ROWS
    assert outcome in OUTCOMES
    counts[row, case, outcome] += 1


def record_test(nodeid: str) -> None:
    """Count a test case that has passed, if it belongs to a row."""
    path, _, test = nodeid.partition("::")
    words, _, parameter = test.removeprefix("test_").partition("[")
    case = ": ".join(part for part in (words.replace("_", " "), parameter.removesuffix("]")) if part)
    for row, (outcome, *tests) in ROWS.items():
        if any(f"{Path(path).parent.name}::{test}".startswith(known) for known in tests):
            record(row, outcome, case)


def tables() -> str:
    """The sums of all rows, then all cases of each row, as Markdown."""
    lines = ["| Tried | Inputs or faults | Right answer | One line of error |", "|---|---|---|---|"]
    numbers = {
        row: [sum(n for (of, _, out), n in counts.items() if (of, out) == (row, o)) for o in OUTCOMES] for row in ROWS
    }
    for row, (right, refused) in [*numbers.items(), ("all", tuple(map(sum, zip(*numbers.values(), strict=True))))]:
        lines.append(f"| {row} | {right + refused} | {right} | {refused} |")
    for row in ROWS:
        lines += ["", f"## {row[0].upper()}{row[1:]}", "", "| Input or fault | Outcome | Times |", "|---|---|---|"]
        for (of, case, outcome), number in sorted(counts.items()):
            if of == row:
                escaped = case.replace("|", "\\|").replace("<", "&lt;")[:150]
                lines.append(f"| {escaped} | {OUTCOMES[outcome]} | {number} |")
    return "\n".join([*lines, ""])


def write_tables(exit_status: int, markers: str) -> None:
    """Write the tables to $SCPERFORMER_TRIED after a run of all tests in which all passed."""
    path = os.environ.get("SCPERFORMER_TRIED")
    # After a failure the tables would hide the failed cases, and count the tries of hypothesis to make them small.
    if not path or exit_status != 0 or markers != "":
        return
    Path(path).write_text(f"# Every input and every fault that the tests try\n\n{tables()}", encoding="utf-8")
    missing = [row for row in ROWS if not any(of == row for of, _, _ in counts)]
    assert not missing, f"no test counts for these rows of {__file__}: {missing}"
