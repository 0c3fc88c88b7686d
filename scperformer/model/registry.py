"""The registry: a YAML or JSON file of models that can be downloaded, each with its size and checksum.

    models:
      - name: lung            # of the model folder in the archive
        tissue: lung
        species: human
        labels: [AT1, AT2]
        genes: 20000
        licence: CC BY 4.0
        url: https://...      # of a .zip, .tar or .tar.gz of the model folder; also file://
        size: 12000000        # bytes of it
        sha256: 64 digits     # of it

Only `fetch` goes out, and only `models pull` calls it.
"""

import hashlib
import os
import threading
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from scperformer.base.errors import InputError, as_disk_full
from scperformer.base.messages import did_you_mean, in_time, name_problem
from scperformer.base.yaml_files import read_yaml

PACKAGED_REGISTRY = Path(__file__).parent / "packaged" / "registry.yaml"
LOCAL = ("localhost", "127.0.0.1", "::1")  # http is allowed from these hosts alone
SECONDS = 30  # without a sign of the other side
SLOWEST = 100_000  # bytes per second of a download, after these seconds
MAX_ARCHIVE_BYTES = 2**30  # of an archive
MAX_REGISTRY_BYTES = 2**20  # bytes of a registry
CHUNK = 2**20


@dataclass(kw_only=True)
class Entry:
    """A model in a registry; without `url` it is part of the package."""

    name: str
    tissue: str = ""
    species: str = ""
    labels: list[str] = field(default_factory=list)
    genes: int = 0
    licence: str = ""
    url: str = ""
    size: int = 0
    sha256: str = ""

    def __post_init__(self) -> None:
        texts = [
            self.name,
            *self.labels,
            *filter(None, (self.tissue, self.species, self.licence, self.url, self.sha256)),
        ]
        if why := next(filter(None, map(name_problem, texts)), None):
            raise ValueError(f"a text that {why}")
        if any(not isinstance(num, int) or isinstance(num, bool) or num < 0 for num in (self.genes, self.size)):
            raise ValueError(f"genes or size of {self.name} that are not whole numbers")
        is_digest = len(self.sha256) == 64 and set(self.sha256) <= set("0123456789abcdef")
        if self.url and not (is_digest and 0 < self.size <= MAX_ARCHIVE_BYTES):
            raise ValueError(
                f"{self.name} without a sha256 of 64 digits, or with a size that is not 1 to {MAX_ARCHIVE_BYTES:,}"
            )

    @property
    def text(self) -> str:
        """The entry on one line."""
        facts = [f"{len(self.labels)} labels ({', '.join(self.labels)})", f"{self.genes} genes"]
        facts += [f"{what} {value}" for what, value in (("tissue", self.tissue), ("licence", self.licence)) if value]
        return ", ".join([*facts, *([self.species] if self.species else [])])


def registry_place(given: str | None) -> str:
    """Return the path or address of the registry: given, else $SCPERFORMER_REGISTRY, else that of the package."""
    return given or os.environ.get("SCPERFORMER_REGISTRY") or str(PACKAGED_REGISTRY)


def is_remote(place: str) -> bool:
    """Whether reading a path or address goes out of this machine."""
    return place.lower().startswith(("http://", "https://"))


def _require_allowed(address: str, source: str | None) -> None:
    """Refuse an address that is neither https:// nor, unless a remote `source` names it, on this machine."""
    try:
        parts = urlsplit(address)
        is_own = parts.hostname in {"file": (None, "localhost"), "http": LOCAL}.get(parts.scheme, ())
        named_from_afar = source is not None and is_remote(source) and urlsplit(source).scheme != parts.scheme
    except ValueError as error:
        raise InputError(f"the address {address} ({error})", "one of a server or file", "correct it") from error
    if parts.scheme != "https" and (not is_own or named_from_afar):
        by = f", to which {source} leads" if named_from_afar else ""
        raise InputError(
            f"the address {address}{by}", "one that starts with https:// or file://", "correct the registry"
        )


