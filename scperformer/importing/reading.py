"""Read a file of another tool in a child process, with limits of CPU time and memory (base/child.py).

The child returns plain values and arrays in a file without a name: nothing of it remains if a process is killed.
"""

import json
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np

from scperformer.base.child import DONE, FAILED, has_children, run_in_child, why_it_ended
from scperformer.base.errors import InputError

COPIES = 8  # of the bytes of a file, in the memory of the child
ARRAY = "array of the answer"  # the key of a mapping that stands for an array


def read_in_child(read: Callable[[], Any], size: int) -> Any:
    """Return what `read` returns: mappings, lists and plain values, as in JSON, and arrays of numbers.

    Parameters
    ----------
    size
        Bytes of the file that it reads.

    Raises
    ------
    ValueError, InputError
        As `read` raises them; and if it takes too much time or memory, or crashes.
    """
    with tempfile.TemporaryFile() as file:
        status = DONE
        if has_children():
            try:
                status = run_in_child(lambda: _write_answer(read, file), size, COPIES * size)
            except OSError as error:
                raise ValueError(f"content that no process can read ({error.strerror})") from error
        else:
            _write_answer(read, file)
        if status == FAILED:
            raise ValueError("content that cannot be read within limits of time and memory")
        if status != DONE:
            raise ValueError(f"damaged content ({why_it_ended(status, 'the library that reads it')})")
        file.seek(0)
        with np.load(file, allow_pickle=False) as parts:
            answer, *arrays = (parts[f"arr_{number}"] for number in range(len(parts)))
    kind, content = json.loads(
        answer.tobytes(), object_hook=lambda part: arrays[part[ARRAY]] if ARRAY in part else part
    )
    if kind == "error of the user":
        raise InputError(*content)
    if kind == "error":
        raise ValueError(content)
    return content


def _write_answer(read: Callable[[], Any], file: Any) -> None:
    """Write what `read` returns, or its error, into a file: JSON as an array of bytes, then the arrays in it."""
    arrays: list[np.ndarray] = []

    def number(value: Any) -> dict[str, int]:
        if not isinstance(value, np.ndarray):
            raise ValueError(f"a value of type {type(value).__name__}")
        arrays.append(value)
        return {ARRAY: len(arrays) - 1}

    try:
        answer = json.dumps(["content", read()], default=number)
    except InputError as error:
        answer = json.dumps(["error of the user", [error.found, error.expected, error.remedy]])
    except ValueError as error:
        answer = json.dumps(["error", str(error)])
    np.savez(file, np.frombuffer(answer.encode(), dtype=np.uint8), *arrays)
