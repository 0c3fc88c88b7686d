"""Lines of the log: by the function that logs them, and by values that they state."""

import re
from functools import cache
from pathlib import Path

import pytest

import scperformer


def said(caplog: pytest.LogCaptureFixture, function: str, *values: object) -> str:
    """The lines that a function has logged, each after its level, and that have these values; "" if there are none.

    `function` is a name in the package, such as `"read_cells"`, or `"preprocess.run"` where several modules have it.
    A value is found as a whole, so that 3 is in "3 of 8 cells", but not in "0.3" or "3,000".
    """
    assert function in _functions(), f"the package has no function {function}"
    records = [record for record in caplog.records if record.name.split(".")[0] == "scperformer"]
    named = [
        record
        for record in records
        if function in (record.funcName, f"{record.module}.{record.funcName}")
    ]
    lines = [f"{record.levelname}: {record.getMessage()}" for record in named]
    return "\n".join(line for line in lines if all(_has(line, str(value)) for value in values))


def _has(line: str, value: str) -> bool:
    return re.search(rf"(?<!\w)(?<!\d[.,]){re.escape(value)}(?!\w)(?![.,]\d)", line) is not None


@cache
def _functions() -> set[str]:
    """The names of all functions, with and without that of their module: no other name could ever have a line."""
    modules = Path(scperformer.__file__).parent.rglob("*.py")
    found = [
        (path.stem, name)
        for path in modules
        for name in re.findall(r"\bdef (\w+)", path.read_text("utf-8"))
    ]
    return {name for _, name in found} | {f"{module}.{name}" for module, name in found}
