"""The table of what has been tried has the rows that the tests count, and its numbers add up."""

from pathlib import Path

from support.tried import RIGHT, ROWS, cases_of_page, rows_of_page


def test_the_page_has_the_rows_that_are_counted():
    page = rows_of_page()
    assert list(page) == [*ROWS, "all"]
    total = page.pop("all")
    assert total == [sum(column) for column in zip(*page.values(), strict=True)]
    for row, (tried, right, refused, other) in page.items():
        assert tried == right + refused > 0, row
        assert other == 0
        if len(ROWS[row]) > 1:
            assert (refused if ROWS[row][0] == RIGHT else right) == 0, row


def test_the_list_of_cases_has_as_many_as_the_table():
    page = rows_of_page()
    assert cases_of_page() == {row: page[row][0] for row in ROWS}


def test_every_row_names_tests_that_exist():
    folder = Path(__file__).parent
    for _, *tests in ROWS.values():
        for test in tests:
            file, _, name = test.partition("::")
            assert f"def {name or 'test'}" in (folder / file).read_text(encoding="utf-8"), test
