"""Curate an annotation: read the names that a person gave to clusters, and write the file with these labels."""

import getpass
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from anndata import AnnData

from scperformer.adaptation.record import CuratedRecord, to_uns
from scperformer.annotation.curate import curate
from scperformer.annotation.write import CURATED_FORMATS, require_writable, write_curated
from scperformer.base.messages import named
from scperformer.config.steps import CurateConfig
from scperformer.io.read import default_output
from scperformer.io.sheet import read_sheet

log = logging.getLogger(__name__)


def curate_file(cfg: CurateConfig, names: Mapping[str, str] | None = None) -> Path:
    """Write an annotated file, or a table of its cells, with the labels that a person gave; return its path.

    `names` are of clusters; if None, they are in a table.
    """
    from scperformer.results.read_annotations import read_annotated

    [source] = cfg.inputs
    place = default_output(source, "")
    stem = place.name.removesuffix(".curated").removesuffix(".annotated")
    output = Path(cfg.output or place.with_name(f"{stem}.curated.h5ad"))
    require_writable(output, cfg.overwrite, CURATED_FORMATS)
    [sample] = read_annotated([source], cfg.key_added)
    columns, record = curate(sample.obs, cfg.key_added, _pairs(cfg, names), _person(cfg), source)
    table = sample.obs.drop(columns=[*columns, f"{cfg.key_added}_unknown"], errors="ignore")
    table = table[[name for name in table if str(name).startswith(f"{cfg.key_added}_")]].join(
        columns
    )
    write_curated(
        sample.path, output, table, to_uns(record), key=cfg.key_added, overwrite=cfg.overwrite
    )
    _log(record, source)
    log.info("written: %s", output)
    return output


def curate_cells(adata: AnnData, cfg: CurateConfig, names: Mapping[str, str] | None = None) -> None:
    """Add the labels that a person gave to annotated cells in memory."""
    from scperformer.results.read_annotations import of_cells

    key = cfg.key_added
    columns, record = curate(
        of_cells(adata, key).obs, key, _pairs(cfg, names), _person(cfg), "the cells"
    )
    for name, column in columns.items():
        adata.obs[name] = column.array
    adata.uns[key]["curated"] = to_uns(record)
    _log(record, "the cells")


def _pairs(cfg: CurateConfig, names: Mapping[str, str] | None) -> Iterable[tuple[str, str]]:
    if names is not None:
        return [(str(cluster), str(name or "").strip()) for cluster, name in names.items()]
    rows = read_sheet(cfg.names, ("cluster", "name"))
    return [(row.get("cluster", ""), row.get("name", "")) for row in rows]


def _person(cfg: CurateConfig) -> str:
    try:
        return cfg.by or getpass.getuser()
    except (OSError, KeyError):  # the system has no name for the user, as in a container
        return ""


def _log(record: CuratedRecord, path: str) -> None:
    num = int(record.num_cells[record.before != record.after].sum())
    text = "%s: %d clusters named by %s: %s; %s cells have another label than their call"
    log.info(
        text,
        path,
        len(set(record.cluster)),
        record.by or "a person",
        named(record.labels),
        f"{num:,}",
    )
