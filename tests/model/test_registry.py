"""Downloads of models: whatever a server answers, a file is complete or the answer is one line, in time."""

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from scperformer.base.errors import InputError
from scperformer.model import MAX_REGISTRY_BYTES, fetch, is_remote, read_registry, registry

OK = b"HTTP/1.1 200 OK\r\n"
Answer = Callable[[socket.socket], None]


@pytest.fixture
def serve() -> Iterator[Callable[[dict[str, bytes | Answer]], str]]:
    """Start a server that answers each path with these bytes, or with a function that writes them; its address."""
    with contextlib.ExitStack() as at_end:

        def start(answers: dict[str, bytes | Answer]) -> str:
            listening = at_end.enter_context(socket.create_server(("127.0.0.1", 0)))
            address = f"http://127.0.0.1:{listening.getsockname()[1]}"

            def answer(connection: socket.socket) -> None:
                with connection, contextlib.suppress(OSError):
                    path = connection.recv(2**16).split()[1].decode()
                    given = answers.get(path, b"")
                    if isinstance(given, bytes):
                        connection.sendall(given.replace(b"ADDRESS", address.encode()))
                    else:
                        given(connection)

            def accept() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        threading.Thread(target=answer, args=listening.accept()[:1], daemon=True).start()

            threading.Thread(target=accept, daemon=True).start()
            at_end.callback(listening.shutdown, socket.SHUT_RDWR)
            return address

        yield start


