"""HGNC's table of human genes in the user's cache: fetched and checked once, verified whenever it is read."""

import csv
import gzip
import hashlib
import http.client
import io
import json
import logging
import os
import re
import urllib.request
import zlib
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from scperformer.config import GenesConfig
from scperformer.errors import InputError
from scperformer.outputs import new_folder

log = logging.getLogger(__name__)

TABLE, INFO = "hgnc.tsv", "hgnc.json"
COLUMNS = ("symbol", "status", "alias_symbol", "prev_symbol", "ensembl_gene_id")
MIN_ROWS = 40_000  # the complete set has had more since 2018
MAX_BYTES = 500_000_000
TIMEOUT = 60  # seconds without an answer
UPDATE = "scperformer genes update"


@dataclass(frozen=True)
class Hgnc:
    """Human genes by their current symbols.

    Attributes
    ----------
    symbols
        The current symbol of an Ensembl id.
    ids
        The Ensembl id of a current symbol; "" where HGNC knows none.
    former
        The current symbol of a previous symbol or alias (upper case) that fits one gene alone and is itself no current
        symbol.
    date
        When the table was fetched.
    """

    symbols: dict[str, str]
    ids: dict[str, str]
    former: dict[str, str]
    date: str


def cache_folder() -> Path:
    """Where the table is: $SCPERFORMER_CACHE, else in $XDG_CACHE_HOME, else in ~/.cache."""
    if own := os.environ.get("SCPERFORMER_CACHE"):
        return Path(own) / "hgnc"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "scperformer" / "hgnc"


# --- reading -------------------------------------------------------------------------------------------------


