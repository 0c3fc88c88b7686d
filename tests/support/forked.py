"""Processes that run a module as `python -m` does, forked from one that has loaded the libraries, which takes seconds.

They load the package itself anew, from PYTHONPATH. A test of what happens while libraries are loaded starts Python.
"""

import atexit
import contextlib
import gc
import io
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

LIBRARIES = (
    "anndata",
    "hydra",
    "pandas",
    "plotly.graph_objects",
    "pytorch_lightning",
    "scanpy",
    "snakemake.cli",
)
LIBRARIES += ("sklearn.linear_model", "torch", "zarr")
ROOT = Path(__file__).parents[2]
MAX_REQUEST = 2**17  # bytes


@cache
def _server() -> socket.socket:
    """The socket of a process with the libraries, which ends with the tests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "OMP_NUM_THREADS": "1"
    }
    words = [sys.executable, __file__, str(theirs.fileno())]
    subprocess.Popen(words, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL)
    return ours


class Forked:
    """A process that runs a module with words, after some code `before`; both outputs go to one pipe if `joined`."""

    def __init__(
        self,
        module: str,
        *words: str,
        cwd: Path,
        before: str = "",
        joined: bool = False,
        **env: str,
    ):
        env = os.environ | {"PYTHONPATH": str(ROOT)} | env
        self._answers, answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipes = [os.pipe() for _ in range(1 if joined else 2)]
        self._outputs = [
            os.fdopen(reading, encoding="utf-8", errors="replace") for reading, _ in pipes
        ]
        request = {"module": module, "words": words, "cwd": str(cwd), "env": env, "before": before}
        given = [answers.fileno(), pipes[0][1], pipes[-1][1]]
        socket.send_fds(_server(), [json.dumps(request).encode()], given)
        answers.close()
        for _, writing in pipes:
            os.close(writing)
        self.pid = int(self._answers.recv(32))

    def is_running(self) -> bool:
        try:
            return not self._answers.recv(32, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self) -> tuple[str, str]:
        """Return all that it writes, once it has ended and `returncode` is known."""
        with ThreadPoolExecutor(2) as pool:
            said, errors = pool.map(lambda file: file.read(), [*self._outputs, io.StringIO()][:2])
        self.returncode = int(self._answers.recv(32))
        for file in (*self._outputs, self._answers):
            file.close()
        return said, errors


def run(module: str, *words: str, **options) -> subprocess.CompletedProcess[str]:
    """Run a module with words to its end; the options are those of `Forked`."""
    process = Forked(module, *words, **options)
    said = process.communicate()
    return subprocess.CompletedProcess([module, *words], process.returncode, *said)


def serve(server: socket.socket) -> dict:
    """Wait for requests, and return each in a process of its own, of which another one tells the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, fds, *_ = socket.recv_fds(server, MAX_REQUEST, 3)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    server.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    answers, *outputs = fds
    if pid := os.fork():
        for fd in (*outputs, 1, 2):
            os.close(fd)
        # nobody may listen any more
        with contextlib.suppress(OSError), socket.socket(fileno=answers) as told:
            told.send(str(pid).encode())
            told.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())
        os._exit(0)
    for fd, place in zip(outputs, (1, 2), strict=True):
        os.dup2(fd, place)
    for fd in fds:
        os.close(fd)
    return json.loads(message)


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):
            __import__(library)
    os.fsync = lambda _: None  # as in the fixture `_no_waiting_for_the_disk`
    gc.collect()
    gc.freeze()  # else each process looks through all of it, also at its end
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:0] = [
        request["cwd"],
        *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)),
    ]
    sys.argv[1:] = request["words"]
    exec(request["before"], {"__name__": "before"})
    code = 0
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        code = end.code or 0
    # The end of an interpreter without what it does to each object of the libraries, which takes half a second.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
