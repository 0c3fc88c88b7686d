"""Pickles, read in a child process without executing anything: functions and classes stay names.

Python's unpickler imports what a file names and calls it. Here it gets an inert class in place of each name, whose
objects only record with which arguments, state and items they were made. `array_of` and `plain_value` make arrays and
values of these, if their bytes fit their declared types and shapes. The child process limits the time and memory that a
pickle takes.
"""

import math
import pickle
import re
import tempfile
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from scperformer.base.child import CAN_FORK, run_in_child
from scperformer.io.safety import reason_of

COPIES_IN_MEMORY = 8  # of the bytes of a file, in the memory of the child
MAX_PICKLE_BYTES = 2**29  # of a file; the largest models of CellTypist have some 100 MB
# What NumPy writes to make its arrays again; the names of two modules have changed over time.
NUMPY = (
    *(
        f"numpy.{core}.multiarray.{name}"
        for core in ("core", "_core")
        for name in ("_reconstruct", "scalar")
    ),
    *(
        "numpy.core.numeric._frombuffer",
        "numpy._core.numeric._frombuffer",
        "numpy.ndarray",
        "numpy.dtype",
    ),
    *(
        f"{builtins}.{name}"
        for builtins in ("builtins", "__builtin__")
        for name in ("bytearray", "bytes")
    ),
    "_codecs.encode",
)
# Errors of content that does not fit; Python ends in a SystemError at characters that do not exist.
MISFITS = (
    AttributeError,
    LookupError,
    OverflowError,
    RecursionError,
    SystemError,
    TypeError,
    ValueError,
)
ARRAY_TYPE = re.compile(r"[fiubUS]\d{1,6}")  # of numbers and text


def with_one_error(read: Callable[[], Any]) -> Any:
    """Return what `read` makes of a file; any error of damaged content becomes a ValueError."""
    try:
        return read()
    except (MemoryError, ValueError):
        raise
    except (EOFError, OSError) as error:
        raise ValueError(reason_of(error)) from error
    except Exception as error:  # damaged content can cause any error
        raise ValueError("parts that do not fit each other") from error


def read_in_child(read: Callable[[], Any], size: int) -> Any:
    """Return what `read` makes of a file of `size` bytes.

    A ValueError is its own, tells of a limit or crash, or replaces any other error, as damaged content can cause all.
    """

    def work() -> None:
        try:
            answer = with_one_error(read)
        except ValueError as error:
            answer = error
        pickle.dump(answer, file)
        file.flush()

    # it has no name: nothing of it remains if a process is killed
    with tempfile.TemporaryFile() as file:
        try:
            if not CAN_FORK:
                work()
            elif not run_in_child(work, size, "the library that reads it", COPIES_IN_MEMORY * size):
                raise ValueError("it cannot be read in a process with limits of time and memory")
        except ValueError as error:
            raise ValueError(f"damaged content ({error})") from error
        file.seek(0)
        answer = pickle.load(file)  # of our own child
    if isinstance(answer, ValueError):
        raise answer
    return answer


class Made:
    """What a pickle asks for, which is never made: its name, arguments, state and items; each has a subclass."""

    maker: ClassVar[str]
    args: tuple[Any, ...]
    state: Any
    items: dict[Any, Any]

    def __new__(cls, *args: Any) -> "Made":
        instance = object.__new__(cls)
        instance.args = args
        instance.state = None
        instance.items = {}
        return instance

    def __setstate__(self, state: Any) -> None:
        if self.state is not None:
            raise ValueError("a pickle with a second state of an object")
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value

    def __repr__(self) -> str:
        return f"an object of {self.maker}"  # arguments may be nested without end


def stand_in(name: str, allowed: tuple[str, ...]) -> type[Made]:
    """Return the class that stands for a name, if it is `allowed` or begins like one of these that ends with a dot."""
    if name not in allowed and not name.startswith(
        tuple(start for start in allowed if start.endswith("."))
    ):
        raise ValueError(f"a pickle with '{name[:100]}', which such a file does not have")
    return type("Made", (Made,), {"maker": name})