def read_hgnc(folder: Path | None = None) -> Hgnc | None:
    """The table of the cache; None if it was never fetched.

    Raises
    ------
    InputError
        It is not as it was written.
    """
    folder = folder or cache_folder()
    if not (folder / INFO).is_file():
        return None
    try:
        info = json.loads((folder / INFO).read_text(encoding="utf-8"))
        content = (folder / TABLE).read_bytes()
        if hashlib.sha256(content).hexdigest() != info["sha256"]:
            raise _damaged(folder, f"{TABLE} changed since it was written")
        return _parsed(content, str(info["date"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise error if isinstance(error, InputError) else _damaged(folder, "a file is missing or unreadable") from error


def _damaged(folder: Path, what: str) -> InputError:
    return InputError(f"damaged table of gene names in {folder}: {what}", "it as it was written", f"run '{UPDATE}'")


@lru_cache(maxsize=1)
def _parsed(content: bytes, date: str) -> Hgnc:
    rows = [line.split("\t") for line in content.decode("utf-8").splitlines()[1:]]
    ids = {symbol: identifier for symbol, identifier, _ in rows}
    taken = {symbol.upper() for symbol in ids}
    pairs = {(name.upper(), symbol) for symbol, _, names in rows for name in names.split("|") if name}
    num_genes = Counter(name for name, _ in pairs)
    former = {name: symbol for name, symbol in pairs if num_genes[name] == 1 and name not in taken}
    owners = Counter(identifier for identifier in ids.values() if identifier)
    symbols = {identifier: symbol for symbol, identifier in ids.items() if owners[identifier] == 1}
    return Hgnc(symbols, ids, former, date)


# --- fetching ------------------------------------------------------------------------------------------------


def fetch(url: str, offline: bool) -> bytes:
    """The bytes at an address or in a file, unpacked if they are gzipped.

    Raises
    ------
    InputError
        The network is needed and `offline`, or out of reach, or there is no such file.
    """
    remedy = "try again later, or fetch the file elsewhere and name it with url=FILE"
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if url.lower().startswith("file:"):
        scheme = "file"
    if scheme not in ("", "file", "http", "https"):
        raise InputError(f"url={url}", "a file, or an address that begins with https, http or file", "set url=...")
    if scheme in ("http", "https") and offline:
        raise InputError(f"offline=true and url={url}", "no use of the network", "name a local file with url=FILE")
    try:
        if scheme:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
                content = answer.read(MAX_BYTES + 1)
        else:
            content = Path(url).read_bytes()
        if content.startswith(b"\x1f\x8b"):
            with gzip.open(io.BytesIO(content)) as packed:
                content = packed.read(MAX_BYTES + 1)
    except (OSError, ValueError, EOFError, zlib.error, http.client.HTTPException) as error:
        reason = str(getattr(error, "reason", None) or getattr(error, "strerror", None) or error)
        raise InputError(f"nothing to be had from {url} ({reason})", "HGNC's complete set", remedy) from error
    if len(content) > MAX_BYTES:
        raise InputError(f"more than {MAX_BYTES:,} bytes at {url}", "HGNC's complete set", remedy)
    return content


def compact(content: bytes, where: str, min_rows: int = MIN_ROWS) -> str:
    """HGNC's complete set with the columns that are needed: symbol, Ensembl id, previous symbols and aliases.

    Raises
    ------
    InputError
        The content is not HGNC's complete set.
    """
    expected = f"HGNC's complete set: a table with the columns {', '.join(COLUMNS)} and {min_rows:,} genes or more"
    remedy = "check url=..., or fetch the file again"
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"bytes that are no text in {where}", expected, remedy) from error
    try:
        table = list(csv.DictReader(lines, delimiter="\t"))
    except csv.Error as error:
        raise InputError(f"{where} is no table ({error})", expected, remedy) from error
    header = next(csv.reader(lines[:1], delimiter="\t"), [])
    if missing := [name for name in COLUMNS if name not in header]:
        raise InputError(f"no column {', '.join(missing)} in {where}", expected, remedy)
    rows = []
    for number, row in enumerate(table, start=2):
        if any(row[name] is None for name in COLUMNS):
            raise InputError(f"row {number} of {where} is cut off", expected, remedy)
        if row["status"] == "Approved":
            names = "|".join(name for name in (row["prev_symbol"], row["alias_symbol"]) if name)
            rows.append((row["symbol"], row["ensembl_gene_id"], names))
    if len(rows) < min_rows:
        raise InputError(f"{len(rows):,} approved genes in {where}", expected, remedy)
    odd = [row for row in rows if not row[0] or "\t" in "".join(row) or not re.fullmatch(r"(ENSG\d+)?", row[1])]
    if odd or len({symbol for symbol, _, _ in rows}) < len(rows):
        what = f"an odd row ({odd[0][0]!r}, {odd[0][1]!r})" if odd else "repeated symbols"
        raise InputError(f"{what} in {where}", expected, remedy)
    return "".join("\t".join(row) + "\n" for row in [("symbol", "ensembl_gene_id", "former"), *rows])


def update(url: str, folder: Path, *, offline: bool = False, min_rows: int = MIN_ROWS) -> int:
    """Fetch HGNC's complete set and write what is needed of it into a folder, whole or not at all.

    Returns
    -------
    The number of genes.

    Raises
    ------
    InputError
        It cannot be had, is not what it should be, or the folder cannot be written.
    """
    text = compact(fetch(url, offline), url, min_rows)
    table = text.encode("utf-8")
    num_genes = text.count("\n") - 1
    info = {
        "sha256": hashlib.sha256(table).hexdigest(),
        "date": datetime.now(UTC).date().isoformat(),
        "url": url,
        "num_genes": num_genes,
    }
    with new_folder(folder, overwrite=True, marker=INFO) as temporary:
        (temporary / TABLE).write_bytes(table)
        (temporary / INFO).write_text(json.dumps(info, indent=1) + "\n", encoding="utf-8")
    return num_genes


def run_genes(cfg: GenesConfig) -> Path:
    """Bring HGNC's table of human gene names into the cache, or into `output`.

    Returns
    -------
    The folder that was written.
    """
    folder = Path(cfg.output) if cfg.output is not None else cache_folder()
    log.info("fetching %s", cfg.url)
    num_genes = update(cfg.url, folder, offline=cfg.offline)
    log.info("%s human genes with their previous symbols and aliases: %s", f"{num_genes:,}", folder)
    return folder
