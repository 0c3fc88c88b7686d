"""Files that R's saveRDS writes: read without R and without executing anything; tables are also written.

R writes an object, its attributes and what they refer to one after another (R Internals, "Serialization Formats").
Functions, byte code and slots that no annotation needs are passed over. Libraries for this format refuse a file with a
function in it, which the commands that a Seurat object records may hold. Files are read in a child process with limits
of time and memory (`read_in_child`), so a false length harms nobody.
"""

import bz2
import gzip
import lzma
import math
import struct
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd

from scperformer.io.own_files import NAME

# Of saveRDS(compress=...)
OPENERS: dict[bytes, Callable[..., Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
XDR = b"X\n"
BLOCK_BYTES = 2**24
MAX_FRAMES = 50_000  # calls in each other, three for each list in a list; Python's own limit of 1,000 is too low
# Slots of objects that are passed over: large, or of any kind.
SKIPPED = {
    *(
        "scale.data",
        "reductions",
        "graphs",
        "neighbors",
        "images",
        "commands",
        "tools",
        "misc",
        "var.features",
    ),
    *("int_elementMetadata", "int_metadata", "metadata", "elementType", "unlistData"),
}
NOTHING = (0, 241, 242, 250, 251, 252, 253, 254)  # NULL, and marks of environments and arguments
REFERENCE, SYMBOL, TEXT, TEXTS, ENVIRONMENT, S4 = 255, 1, 9, 16, 4, 25
PAIRS = (2, 3, 5, 6, 17)  # pair lists, closures, promises, calls
LIST, EXPRESSION = 19, 20
# logical, integer, double, complex, raw
NUMBERS = {10: ">i4", 13: ">i4", 14: ">f8", 15: ">c16", 24: "u1"}
LOGICAL, INTEGER, DOUBLE = 10, 13, 14
PRIMITIVES, CODE, POINTER, WEAK, ALTERNATIVE = (7, 8), 21, 22, 23, 238
NAMED = (247, 248, 249)  # persistent names, packages, namespaces
CODE_REPEATED, CODE_DEFINED, CODE_WITH_ATTRIBUTES = 243, 244, (239, 240)
IS_OBJECT, HAS_ATTRIBUTES, HAS_TAG = 0x100, 0x200, 0x400
LATIN1, UTF8, ASCII = 4 << 12, 8 << 12, 64 << 12  # of a text
NA_INTEGER = -(2**31)
NA_REAL = struct.unpack("<d", struct.pack("<Q", 0x7FF00000000007A2))[0]


@dataclass
class RObject:
    """An object of R: numbers as an array, texts and lists as lists, pairs as (tag, value), environments as dicts."""

    kind: int
    value: Any = None
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def classes(self) -> list[str]:
        return list(getattr(self.attributes.get("class"), "value", None) or [])

    @property
    def package(self) -> str:
        return (
            next(iter(self["class"]["package"].value or [""]), "")
            if "class" in self.attributes
            else ""
        )

    def __getitem__(self, name: str) -> "RObject":
        """Return an attribute, which is a slot of an S4 object; an object without a value if it lacks."""
        robject = self.attributes.get(name)
        return robject if isinstance(robject, RObject) else RObject(0)

    def items(self) -> dict[str, "RObject"]:
        """Return the parts of a named list; those without a name are numbered."""
        names = self["names"].value or [""] * len(self.value or [])
        pairs = zip(names, self.value or [], strict=True)
        return {
            name or f"{number}": part
            for number, (name, part) in enumerate(pairs, 1)
            if isinstance(part, RObject)
        }


def read_object(path: Path) -> RObject:
    """Return the object in a file; a ValueError says why it cannot be read."""
    with path.open("rb") as file:
        start = file.read(6)
    opener = next(
        (opener for signature, opener in OPENERS.items() if start.startswith(signature)), open
    )
    with opener(path, "rb") as unpacked:
        reader = _Reader(BufferedReader(unpacked, 2**20))  # type: ignore[arg-type]
        if reader.take(2) != XDR:
            raise ValueError("no binary file of saveRDS")
        version, _, _ = [reader.number() for _ in range(3)]
        if version == 3:
            reader.take(reader.number())  # the native encoding
        before = sys.getrecursionlimit()
        sys.setrecursionlimit(MAX_FRAMES)  # calls of Python functions take no stack of C
        try:
            robject = reader.item()
        finally:
            sys.setrecursionlimit(before)
    if not isinstance(robject, RObject):
        raise ValueError("no object, but NULL or a name")
    return robject


class _Reader:
    """Reads items."""

    def __init__(self, stream: IO[bytes]):
        self.stream = stream
        self.known: list[Any] = []  # what references refer to, from 1
        self.is_skipping = False

    def take(self, size: int) -> bytes:
        data = self.stream.read(max(0, size))
        if len(data) != size:
            raise ValueError("truncated file")
        return data

    def number(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def length(self) -> int:
        size = self.number()
        return size if size >= 0 else (self.number() << 32) + (self.number() & 0xFFFFFFFF)

    def item(self, flags: int | None = None) -> Any:
        """Read an item: an RObject; the text of a symbol; None for NULL and what is passed over."""
        flags = self.number() if flags is None else flags
        kind = flags & 0xFF
        if kind in NOTHING:
            return None
        if kind == REFERENCE:
            place = (flags & 0xFFFFFFFF) >> 8 or self.number()
            if not 1 <= place <= len(self.known):
                raise ValueError("a reference to nothing")
            return self.known[place - 1]
        if kind == ALTERNATIVE:
            return self._alternative()
        if kind in PAIRS:
            return self._pairs(flags)
        if kind == ENVIRONMENT:
            return self._environment()
        if kind == SYMBOL:
            self.number()
            self.known.append(self._text(self.number()))
            return self.known[-1]
        if kind in NAMED:
            self.number()
            for _ in range(self.length()):
                self.item()
            self.known.append(None)
            return None
        robject = RObject(kind, self._content(kind))
        if flags & HAS_ATTRIBUTES:
            pairs = self.item()
            robject.attributes = (
                {} if pairs is None else {tag: part for tag, part in pairs.value if tag}
            )
        return robject

    def _content(self, kind: int) -> Any:
        if kind in NUMBERS:
            return self._numbers(np.dtype(NUMBERS[kind]), self.length())
        if kind == TEXTS:
            return self._texts(self.length())
        if kind in (LIST, EXPRESSION):
            parts = []
            for _ in range(self.length()):
                part = self.item()
                if not self.is_skipping:
                    parts.append(part)
            return None if self.is_skipping else parts
        if kind == TEXT:
            return self._text(self.number())
        if kind in PRIMITIVES:
            self.take(self.number())
        elif kind == CODE:
            self.number()
            self._code()
        elif kind in (POINTER, WEAK):
            self.known.append(None)
            for _ in range(2 if kind == POINTER else 0):
                self.item()
        elif kind != S4:
            raise ValueError(f"an item of the unknown type {kind}")
        return None

    def _numbers(self, dtype: np.dtype, size: int) -> np.ndarray | None:
        values = None if self.is_skipping else np.empty(size, dtype.newbyteorder("="))
        step = BLOCK_BYTES // dtype.itemsize
        for start in range(0, size, step):
            data = self.take(min(step, size - start) * dtype.itemsize)
            if values is not None:
                values[start : start + step] = np.frombuffer(data, dtype)
        return values

    def _texts(self, size: int) -> list[str | None] | None:
        texts = []
        for _ in range(size):
            flags, length = struct.unpack(">ii", self.take(8))
            if flags & 0xFF != TEXT:
                raise ValueError("a text that is none")
            text = self._text(length, "latin1" if flags & LATIN1 else "utf-8")
            if flags & HAS_ATTRIBUTES:
                self.item()
            if not self.is_skipping:
                texts.append(text)
        return texts

    def _text(self, length: int, encoding: str = "utf-8") -> str | None:
        return None if length == -1 else self.take(length).decode(encoding, "replace")

    def _pairs(self, flags: int) -> RObject:
        """Read a list of pairs; what a tag of `SKIPPED` names is passed over."""
        pairs = []
        while flags & 0xFF in PAIRS:
            if flags & HAS_ATTRIBUTES:
                self.item()
            tag = self.item() if flags & HAS_TAG else None
            tag = tag if isinstance(tag, str) else None  # an environment: of a function
            before = self.is_skipping
            self.is_skipping = before or tag in SKIPPED
            part = self.item()
            if not self.is_skipping:
                pairs.append((tag, part))
            self.is_skipping = before
            flags = self.number()
        if (last := self.item(flags)) is not None:
            pairs.append((None, last))
        return RObject(PAIRS[0], pairs)

    def _environment(self) -> RObject:
        robject = RObject(ENVIRONMENT, {})
        self.known.append(robject)  # it may refer to itself
        self.number()
        _, frame, table, _ = [self.item() for _ in range(4)]
        for part in (frame, *(getattr(table, "value", None) or [])):
            robject.value |= {
                tag: value for tag, value in getattr(part, "value", None) or [] if tag
            }
        return robject

    def _alternative(self) -> RObject:
        """Read an object in another form, such as a range of numbers by its ends (ALTREP).

        One of a form of another package, or whose values are in another file, keeps its kind and has no value.
        """
        is_skipping = self.is_skipping
        # its form is needed to know what it is, also where it is passed over
        self.is_skipping = False
        form = str(self.item().value[0][1])
        self.is_skipping = is_skipping
        state = self.item()
        attributes = self.item()
        if is_skipping:
            return RObject(ALTERNATIVE)
        robject = RObject(ALTERNATIVE)
        if form in ("compact_intseq", "compact_realseq"):
            size, start, step = map(int, state.value)
            values = np.arange(
                start, start + size * step, step, dtype=np.int32 if "int" in form else np.float64
            )
            robject = RObject(INTEGER if "int" in form else DOUBLE, values)
        elif form == "deferred_string" or form.startswith("wrap_"):
            robject, more = (part[1] if isinstance(part, tuple) else part for part in state.value)
            if form == "deferred_string":
                robject = RObject(
                    TEXTS,
                    [as_text(number, int(more.value[0])) for number in robject.value.tolist()],
                )
        pairs = [] if attributes is None else attributes.value
        return RObject(
            robject.kind,
            robject.value,
            {**robject.attributes, **{tag: part for tag, part in pairs if tag}},
        )

    def _code(self) -> None:
        self.item()
        for _ in range(self.length()):
            kind = self.number()
            if kind == CODE:
                self._code()
            else:
                self._code_part(kind)

    def _code_part(self, kind: int) -> None:
        while kind in (2, 6, CODE_DEFINED, *CODE_WITH_ATTRIBUTES):
            if kind == CODE_DEFINED:
                self.number()
                kind = self.number()
            if kind in CODE_WITH_ATTRIBUTES:
                self.item()
            self.item()
            self._code_part(self.number())
            kind = self.number()
        if kind == CODE_REPEATED:
            self.number()
        else:
            self.item()


def as_text(number: float, penalty: int = 0) -> str | None:
    """Return a number as R's as.character does: with 15 digits, and in the shorter form, fixed or scientific."""
    if isinstance(number, int):
        return None if number == NA_INTEGER else str(number)
    if not math.isfinite(number):
        is_missing = struct.pack("<d", number)[:4] == struct.pack("<d", NA_REAL)[:4]  # not any NaN
        return None if is_missing else {"nan": "NaN", "inf": "Inf", "-inf": "-Inf"}[str(number)]
    digits, power = f"{number:.14e}".split("e")
    digits = digits.rstrip("0").rstrip(".")
    scientific = f"{digits}e{int(power):+03d}"
    fixed = f"{number:.{max(0, len(digits.lstrip('-').replace('.', '')) - 1 - int(power))}f}"
    return fixed if len(fixed) <= len(scientific) + penalty else scientific


def write_table(
    path: Path,
    rows: list[str],
    columns: dict[str, pd.Series],
    matrices: Mapping[str, pd.DataFrame] = {},
) -> None:
    """Write a data.frame with these row names: texts, factors, numbers and logical values; missing ones are NA.

    `matrices` of numbers become attributes, with its row names.
    """
    with path.open("wb") as packed, gzip.GzipFile(NAME, "wb", 6, packed) as file:
        # version 3, which R reads since 3.5
        file.write(XDR + struct.pack(">iiii", 3, 0x40000, 0x30500, 5) + b"UTF-8")
        file.write(struct.pack(">ii", LIST | IS_OBJECT | HAS_ATTRIBUTES, len(columns)))
        for values in columns.values():
            file.write(_column(values))
        file.write(_attribute("names", _of_texts(columns)))
        file.write(_attribute("class", _of_texts(["data.frame"])))
        names = _of_texts(rows)
        file.write(_attribute("row.names", names))
        for name, matrix in matrices.items():
            file.write(
                _attribute(
                    name, _of_numbers(DOUBLE | HAS_ATTRIBUTES, matrix.to_numpy().ravel(order="F"))
                )
            )
            file.write(_attribute("dim", _of_numbers(INTEGER, np.array(matrix.shape))))
            both = struct.pack(">ii", LIST, 2) + names + _of_texts(matrix.columns)
            file.write(_attribute("dimnames", both) + struct.pack(">i", 254))
        file.write(struct.pack(">i", 254))


def _column(values: pd.Series) -> bytes:
    if isinstance(values.dtype, pd.CategoricalDtype):
        codes = np.where(values.cat.codes < 0, NA_INTEGER, values.cat.codes.astype(np.int64) + 1)
        numbers = _of_numbers(INTEGER | IS_OBJECT | HAS_ATTRIBUTES, codes)
        levels = _attribute("levels", _of_texts(values.cat.categories.astype(str)))
        return (
            numbers + levels + _attribute("class", _of_texts(["factor"])) + struct.pack(">i", 254)
        )
    if pd.api.types.is_bool_dtype(values.dtype):
        return _of_numbers(LOGICAL, values.astype("Int32").fillna(NA_INTEGER).to_numpy(np.int64))
    if pd.api.types.is_integer_dtype(values.dtype) and (values.abs() < -NA_INTEGER).all():
        return _of_numbers(INTEGER, values.astype("Int64").fillna(NA_INTEGER).to_numpy(np.int64))
    if pd.api.types.is_numeric_dtype(values.dtype):
        return _of_numbers(DOUBLE, values.to_numpy(np.float64, na_value=NA_REAL))
    return _of_texts([None if pd.isna(value) else str(value) for value in values])


def _of_numbers(flags: int, values: np.ndarray) -> bytes:
    return struct.pack(">ii", flags, len(values)) + values.astype(NUMBERS[flags & 0xFF]).tobytes()


def _of_texts(texts: Any) -> bytes:
    parts = [struct.pack(">ii", TEXTS, len(texts))]
    for text in texts:
        data = b"" if text is None else text.encode()
        flags = 0 if text is None else ASCII if data.isascii() else UTF8
        parts.append(struct.pack(">ii", TEXT | flags, -1 if text is None else len(data)) + data)
    return b"".join(parts)


def _attribute(name: str, value: bytes) -> bytes:
    data = name.encode()
    return struct.pack(">iiii", 2 | HAS_TAG, SYMBOL, TEXT | ASCII, len(data)) + data + value