def looks_like_pickle(path: Path) -> bool:
    """Whether a file begins as a pickle of protocol 2 or later; Python 3 writes older ones only if asked to."""
    with path.open("rb") as file:
        return file.read(1) == b"\x80"


def read_pickle(path: Path, allowed: tuple[str, ...]) -> Any:
    """Return the content of a pickle that names only what is `allowed`; objects are `Made`, nothing is executed.

    Damaged content can raise any error: it is read by `read_in_child`.
    """

    class Inert(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> type[Made]:
            return stand_in(f"{module}.{name}", allowed)

    size = path.stat().st_size
    if size > MAX_PICKLE_BYTES:
        raise ValueError(f"a pickle of {size:,} bytes (most: {MAX_PICKLE_BYTES:,})")
    return Inert(BytesIO(path.read_bytes())).load()


def state_of(value: Any, what: str, *wanted: str) -> Mapping[str, Any]:
    """Return the attributes of an object, such as a classifier; a ValueError says that it or one of `wanted` lacks."""
    if not isinstance(value, Made) or not isinstance(value.state, dict):
        raise ValueError(f"no {what}")
    if missing := [name for name in wanted if name not in value.state]:
        raise ValueError(f"a {what} without {', '.join(missing)}")
    return value.state


def plain_value(value: Any, what: str) -> Any:
    """Return a text, number, bool or None; NumPy's scalars become values of Python. A ValueError names `what`."""
    if isinstance(value, Made) and value.maker.endswith(".scalar"):
        try:
            (number,) = np.frombuffer(_bytes(value.args[1]), dtype=_dtype(value.args[0])).tolist()
        except MISFITS as error:
            raise ValueError(f"{what} that is neither text nor a number") from error
        return number
    if not isinstance(value, str | bytes | int | float | None):
        raise ValueError(f"{what} that is neither text nor a number")
    return value


def array_of(value: Any, what: str) -> np.ndarray:
    """Return the array that a pickle describes, of numbers or of plain values; a ValueError names `what`."""
    try:
        if isinstance(value, list | tuple):
            return _of_objects(value, what)
        if value.maker.endswith("._new_Index"):  # of pandas
            return array_of(value.args[1]["data"], what)
        if value.maker.endswith("._frombuffer"):  # protocol 5
            data, dtype, shape, order = value.args
        else:
            _, shape, dtype, is_fortran, data = value.state
            order = "F" if is_fortran else "C"
        kind = _dtype(dtype)
        flat = (
            _of_objects(data, what) if kind.hasobject else np.frombuffer(_bytes(data), dtype=kind)
        )
        if flat.dtype.kind in "US":
            flat = _of_objects(flat.tolist(), what)
        if not isinstance(shape, tuple) or flat.size != math.prod(shape):
            raise ValueError("a shape that does not fit")
        return flat.reshape(shape, order=order)
    except MISFITS as error:
        raise ValueError(f"{what} that are not an array of numbers or text") from error


def _of_objects(values: Any, what: str) -> np.ndarray:
    flat = np.empty(len(values), dtype=object)
    flat[:] = [plain_value(value, what) for value in values]
    return flat


def _dtype(value: Any) -> np.dtype:
    """Return the type of numbers, text or objects that a pickle describes."""
    code = value.args[0]
    if value.maker != "numpy.dtype" or not isinstance(code, str):
        raise TypeError("no type")
    if code in ("O8", "O4", "O", "|O"):
        return np.dtype(object)
    if not ARRAY_TYPE.fullmatch(code):
        raise TypeError("a type that is neither numbers nor text")
    return np.dtype(code).newbyteorder("=" if value.state is None else value.state[1])


def _bytes(value: Any) -> bytes:
    """Return bytes; protocol 2 writes them as text that is encoded."""
    if isinstance(value, Made) and value.maker in NUMPY:
        value = value.args[0] if value.args else b""
    if isinstance(value, str):
        return value.encode("latin1")
    if not isinstance(value, bytes | bytearray):
        raise TypeError("no bytes")
    return bytes(value)
