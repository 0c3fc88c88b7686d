"""Pickles, read without executing anything: functions and classes stay names.

Python's unpickler imports what a file names and calls it. Here it gets an inert class in place of each name, whose
objects only record with which arguments, state and items they were made. `array_of` and `plain` make arrays and values
of these, if their bytes fit their declared types and shapes. A pickle can still take time and memory without end:
reading.py limits both.
"""

import math
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

MAX_BYTES = 2**29  # of a file; the largest models of CellTypist have some 100 MB
STARTS = (b"(", b"}", b"]", b"c")  # first bytes of protocols 0 and 1: of containers and globals
END = b"."
PLAIN = (str, bytes, int, float, bool, type(None))
# What NumPy writes to make its arrays again; the names of two modules have changed over time.
NUMPY = {
    *((f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *((f"numpy.{core}.numeric", "_frombuffer") for core in ("core", "_core")),
    *(("numpy", name) for name in ("ndarray", "dtype")),
    ("_codecs", "encode"),
    *((builtins, name) for builtins in ("builtins", "__builtin__") for name in ("bytearray", "bytes")),
}


@dataclass(frozen=True)
class Global:
    """The name of a function or class."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Made:
    """An object that a pickle asks for, which is never made: its global, arguments, state and items.

    Each global has a subclass of its own, which stands for it.
    """

    maker: ClassVar[Global]
    args: tuple[Any, ...]
    state: Any
    items: dict[Any, Any]

    def __new__(cls, *args: Any) -> "Made":
        # Protocols 0 and 1 make the objects of most classes by a function of copyreg.
        if cls.maker.name == "_reconstructor" and args and isinstance(args[0], type) and issubclass(args[0], Made):
            cls = args[0]
        made = object.__new__(cls)
        made.args = args
        made.state = None
        made.items = {}
        return made

    def __setstate__(self, state: Any) -> None:
        if self.state is not None:
            raise ValueError("a pickle with a second state of an object")
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items[key] = value

    def __repr__(self) -> str:
        return f"an object of {self.maker}"  # arguments may be nested without end


def stand_in(found: Global, allowed: Callable[[Global], bool]) -> type[Made]:
    """Return the class that stands for a global; a ValueError names one that a file may not have."""
    if not allowed(found):
        raise ValueError(f"a pickle with '{str(found)[:100]}', which such a file does not have")
    return type("Made", (Made,), {"maker": found})


class _Unpickler(pickle.Unpickler):
    """Python's unpickler, for which each global is a stand-in."""

    def __init__(self, data: bytes, allowed: Callable[[Global], bool]):
        super().__init__(BytesIO(data))
        self.allowed = allowed

    def find_class(self, module: str, name: str) -> type[Made]:
        return stand_in(Global(module, name), self.allowed)


def looks_like_pickle(path: Path) -> bool:
    """Whether a file begins, and in old protocols also ends, as a pickle does."""
    with path.open("rb") as file:
        first = file.read(2)
        if first[:1] == b"\x80":
            return len(first) == 2
        if not first.startswith(STARTS):
            return False
        file.seek(-1, 2)
        return file.read(1) == END


def read_pickle(path: Path, allowed: Callable[[Global], bool]) -> Any:
    """Return the content of a pickle, in which objects are `Made` and nothing is executed.

    Parameters
    ----------
    allowed
        Whether a file of this kind may name a global.

    Raises
    ------
    ValueError
        The file is damaged, too large, of a newer protocol, or has globals that it may not have; the text says which.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"a pickle of {size:,} bytes (most: {MAX_BYTES:,})")
    try:
        return _Unpickler(path.read_bytes(), allowed).load()
    except (ValueError, MemoryError):
        raise
    except Exception as error:  # a damaged pickle can cause any error
        raise ValueError("a damaged pickle") from error


def state_of(value: Any, what: str) -> dict[str, Any]:
    """Return the attributes of an object, such as a classifier; `what` names it in the text of a ValueError."""
    if not isinstance(value, Made) or not isinstance(value.state, dict):
        raise ValueError(f"no {what}")
    return value.state


def plain(value: Any, what: str) -> Any:
    """Return a text, number, bool or None; NumPy's scalars become values of Python."""
    if isinstance(value, Made) and value.maker.name == "scalar" and len(value.args) == 2:
        kind = _dtype(value.args[0], what)
        data = _bytes(value.args[1], what)
        if kind is None or len(data) != kind.itemsize:
            raise ValueError(f"{what} whose bytes do not fit its type")
        return _from_bytes(data, kind, what)[0].item()
    if not isinstance(value, PLAIN):
        raise ValueError(f"{what} that is neither text nor a number")
    return value


def array_of(value: Any, what: str) -> np.ndarray:
    """Return the array that a pickle describes: of numbers, of text of one length, or of objects that are plain values.

    Raises
    ------
    ValueError
        It is not an array, or its bytes do not fit its type and shape; `what` names it in the text.
    """
    if isinstance(value, list | tuple):
        return _of_objects([plain(entry, what) for entry in value], (len(value),), "C", what)
    if not isinstance(value, Made):
        raise ValueError(f"no array of {what}")
    if value.maker.name == "_new_Index":  # of pandas
        content = value.args[1] if len(value.args) == 2 and isinstance(value.args[1], dict) else {}
        return array_of(content.get("data"), what) if isinstance(content.get("data"), Made) else array_of(None, what)
    if value.maker.name == "_frombuffer" and len(value.args) == 4:  # protocol 5
        data, dtype, shape, order = value.args
    elif value.maker.name == "_reconstruct" and isinstance(value.state, tuple) and len(value.state) == 5:
        _, shape, dtype, is_fortran, data = value.state
        order = "F" if is_fortran else "C"
    else:
        raise ValueError(f"no array of {what}")
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape) or len(shape) > 32:
        raise ValueError(f"{what} of a shape that no array has")
    kind = _dtype(dtype, what)
    if kind is None:
        if not isinstance(data, list):
            raise ValueError(f"{what} whose values do not fit its shape")
        return _of_objects([plain(entry, what) for entry in data], shape, order, what)
    data = _bytes(data, what)
    if len(data) != math.prod(shape) * kind.itemsize or order not in ("C", "F"):
        raise ValueError(f"{what} whose bytes do not fit its shape")
    return _from_bytes(data, kind, what).reshape(shape, order=order)


def _from_bytes(data: bytes, kind: np.dtype, what: str) -> np.ndarray:
    """Return numbers or text; text has a code point in each four bytes, and Python fails on those that do not exist."""
    if (
        kind.kind == "U"
        and (np.frombuffer(data, dtype=np.dtype("u4").newbyteorder(kind.byteorder)) > sys.maxunicode).any()
    ):
        raise ValueError(f"{what} with characters that do not exist")
    return np.frombuffer(data, dtype=kind)


def _of_objects(values: list[Any], shape: tuple[int, ...], order: Any, what: str) -> np.ndarray:
    if len(values) != math.prod(shape):
        raise ValueError(f"{what} whose values do not fit its shape")
    flat = np.empty(len(values), dtype=object)
    flat[:] = values
    return flat.reshape(shape, order="F" if order == "F" else "C")


def _dtype(value: Any, what: str) -> np.dtype | None:
    """Return the type of numbers or text that a pickle describes; None: objects."""
    code = value.args[0] if isinstance(value, Made) and value.maker == Global("numpy", "dtype") and value.args else None
    if code in ("O8", "O4", "O", "|O"):
        return None
    is_known = isinstance(code, str) and code[:1] in tuple("fiubUS") and code[1:].isdecimal() and len(code) < 8
    state = value.state if isinstance(value, Made) else None
    order: Any = state[1] if isinstance(state, tuple) and len(state) > 1 else "="
    if not is_known or code is None or order not in ("<", ">", "=", "|") or code[1:] == "0":
        raise ValueError(f"{what} of a type that is neither numbers nor text")
    try:
        return np.dtype(code).newbyteorder(order)
    except TypeError as error:
        raise ValueError(f"{what} of a type that is neither numbers nor text") from error


def _bytes(value: Any, what: str) -> bytes:
    """Return bytes; protocols 0 to 2 write them as text that is encoded."""
    if isinstance(value, Made) and value.maker.name in ("encode", "bytearray", "bytes"):
        value = value.args[0] if value.args else b""
    if isinstance(value, str):
        try:
            return value.encode("latin1")
        except UnicodeEncodeError as error:
            raise ValueError(f"{what} whose bytes are text") from error
    if not isinstance(value, bytes | bytearray):
        raise ValueError(f"{what} without its bytes")
    return bytes(value)
