"""Time and sizes in words, names that were meant, and texts of users that mean harm."""

import pytest

from scperformer.base.errors import InputError, one_line
from scperformer.base.messages import (
    did_you_mean,
    escape_formula,
    in_time,
    join_names,
    name_problem,
    split_names,
)

DURATIONS = {
    0: "0.0 s",
    9.94: "9.9 s",
    9.96: "10 s",
    59.4: "59 s",
    59.6: "1 min 00 s",
    200: "3 min 20 s",
}
DURATIONS |= {3599.6: "1 h 00 min", 7500: "2 h 05 min", 100_000: "27 h 46 min"}


@pytest.mark.parametrize("seconds", DURATIONS)
def test_durations(seconds):
    assert in_time(seconds) == DURATIONS[seconds]


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [
        ("celltype", "did you mean 'cell_type'? "),
        ("CELL_TYPE", "did you mean 'cell_type'? "),
        ("donor", ""),
    ],
)
def test_a_similar_name_is_suggested(word, suggestion):
    assert did_you_mean(word, ["cell_type", "batch"]) == suggestion


@pytest.mark.parametrize(
    "names", [[], ["A"], ["A", "B"], ["A|B", "C"], ['"', "|", "\\"], ["a,b", " c "]], ids=str
)
def test_joined_names_can_be_split(names):
    assert split_names(join_names(names)) == names
    if not any(letter in name for name in names for letter in '|"'):
        assert join_names(names) == "|".join(names)


def test_what_can_be_a_name():
    assert [
        name_problem(text)
        for text in ["<script>alert(1)</script>", "=1+1", "../../x", "a|b", "Naïve T", "x" * 1000]
    ] == [None] * 6
    assert name_problem(3) == "is not text"
    assert name_problem(" ") == "is empty"
    assert name_problem("a\u2028b") == "has the control character U+2028"
    assert name_problem("x" * 1001) == "has 1,001 characters (most: 1,000)"


def test_formulas_are_defused():
    assert [escape_formula(text) for text in ("=1", "+1", "-1", "@a", "\ta", "\ra", "a=1", "")] == [
        *("'=1", "'+1", "'-1", "'@a", "'\ta", "'\ra"),
        *("a=1", ""),
    ]


def test_messages_cannot_steer_a_terminal():
    assert one_line("a\n\x1b[2Jb\u202ec") == "a \ufffd[2Jb\ufffdc"
    error = str(InputError("long", "x" * 10**5, "y", "z\x07"))
    assert len(error) < 2500
    assert error.isprintable()
