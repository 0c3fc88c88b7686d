"""`scperformer models`: list models and tissues, describe one, or import a model.

Tissues have no model folder: `predict` makes a model of their packaged profiles. Imported models are in the library, a
folder of model folders, found by their names. A model may come from anywhere: it is checked as a whole before it is
copied into the library.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

from scperformer.base.errors import InputError, one_line
from scperformer.base.messages import did_you_mean
from scperformer.base.progress import say
from scperformer.config.steps import ModelsConfig

log = logging.getLogger(__name__)

MAX_STUDY_LENGTH = 36  # characters in the table of tissues, which is then 95 wide

USAGE = "models list | show | import"
EXAMPLES = """\
  scperformer models list
  scperformer models show pbmc3k
  scperformer models show "mouse lung"                   # the types of a tissue, and the studies that they are from
  scperformer models import a_model.zip                  # checked; then model_path=NAME finds it
  scperformer models import Immune_All_Low.pkl           # also a model of CellTypist
  scperformer models import their_model output=shared    # for SCPERFORMER_MODELS=shared"""


def run(cfg: ModelsConfig) -> list[Path]:
    """List models and tissues, show one, or import a model; return the folders of these models."""
    from scperformer.importing.folders import import_into_library
    from scperformer.model.folder import (
        CARD,
        PACKAGED_MODEL,
        imported_models,
        library_folder,
        read_model,
    )
    from scperformer.model.tissues import collection

    library = Path(cfg.output) if cfg.output else library_folder()
    if cfg.action == "import":
        return [import_into_library(Path(path), library, cfg) for path in cfg.inputs]
    only = " ".join(cfg.inputs) or None
    known = [PACKAGED_MODEL, *imported_models(library)]
    folders, tissue = known, None
    if only is not None:
        folders = [folder for folder in known if folder.name == only]
        folders = folders or [Path(only)] * Path(only).is_dir()
        tissue = collection().named(only)
        if not folders and tissue is None:
            names = [*(folder.name for folder in known), *collection().tissues()["name"]]
            found, expected = f"no model or tissue '{only}'", "one of 'scperformer models list'"
            raise InputError(
                "unknown-model", found, expected, f"{did_you_mean(only, names)}name a different one"
            )
    for folder in folders:
        try:
            text = read_model(folder).summary
        except InputError as error:
            text = f"cannot be used: {error}"
        packaged = " (packaged)" if folder == PACKAGED_MODEL else ""
        say(f"{one_line(folder.name)}{packaged}: {text}\n  {one_line(str(folder))}")
        if only is not None and (folder / CARD).is_file():
            # no checksum covers this file
            card = (folder / CARD).read_text(encoding="utf-8", errors="replace")
            say("\n" + "\n".join(map(one_line, card.splitlines())))
    if tissue is not None:
        say(_types(tissue))
    if only is None:
        say(_tissues())
        if len(known) == 1:
            log.info("no imported models in %s: 'scperformer models import PATH' adds one", library)
    return folders


def _tissues() -> str:
    from scperformer.model.tissues import COMMON, collection

    rows = [("tissue", "age and species", "types", "study")]
    for row in collection().tissues().itertuples():
        how = ", by orthologs" if row.orthologs_of else ""
        study = (
            shorten(row.title.rpartition(", ")[0], MAX_STUDY_LENGTH - len(how), placeholder="...")
            + how
        )
        rows.append(
            (row.name, f"{row.age} {row.species}", str(len(collection().labels(row.name))), study)
        )
    start = f"{len(rows) - 1} tissues: predict without a model finds the tissue of a file, tissue=NAME names it"
    end = f"{' and '.join(COMMON.values())}: types of every tissue, for files whose tissue is not determined"
    return f"\n{start}\n\n{_in_columns(rows)}\n\n{end}"


def _types(tissue: str) -> str:
    """Return the types of a tissue with the studies that they are from, and the licence of the profiles."""
    from scperformer.model.tissues import COMMON, FOLDER, LICENCE, collection

    labels = collection().labels(tissue)
    numbers = {name: str(number) for number, name in enumerate(labels["set"].unique(), start=1)}
    columns = {"type": labels["label"], "Cell Ontology": labels["term"]}
    if tissue in COMMON.values():
        tree, others = collection().tissue(tissue).tree, collection().others
        parents = {} if tree is None else tree.parents
        kinds = [f"{parents.get(name, name)} or unknown" for name in labels["label"]]
        columns["call"] = labels["label"].where(~labels["label"].isin(others), kinds)
    else:
        columns |= {"study": labels["set"].map(numbers), "merged with": labels["merged"]}
    rows = [tuple(columns), *zip(*columns.values(), strict=True)]
    lines = [f"{collection().title(tissue)}: {len(labels)} types", "", _in_columns(rows), ""]
    for source, number in numbers.items():
        lines += _study(source, number, is_short=source != tissue)
    return "\n".join([*lines, "", (FOLDER / LICENCE).read_text(encoding="utf-8").rstrip()])


def _study(source: str, number: str, is_short: bool) -> list[str]:
    """Return lines about the study of a set, or about the common types, which are of all studies of a species."""
    from scperformer.model.tissues import COMMON, collection

    if source in COMMON.values():
        studies = collection().tissue(source).studies
        named = f"'scperformer models show \"{source}\"' names them"
        text = f"study {number}: {collection().title(source)}, fitted to {len(studies)} sets of profiles"
        texts = studies["title"] + "\n  " + studies["url"] + ", " + studies["licence"]
        return [text, *(f"  {each}" for each in ([named] if is_short else texts.unique()))]
    study = collection().sets.loc[source]
    note = f" ({study['note']})" if study["note"] else ""
    how = ", by orthologs" if study["orthologs_of"] else ""
    text = f"study {number}: {study['age']} {study['species']} {study['tissue']}{how}{note}"
    return [text, f"  {study['title']}", f"  {study['url']}, {study['licence']}"]


def _in_columns(rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table as text, its columns as wide as their texts."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
