"""Read pickles without executing anything: their opcodes are interpreted, and functions and classes stay names.

Python's own unpickler imports what a file names and calls it. Here `pickletools.genops`, which only parses, gives the
opcodes, and a small stack machine follows those that data need. A global is recorded as a `Global`, and each call or
new object as a `Made`, with its arguments and its state. `array_of` and `plain` make arrays and values of these, if
their bytes fit their declared types and shapes. Opcodes that such files do not need are refused.

Memory is bounded by the size of the file and the number of opcodes: no opcode allocates more than its bytes in the
file, or a small object. A memo has an entry for each number that occurs, not for each number up to it.
"""

import math
import pickletools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

MAX_BYTES = 2**29  # of a file; the largest models of CellTypist have some 100 MB
MAX_OPCODES = 1_000_000  # an empty container takes some 60 bytes; a model of 60,000 genes has about 250,000
MAX_PROTOCOL = 5
MAX_BITS = 64  # of a whole number
STARTS = (b"(", b"}", b"]", b"c")  # first bytes of protocols 0 and 1: of containers and globals
END = b"."
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


@dataclass(frozen=True)
class Persistent:
    """A reference to something beside the pickle, such as a tensor in torch's files."""

    content: Any


@dataclass(eq=False)
class Made:
    """An object that a pickle asks for: by which global, from which arguments, and with which state and items."""

    maker: Global
    args: tuple[Any, ...]
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"an object of {self.maker}"  # arguments may be nested without end


class _Mark:
    """The mark on the stack where the items of a container begin."""


MARK = _Mark()


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
        The file is damaged, too large, of a newer protocol, or has opcodes or globals that it may not have; the text
        says which.
    """
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"a pickle of {size:,} bytes (most: {MAX_BYTES:,})")
    return unpickled(path.read_bytes(), allowed)


def unpickled(data: bytes, allowed: Callable[[Global], bool]) -> Any:
    """Return the content of a pickle in memory, as `read_pickle` does."""
    return _Machine(allowed).run(data)


def _opcodes(data: bytes) -> Iterator[tuple[str, Any]]:
    """Yield the name and the argument of each opcode."""
    try:
        for opcode, argument, _ in pickletools.genops(BytesIO(data)):
            if isinstance(argument, int) and argument.bit_length() > MAX_BITS:
                raise ValueError("a number that is too large")
            yield opcode.name, argument
    except ValueError as error:
        raise ValueError(f"a damaged pickle ({str(error)[:100]})") from error


class _Machine:
    """The stack and the memo of a pickle while its opcodes are followed."""

    def __init__(self, allowed: Callable[[Global], bool]):
        self.allowed = allowed
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        """Follow all opcodes; return what the last one leaves on the stack."""
        try:
            for number, (name, argument) in enumerate(_opcodes(data), start=1):
                if number > MAX_OPCODES:
                    raise ValueError(f"a pickle of more than {MAX_OPCODES:,} opcodes")
                self._follow(name, argument)
        except (IndexError, KeyError) as error:  # an empty stack, or an entry that the memo does not have
            raise ValueError("a damaged pickle") from error
        if len(self.stack) != 1:
            raise ValueError("a damaged pickle")
        return self.stack.pop()

    def _follow(self, name: str, argument: Any) -> None:
        """Do what an opcode says, on the stack and the memo alone."""
        stack = self.stack
        if name in LITERALS:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name]())
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self.memo[argument])
        elif name == "MARK":
            stack.append(MARK)
        elif name in ("LIST", "TUPLE", "DICT", "FROZENSET", "POP_MARK"):
            items = self._to_mark()
            if name != "POP_MARK":
                stack.append(_container(name, items))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            num = int(name[-1])
            items = [self._pop() for _ in range(num)]
            stack.append(tuple(reversed(items)))
        elif name in ("APPEND", "APPENDS", "ADDITEMS"):
            items = [self._pop()] if name == "APPEND" else self._to_mark()
            _extend(stack[-1], items)
        elif name in ("SETITEM", "SETITEMS"):
            items = list(reversed([self._pop(), self._pop()])) if name == "SETITEM" else self._to_mark()
            _set_items(stack[-1], items)
        elif name in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(self._global(argument))
        elif name in ("REDUCE", "NEWOBJ", "NEWOBJ_EX"):
            stack.append(self._made(name))
        elif name == "BUILD":
            state = self._pop()
            if not isinstance(stack[-1], Made) or stack[-1].state is not None:
                raise ValueError("a pickle with a state of something that has none")
            stack[-1].state = state
        elif name == "BINPERSID":
            stack.append(Persistent(self._pop()))
        elif name == "POP":
            stack.pop()
        elif name == "PROTO":
            if argument > MAX_PROTOCOL:
                raise ValueError(f"a pickle of the newer protocol {argument} (known: up to {MAX_PROTOCOL})")
        elif name not in ("FRAME", "STOP"):
            raise ValueError(f"a pickle with the opcode {name}, which data do not need")

    def _pop(self) -> Any:
        """Take a value from the stack; a mark is none."""
        value = self.stack.pop()
        if value is MARK:
            raise ValueError("a damaged pickle")
        return value

    def _to_mark(self) -> list[Any]:
        """Take all values above the last mark from the stack."""
        items = []
        while (value := self.stack.pop()) is not MARK:
            items.append(value)
        return items[::-1]

    def _global(self, argument: str | None) -> Global:
        if argument is None:  # STACK_GLOBAL
            name = self._pop()
            module = self._pop()
        else:
            module, _, name = argument.partition(" ")
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("a damaged pickle")
        found = Global(module, name)
        if not self.allowed(found):
            raise ValueError(f"a pickle with '{str(found)[:100]}', which such a file does not have")
        return found

    def _made(self, name: str) -> Made:
        """Record a call of a global; classes of protocols 0 and 1 are made by a function of copyreg."""
        keywords = self._pop() if name == "NEWOBJ_EX" else {}
        args = self._pop()
        maker = self._pop()
        if not isinstance(maker, Global) or not isinstance(args, tuple) or keywords:
            raise ValueError("a pickle with a call of something that is not a function")
        if maker.name == "_reconstructor" and args and isinstance(args[0], Global):
            maker = args[0]
        return Made(maker, args)


LITERALS = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
    "EMPTY_SET": set,
}
PLAIN = (str, bytes, int, float, bool, type(None))


def _container(name: str, items: list[Any]) -> Any:
    if name == "DICT":
        made: dict[Any, Any] = {}
        _set_items(made, items)
        return made
    if name == "FROZENSET":
        _require_plain(items)
        return frozenset(items)
    return tuple(items) if name == "TUPLE" else items


def _extend(target: Any, items: list[Any]) -> None:
    if isinstance(target, set):
        _require_plain(items)
        target.update(items)
    elif isinstance(target, list):
        target.extend(items)
    else:
        raise ValueError("a pickle with items of something that has none")


def _set_items(target: Any, items: list[Any]) -> None:
    """Set the items of a mapping, given as key, value, key, value."""
    entries = target.items if isinstance(target, Made) else target
    if not isinstance(entries, dict) or len(items) % 2:
        raise ValueError("a pickle with items of something that has none")
    _require_plain(items[::2])
    entries.update(zip(items[::2], items[1::2], strict=True))


def _require_plain(keys: list[Any]) -> None:
    """Refuse keys that are not plain values: the hash of nested tuples may take for ever."""
    if not all(isinstance(key, PLAIN) for key in keys):
        raise ValueError("a pickle with keys that are neither text nor numbers")


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