def fetch(url: str, target: Path, most_bytes: int, source: str | None = None) -> None:
    """Download a file; errors of the network, other schemes than https and file, and larger files are refused.

    Each redirection is checked before it is followed. The download has to end in time, however slowly bytes come.

    Parameters
    ----------
    source
        The registry that names the address.
    """
    from http.client import HTTPException  # takes a while to import

    _require_allowed(url, source)
    seconds = SECONDS + most_bytes / SLOWEST
    ended: list[Exception | None] = []
    too_late = threading.Event()

    def work() -> None:
        try:
            _download(url, target, most_bytes, too_late)
            ended.append(None)
        except (OSError, ValueError, HTTPException) as error:  # URLError, HTTPError and time-outs are OSErrors
            ended.append(error)

    remedy = "check the address and the network, or download it by hand and 'scperformer models import' it"
    # The time-out of a socket begins anew with each byte, and names of servers are looked up without one.
    worker = threading.Thread(target=work, name="scperformer download", daemon=True)
    worker.start()
    worker.join(seconds)
    if worker.is_alive():
        too_late.set()
        raise InputError(f"{url} cannot be downloaded in {in_time(seconds)}", "a faster answer", remedy)
    assert ended, "another error is a bug, which its thread has shown"
    error = ended[0]
    if error is not None and (isinstance(error, InputError) or as_disk_full(error)):
        raise error
    if error is not None:
        reason = str(error) or type(error).__name__
        raise InputError(f"{url} cannot be downloaded ({reason})", "an answer", remedy) from error


def _download(url: str, target: Path, most_bytes: int, too_late: threading.Event) -> None:
    """Write what an address gives into a file, until it is too late."""
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class Checked(HTTPRedirectHandler):
        def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
            """Look at an address before it is followed."""
            _require_allowed(newurl, source=url)
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    size = 0
    declared = None
    if is_remote(url):
        answer = build_opener(Checked).open(Request(url, headers={"User-Agent": "scperformer"}), timeout=SECONDS)
        declared = answer.headers.get("Content-Length")
    else:
        path = Path(unquote(urlsplit(url).path))
        if not path.is_file():  # a pipe might never end
            raise FileNotFoundError(f"no file {path}")
        answer = path.open("rb")
    with answer, target.open("wb") as file:
        while (chunk := answer.read1(CHUNK)) and not too_late.is_set():
            size += len(chunk)
            if size > most_bytes:
                raise InputError(f"{url} has more than {most_bytes:,} bytes", "its size", "tell its author")
            file.write(chunk)
    if declared not in (None, str(size)):
        raise ConnectionError(f"it broke off after {size:,} of {declared} bytes")


def fetch_checked(entry: Entry, target: Path, source: str) -> None:
    """Download the archive of a model of the registry `source`; refuse another size or checksum than the entry's."""
    fetch(entry.url, target, entry.size, source)
    with target.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != entry.sha256 or target.stat().st_size != entry.size:
        what = f"{entry.url} with {target.stat().st_size:,} bytes and SHA-256 {found}"
        expected = f"{entry.size:,} bytes and {entry.sha256}, as in the registry"
        raise InputError(what, expected, "try again later; if it stays so, tell the author of the registry")


def read_registry(place: str, text: str | None = None) -> dict[str, Entry]:
    """Return the entries of a registry by name, from its place on this machine or from its text."""
    expected = "a YAML or JSON file with a list 'models' of entries, as in docs/models.md"
    try:
        if text is None:
            path = Path(unquote(urlsplit(place).path) if place.startswith("file://") else place)
            with path.open("rb") as file:
                found = file.read(MAX_REGISTRY_BYTES + 1)
            if len(found) > MAX_REGISTRY_BYTES:
                raise ValueError(f"more than {MAX_REGISTRY_BYTES:,} bytes")
            text = found.decode("utf-8")
        content = read_yaml(text)
        known = {part.name for part in fields(Entry)}
        entries: dict[str, Entry] = {}
        for values in content["models"]:
            if unknown := sorted(values.keys() - known):
                raise ValueError(
                    f"'{unknown[0]}': {did_you_mean(unknown[0], known)}known are {', '.join(sorted(known))}"
                )
            entry = Entry(**values)
            if entries.setdefault(entry.name, entry) is not entry:
                raise ValueError(f"{entry.name} twice")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"registry {place} cannot be read ({error})", expected, "correct it, or its path") from error
    return entries
