"""Models adapted to files, by their options: when they are, where adapted models are kept, `adapt`."""

import logging
import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from anndata import AnnData

from scperformer.base.errors import InputError
from scperformer.base.outputs import require_absent
from scperformer.cells import Query, find_query, read_genes
from scperformer.config import AdaptConfig, PredictConfig
from scperformer.files import default_output, open_cells
from scperformer.fitting.adapted import fit_to_condition
from scperformer.fitting.condition import Condition, adapting_pays, depth_share, find_condition
from scperformer.genes import find_panel
from scperformer.model import INFO, MODEL, ReferenceCells, damaged_model, load_reference_cells, read_model, write_model
from scperformer.network import Model, as_model, load_model, torch_state_kept

log = logging.getLogger(__name__)

NONE_KEPT = "train it again, or leave adapt=true out"


@dataclass
class Adapted:
    """A model for the cells of a file, those cells with its genes, and the record of its condition."""

    model: Model
    query: Query
    record: dict[str, Any]


@torch_state_kept()  # a network draws its first weights
def adapt_model(model: Model, query: Query, cfg: PredictConfig, condition: Condition | None = None) -> Adapted:
    """Adapt a model to a file if `cfg.adapt` says so, or take the model that was adapted to another file of its kind.

    The condition is that of the file, unless it is given.

    Raises
    ------
    InputError
        `adapt=true`, and the model keeps no cells.
    """
    saved = model.saved
    overlap = query.plan.overlap
    condition = condition or find_condition(query, with_depth=cfg.adapt != "false")
    measured = int(condition.measured.sum())
    full = saved.metrics.get("out_of_fold", {}).get("accuracy", math.nan)
    depth = math.nan if condition.depth is None else condition.depth
    record = {"adapted": False, "num_genes": measured, "depth": depth, "depth_share": math.nan, "key": condition.key}
    record |= {"expected_accuracy": math.nan, "accuracy_with_all_genes": float(full)}
    reference_cells = None if cfg.adapt == "false" else load_reference_cells(saved, model.path)
    if reference_cells is None:
        if cfg.adapt == "true":
            raise InputError(f"adapt=true and a model that keeps no cells ({model.path})", "kept cells", NONE_KEPT)
        own = saved.provenance  # of a model that was adapted, and its own condition
        if "adapted_from" in own and condition.measured.all() and own.get("depth") in (None, condition.depth):
            record["expected_accuracy"] = float(full)
        return Adapted(model, query, record)
    share = depth_share(reference_cells, condition)
    record["depth_share"] = share
    if cfg.adapt == "auto" and not adapting_pays(overlap.informative_share, share):
        record["expected_accuracy"] = float(full)
        text = "" if math.isnan(full) else f"; expected accuracy {full:.2f}"
        log.info("%s: genes and depth are like the reference's%s", query.path, text)
        return Adapted(model, query, record)
    if condition.key not in model.adapted:
        begin = time.perf_counter()
        log.info("%s: fits the model to its %d genes and its depth: some seconds", query.path, measured)
        model.adapted[condition.key] = _load_or_adapt(model, reference_cells, condition, cfg)
        log.info("the model was adapted to %d genes in %.1f s", measured, time.perf_counter() - begin)
    adapted = model.adapted[condition.key]
    expected = adapted.saved.provenance["expected_accuracy"]
    expected = math.nan if expected is None else float(expected)  # None: simulated cells
    if math.isnan(expected):
        log.info("%s: the accuracy on its %d genes and its depth is not known", query.path, measured)
    else:
        depth_text = "its depth" if share < 1 else "the reference's depth"
        text = "%s: on reference cells reduced to its %d genes and %s: accuracy %.2f (%.2f with all genes)"
        log.info(text, query.path, measured, depth_text, expected, full)
    record |= {"adapted": True, "expected_accuracy": expected}
    return Adapted(adapted, query.of_genes(condition.measured), record)


def _load_or_adapt(model: Model, reference_cells: ReferenceCells, condition: Condition, cfg: PredictConfig) -> Model:
    """Take an adapted model from `cfg.adapted_folder`, or make it and put it there."""
    if cfg.adapted_folder is None:
        return as_model(fit_to_condition(model, reference_cells, condition), model.path)
    folder = Path(cfg.adapted_folder) / f"{model.saved.hash[:16]}-{condition.key}-{version('scperformer')}"
    if not (folder / INFO).is_file():
        made = fit_to_condition(model, reference_cells, condition)
        with suppress(InputError):  # another job has just put it there
            write_model(made, folder)
    saved = read_model(folder)
    if saved.genes != [gene for gene, there in zip(model.saved.genes, condition.measured, strict=True) if there]:
        raise damaged_model(folder, "other genes than those of its condition")
    # Records name the model that was adapted.
    return as_model(replace(saved, hash=model.saved.hash), model.path)


@torch_state_kept()
def write_adapted(model: Model, source: str | AnnData, output: Path, cfg: AdaptConfig) -> Path:
    """Write a model that is adapted to a file, to cells in memory or to a text file of genes; return its folder.

    Raises
    ------
    InputError
        The model keeps no cells; the file cannot be annotated by it; or fewer than half of the genes of the text file,
        or fewer than 50 of them, are genes of the model.
    """
    require_absent(output, cfg.overwrite, MODEL)
    reference_cells = load_reference_cells(model.saved, model.path)
    if reference_cells is None:
        raise InputError(f"a model that keeps no cells ({model.path})", "kept cells", "train it again")
    if isinstance(source, AnnData):
        condition = find_condition(find_query(source, model.saved, cfg))
    elif source.endswith(".txt"):
        genes = model.saved.genes
        condition = Condition(find_panel(read_genes(source), genes, "model", species=cfg.species, path=source), None)
    else:
        with open_cells(source, cfg.orientation) as cells:
            condition = find_condition(find_query(cells, model.saved, cfg, source))
    made = fit_to_condition(model, reference_cells, condition)
    write_model(replace(made, name=output.name.removesuffix(".adapted")), output, overwrite=cfg.overwrite)
    text = "written: %s; on reference cells reduced to its %d genes: accuracy %.2f (%.2f with all genes)"
    scores = (each.metrics.get("out_of_fold", {}).get("accuracy", math.nan) for each in (made, model.saved))
    log.info(text, output, len(made.genes), *scores)
    return output


def run_adapt(cfg: AdaptConfig) -> Path:
    """Write a model that is adapted to a file or to a text file of genes, as `write_adapted`; return its folder."""
    output = Path(cfg.output) if cfg.output else default_output(cfg.inputs[0], ".adapted")
    require_absent(output, cfg.overwrite, MODEL)
    return write_adapted(load_model(cfg.model_path), cfg.inputs[0], output, cfg)