def moved(place: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {place}\r\nContent-Length: 0\r\n\r\n".encode()


WHOLE = {
    "length": OK + b"Content-Length: 5\r\n\r\nhello",
    "no length": OK + b"\r\nhello",
    "chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "redirection": moved("ADDRESS/there"),
    "relative redirection": moved("/there"),
    "permanent redirection": moved("/there").replace(b"302", b"308"),
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_whole_answer_is_the_file(serve, tmp_path, case):
    address = serve({"/file": WHOLE[case], "/there": WHOLE["length"]})
    fetch(f"{address}/file", tmp_path / "file", 5)
    assert (tmp_path / "file").read_bytes() == b"hello"
    with pytest.raises(InputError, match="has more than 4 bytes"):
        fetch(f"{address}/file", tmp_path / "file", 4)


BROKEN = {
    "nothing": b"",
    "no status": b"hello\r\n\r\n",
    "a status that is no number": b"HTTP/1.1 ok\r\n\r\n",
    "a long status": b"HTTP/1.1 200 " + b"x" * 70_000,
    "a long header": OK + b"X: " + b"x" * 70_000,
    "many headers": OK + b"".join(b"X-%d: x\r\n" % i for i in range(200)) + b"\r\n",
    "a cut file": OK + b"Content-Length: 50\r\n\r\nhello",
    "a cut chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n50\r\nhello",
    "no last chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    "a chunk without a number": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n0\r\n\r\n",
    "a negative chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n0\r\n\r\n",
    "a long chunk line": OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 70_000,
    "a circle": moved("/file"),
    "a growing circle": moved("/file?more"),
    "no place": b"HTTP/1.1 302 Found\r\n\r\n",
    "a place with blanks": moved("http://127.0.0.1:x y/"),
    "a place with control characters": moved("/a\x01b"),
    "a place that is no address": moved("http://[127"),
    "a port that is none": moved("http://127.0.0.1:999999/"),
    "not found": b"HTTP/1.1 404 Not \x1b[31mFound\r\nContent-Length: 0\r\n\r\n",
    "not modified": b"HTTP/1.1 304 Not Modified\r\n\r\n",
    "a password": b"HTTP/1.1 401 No\r\nWWW-Authenticate: Basic realm=x\r\nContent-Length: 0\r\n\r\n",
    "another protocol": b"\x15\x03\x01\x00\x02\x02\x16",
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_answer_is_one_line(serve, tmp_path, case):
    address = serve({"/file": BROKEN[case], "/file?more": moved("/file?more")})
    with pytest.raises(InputError, match=r"cannot be downloaded|the address ") as error:
        fetch(f"{address}/file", tmp_path / "file", 10**6)
    assert len(str(error.value).splitlines()) == 1
    assert "\x1b" not in str(error.value)


ELSEWHERE = ["http://169.254.169.254/latest", "http://example.org/x", "//example.org/x", "ftp://127.0.0.1/x"]


@pytest.mark.parametrize("place", [*ELSEWHERE, "file:///etc/passwd", "data:text/plain,x"])
def test_a_redirection_is_checked_before_it_is_followed(serve, tmp_path, place, monkeypatch):
    address = serve({"/file": moved(place)})
    connect, asked = socket.create_connection, []
    monkeypatch.setattr(socket, "create_connection", lambda to, *rest: (asked.append(to), connect(to, *rest))[1])
    with pytest.raises(InputError, match=r"the address |cannot be downloaded .*redirection to url"):
        fetch(f"{address}/file", tmp_path / "file", 100)
    assert [host for host, _ in asked] == ["127.0.0.1"]
    assert not (tmp_path / "file").exists()


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/x", "http://localhost/x", "file:///etc/passwd", "ftp://x/y"])
def test_a_registry_of_a_server_names_nothing_on_this_machine(url, tmp_path):
    source = "https://example.org/models.yaml"
    with pytest.raises(InputError, match=f"the address {url}, to which {source} leads"):
        fetch(url, tmp_path / "file", 100, source)


@pytest.mark.parametrize("url", ["http://[", "https://[::1", "http://example.org/", "file://example.org/x", "x", ""])
def test_other_addresses_are_refused(url, tmp_path):
    with pytest.raises(InputError, match="the address "):
        fetch(url, tmp_path / "file", 100)


def drip(before: bytes, piece: bytes) -> Answer:
    def answer(connection: socket.socket) -> None:
        connection.sendall(before)
        for _ in range(200):
            connection.sendall(piece)
            time.sleep(0.05)

    return answer


DRIPS = {
    "status": drip(b"HTTP/1.1 200 ", b"x"),
    "header": drip(OK, b"X: x\r\n"),
    "file": drip(OK + b"\r\n", b"x"),
    "chunk line": drip(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0"),
    "silence": lambda connection: time.sleep(2),
}


@pytest.mark.parametrize("case", DRIPS)
def test_a_server_that_is_slow_has_its_time(serve, tmp_path, case, monkeypatch):
    """Each byte comes long before a socket would give up."""
    monkeypatch.setattr(registry, "SECONDS", 0.4)
    monkeypatch.setattr(registry, "SLOWEST", 10**9)
    address = serve({"/file": DRIPS[case]})
    with pytest.raises(InputError, match=r"/file cannot be downloaded (in 0\.4 s|.*timed out)"):
        fetch(f"{address}/file", tmp_path / "file", 10**6)


def test_a_full_disk_is_not_an_error_of_the_server(serve, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(registry, "_download", full)
    with pytest.raises(OSError, match="No space left"):
        fetch("https://example.org/x", tmp_path / "file", 100)


def test_files_of_this_machine(tmp_path):
    (tmp_path / "a b.zip").write_bytes(b"hello")
    fetch((tmp_path / "a b.zip").as_uri(), tmp_path / "file", 5)
    assert (tmp_path / "file").read_bytes() == b"hello"
    for path in ("/dev/zero", str(tmp_path), str(tmp_path / "absent")):
        with pytest.raises(InputError, match="no file "):
            fetch(f"file://{path}", tmp_path / "file", 5)


ENTRIES = {
    "references": "models: &a [{name: b, labels: [x]}, *a]",
    "merged": "a: &a {x: 1}\nmodels: [{name: b, <<: *a}]",
    "encoder": "models: " + "[" * 10_000,
    "deep and long": "{a: " * 100_000,
    "more than a megabyte": "models: []\n" + "#" * MAX_REGISTRY_BYTES,
    "other bytes": b"models: [\xff]",
    "no text": b"\x00\x01",
    "number of many digits": "models: [{name: a, genes: " + "9" * 5000 + "}]",
    "dates": "models: [{name: 2020-99-99}]",
    "nothing": "",
}


@pytest.mark.parametrize("case", ENTRIES)
def test_registries_of_no_use_are_one_line(case, tmp_path):
    content = ENTRIES[case]
    (tmp_path / "r.yaml").write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(InputError, match=r"registry .*r\.yaml cannot be read"):
        read_registry(str(tmp_path / "r.yaml"))


def test_a_registry_of_a_megabyte_is_read_whole(tmp_path):
    text = "models: [{name: last}]\n"
    (tmp_path / "a registry.yaml").write_text("#" * (MAX_REGISTRY_BYTES - len(text) - 1) + "\n" + text)
    assert list(read_registry(str(tmp_path / "a registry.yaml"))) == ["last"]
    assert list(read_registry((tmp_path / "a registry.yaml").as_uri())) == ["last"]


@pytest.mark.parametrize("place", ["http://[", "HTTPS://x/y", "https://"])
def test_addresses_are_remote_whatever_follows(place):
    assert is_remote(place)
