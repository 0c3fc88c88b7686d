"""Pickles that would execute something, fill the memory or never end, each by its name; written by hand, never loaded.

`CANARY` is the path of a file that those which execute something would make.
"""

import pickle
import struct
import tempfile

CANARY = f"{tempfile.gettempdir()}/scperformer-canary"
COMMAND = f"touch {CANARY}"
PYTHON = f"open({CANARY!r},'w')"


def text(value: str) -> bytes:
    """A text of protocol 4."""
    data = value.encode()
    return b"\x8c" + bytes([len(data)]) + data


def named(module: str, name: str) -> bytes:
    """A global by STACK_GLOBAL."""
    return text(module) + text(name) + b"\x93"


def call(module: str, name: str, *args: str) -> bytes:
    """A call of a global with texts."""
    return named(module, name) + b"(" + b"".join(map(text, args)) + b"tR"


def whole(body: bytes, protocol: int = 4) -> bytes:
    return b"\x80" + bytes([protocol]) + body + b"."


def model(body: bytes) -> bytes:
    """The body in place of the classifier of a model of CellTypist."""
    return whole(b"}(" + text("Model") + body + text("Scaler_") + b"N" + b"u")


CALLS = {
    "os.system": ("os", "system", COMMAND),
    "builtins.eval": ("builtins", "eval", PYTHON),
    "builtins.getattr": ("builtins", "getattr", "os", "system"),
    "importlib": ("importlib", "import_module", "antigravity"),
    "functools.partial": ("functools", "partial", "x"),
    "numpy.f2py": ("numpy.f2py.crackfortran", "getlincoef", PYTHON, ""),
    "dunder name": ("builtins", "object.__subclasses__", "x"),
    "dotted name": ("numpy", "core.os.system", COMMAND),
    "our own module": ("scperformer.base.outputs", "remove_folder", CANARY),
    "sklearn beside": ("sklearnx.utils", "system", COMMAND),
}


# Globals that a model may name, which would do harm if they were called.
DISGUISED = {
    "an estimator that runs a test": call("sklearn.utils._testing", "ignore_warnings", COMMAND),
    "a name with dots in scikit-learn": call("sklearn.utils", "os.system", COMMAND),
    "a reconstruction of a class of Python": named("copyreg", "_reconstructor")
    + named("builtins", "object")
    + b"\x85R",
}
HOSTILE: dict[str, bytes] = {
    **{f"call of {name}": whole(call(*parts)) for name, parts in CALLS.items()},
    **{f"{name} in a model": model(body) for name, body in DISGUISED.items()},
    "a call of os.system in a model": model(call("os", "system", COMMAND)),
    "GLOBAL of protocol 0": whole(b"cos\nsystem\n(V" + COMMAND.encode() + b"\ntR", 2),
    "INST": whole(b"(V" + COMMAND.encode() + b"\nios\nsystem\n", 2),
    "OBJ": whole(b"(" + named("os", "system") + text(COMMAND) + b"o"),
    "NEWOBJ": whole(named("os", "system") + text(COMMAND) + b"\x85\x81"),
    "BUILD with __setstate__": model(
        named("sklearn.linear_model", "LogisticRegression")
        + b")\x81}"
        + text("__setstate__")
        + named("os", "system")
        + b"sb"
    ),
    "BUILD twice": model(named("sklearn.x", "Y") + b")\x81}b}b"),
    "EXT1": whole(b"\x82\x01"),
    "PERSID": whole(b"(Px\n", 2),
    "a persistent id as a model": model(text("x") + b"Q"),
    "out-of-band buffer": whole(b"\x97\x98", 5),
    "a call of a text": whole(text("os") + b")R"),
    "GET before PUT": whole(b"h\x07"),
    "a memo number beyond all memory": whole(b"Nr\xff\xff\xff\xff"),
    "a text of 4 GB that is not there": whole(b"X\xff\xff\xff\xff" + b"x"),
    "a bytearray of 1 TB that is not there": whole(b"\x96" + struct.pack("<Q", 2**40) + b"x", 5),
    "a frame of 8 EB": whole(b"\x95" + struct.pack("<Q", 2**63 - 1) + b"N"),
    "a number of a million digits as text": whole(b"(L" + b"9" * 1_000_000 + b"L\n", 2),
    "twenty thousand lists in lists": whole(b"]" * 20_000 + b"a" * 19_999),
    "a list in itself": whole(b"]\x94h\x00a"),
    "a key whose hash never ends": whole(
        b"}"
        + b")"
        + b"\x94h\x00\x86"
        + b"".join(
            b"q" + bytes([number]) + b"h" + bytes([number]) + b"\x86" for number in range(1, 60)
        )
        + b"Ns"
    ),
    "a key that is a list": whole(b"}]Ns"),
    "a mark as a value": whole(b"(\x85"),
    "an empty stack": whole(b""),
    "no end": b"\x80\x04N",
    "protocol 6": whole(b"N", 6),
    "an unknown opcode": whole(b"\xff"),
    "a mapping without an estimator": pickle.dumps({"Model": 1, "Scaler_": 2, "description": None}),
}
