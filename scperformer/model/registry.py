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
from dataclasses import dataclass, field, fields
from pathlib import Path
from urllib.parse import urlsplit

from scperformer.errors import InputError
from scperformer.text import did_you_mean, unfit

PACKAGED = Path(__file__).parent / "packaged" / "registry.yaml"
SCHEMES = ("file", "https")
LOCAL = ("localhost", "127.0.0.1", "::1")  # http is allowed from these hosts alone
SECONDS = 30  # without a sign of the other side
MOST_BYTES = 2**30  # of an archive
MOST_REGISTRY = 2**20  # bytes of a registry
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
        if why := next(filter(None, map(unfit, texts)), None):
            raise ValueError(f"a text that {why}")
        if any(not isinstance(num, int) or isinstance(num, bool) or num < 0 for num in (self.genes, self.size)):
            raise ValueError(f"genes or size of {self.name} that are not whole numbers")
        is_digest = len(self.sha256) == 64 and set(self.sha256) <= set("0123456789abcdef")
        if self.url and not (is_digest and 0 < self.size <= MOST_BYTES):
            raise ValueError(
                f"{self.name} without a sha256 of 64 digits, or with a size that is not 1 to {MOST_BYTES:,}"
            )

    @property
    def text(self) -> str:
        """The entry on one line."""
        facts = [f"{len(self.labels)} labels ({', '.join(self.labels)})", f"{self.genes} genes"]
        facts += [f"{what} {value}" for what, value in (("tissue", self.tissue), ("licence", self.licence)) if value]
        return ", ".join([*facts, *([self.species] if self.species else [])])


def registry_place(given: str | None) -> str:
    """Return the path or address of the registry: given, else $SCPERFORMER_REGISTRY, else that of the package."""
    return given or os.environ.get("SCPERFORMER_REGISTRY") or str(PACKAGED)


def is_remote(place: str) -> bool:
    """Whether reading a path or address goes out of this machine."""
    return urlsplit(place).scheme in ("http", "https")


def fetch(url: str, target: Path, most_bytes: int) -> None:
    """Download a file; errors of the network, other schemes than https and file, and larger files are refused."""

    def require_allowed(address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme not in SCHEMES and not (parts.scheme == "http" and parts.hostname in LOCAL):
            raise InputError(
                f"the address {address}", "one that starts with https:// or file://", "correct the registry"
            )

    from urllib.request import Request, urlopen  # takes a while to import

    require_allowed(url)
    try:
        with urlopen(Request(url, headers={"User-Agent": "scperformer"}), timeout=SECONDS) as answer:
            require_allowed(answer.geturl())  # after redirections
            size = 0
            with target.open("wb") as file:
                while chunk := answer.read(CHUNK):
                    size += len(chunk)
                    if size > most_bytes:
                        raise InputError(f"{url} has more than {most_bytes:,} bytes", "its size", "tell its author")
                    file.write(chunk)
    except InputError:
        raise
    except (OSError, ValueError) as error:  # URLError, HTTPError and time-outs are OSErrors
        remedy = "check the address and the network, or download it by hand and 'scperformer models import' it"
        raise InputError(f"{url} cannot be downloaded ({error})", "an answer", remedy) from error


def fetch_checked(entry: Entry, target: Path) -> None:
    """Download the archive of a model, and refuse it if its size or checksum is not that of the entry."""
    fetch(entry.url, target, entry.size)
    with target.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != entry.sha256 or target.stat().st_size != entry.size:
        what = f"{entry.url} with {target.stat().st_size:,} bytes and SHA-256 {found}"
        expected = f"{entry.size:,} bytes and {entry.sha256}, as in the registry"
        raise InputError(what, expected, "try again later; if it stays so, tell the author of the registry")


def read_registry(place: str, text: str | None = None) -> dict[str, Entry]:
    """Return the entries of a registry by name, from its place on this machine or from its text."""
    import yaml

    expected = "a YAML or JSON file with a list 'models' of entries, as in docs/models.md"
    try:
        if text is None:
            path = Path(urlsplit(place).path if place.startswith("file://") else place)
            with path.open(encoding="utf-8") as file:
                text = file.read(MOST_REGISTRY)
        content = yaml.safe_load(text)
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
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        raise InputError(f"registry {place} cannot be read ({error})", expected, "correct it, or its path") from error
    return entries
