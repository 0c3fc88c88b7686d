"""Input that must be refused: by the code of the error, and by values that its message states."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scperformer.base.errors import InputError


@contextmanager
def refusal(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """A block that must raise an `InputError` with this code, whose message has these values."""
    with pytest.raises(InputError) as caught:
        yield caught
    assert caught.value.code == code
    missing = [value for value in map(str, values) if value not in str(caught.value)]
    assert missing == [], str(caught.value)
