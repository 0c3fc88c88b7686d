"""Check files before a run: their content, whether a model can annotate them, and whether they can train a model."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from anndata import AnnData

from scperformer.config import CheckConfig, DataConfig, PredictConfig, TrainConfig
from scperformer.dataset import (
    label_columns,
    make_reference,
    rare_labels,
    require_labels,
    require_not_annotated,
)
from scperformer.errors import InputError
from scperformer.expression import detect_expression, gene_table, plan_alignment, stored_expression
from scperformer.files import BackedH5ad, Rows, beside, open_cells, read_cells, reading
from scperformer.genes import guess_species, id_kind, require_overlap
from scperformer.outputs import new_file, require_absent
from scperformer.reports.check_text import in_words, next_command
from scperformer.reports.quality import measure_quality

if TYPE_CHECKING:
    from scperformer.model import Bundle

Cells: TypeAlias = AnnData | BackedH5ad
Checked = dict[str, Any]  # the findings about one file as JSON-able values; docs/formats.md lists them


@contextmanager
def _opened(path: str, cfg: CheckConfig) -> Iterator[Cells]:
    """Open a file as the next step does: `predict` leaves matrices on disk, `train` reads them."""
    if cfg.label_key is None:
        with open_cells(path, cfg.orientation) as cells:
            yield cells
    else:
        yield read_cells(path, cfg.orientation)


def _check_tables(cells: Cells, cfg: CheckConfig, path: str, result: Checked) -> None:
    """Add what is known without the expression: cells, genes and the columns of obs."""
    names = list(map(str, cells.var.index))
    species = guess_species(names) if cfg.species == "auto" else cfg.species
    result |= {"num_cells": cells.n_obs, "num_genes": cells.n_vars, "id_kind": id_kind(names), "species": species}
    try:
        with reading(path):
            result["label_columns"] = label_columns(cells.obs)
    except InputError:  # predict does not need obs
        result["label_columns"] = None
        result["notes"].append("the columns of obs cannot be read")
    else:
        if num := int(cells.obs_names.duplicated().sum()):
            result["notes"].append(f"{num:,} cell names repeat earlier ones; they are kept as they are")
    if cfg.label_key is not None:
        assert isinstance(cells, AnnData), "train reads the whole file"
        with suppress(InputError):  # make_reference raises it again
            labels = require_labels(cells.obs, cfg.label_key, path)
            result["labels"] = {
                "cells": {str(label): int(num) for label, num in labels.value_counts().items()},
                "num_unlabelled": int(labels.isna().sum()),
                "rare": rare_labels(labels, DataConfig.min_cells_per_label),
            }


def _check_expression(cells: Cells, cfg: CheckConfig, model: "Bundle", path: str, result: Checked) -> None:
    """Add what the expression is, the quality of the cells, and how the genes fit the model.

    Raises
    ------
    InputError
        `predict`, or with `label_key` `train`, would refuse the file: this function takes the same steps.
    """
    told = {name: getattr(cfg, name) for name in ("source", "input_kind", "input_total", "input_base")}
    with reading(path) if isinstance(cells, BackedH5ad) else nullcontext():
        findings = detect_expression(cells, **told, path=path)
        result |= {"findings": findings.as_dict(), "num_genes": findings.num_genes, "id_kind": findings.id_kind}
        matrix, genes = stored_expression(cells, findings, path=path)
        var = gene_table(cells, findings.source)
        result["quality"] = asdict(measure_quality(Rows(matrix), var, findings, cfg.doublets))
    try:
        target_sum = model.config["target_sum"]
        options = {"importance": model.importance, "target_sum": target_sum, "species": cfg.species, "path": path}
        plan = plan_alignment(var, findings, model.genes, min_overlap=None, **options)
    except InputError:
        if cfg.label_key is None:
            raise
        note = f"{model.name} cannot annotate these cells: they are of another species, or their genes have no names"
        result["notes"].append(note)
    else:
        result |= {"overlap": asdict(plan.overlap), "species": plan.mapping.species}
    if cfg.label_key is not None:
        assert isinstance(cells, AnnData)
        told |= {"orientation": cfg.orientation, "species": cfg.species}
        make_reference(cells, TrainConfig(inputs=[path], label_key=cfg.label_key, **told), path, findings)
        return
    require_overlap(plan.overlap, cfg.min_overlap, path, file_genes=genes, model_genes=model.genes, var=var)
    require_not_annotated(cells, PredictConfig.key_added, path)


def check(path: str, cfg: CheckConfig, model: "Bundle") -> Checked:
    """Find out what is in a file and what to do next with it.

    Parameters
    ----------
    model
        The model that is to annotate the cells. With `cfg.label_key` the file is checked as a reference instead, which
        need not fit the model.

    Returns
    -------
    The findings, as docs/formats.md lists them; after a problem those that were found before it.
    """
    result: Checked = {"file": path, "problem": None, "fixes": [], "command": None, "notes": []}
    step, ending = (
        ("predict", f".annotated.{PredictConfig.output_format}") if cfg.label_key is None else ("train", ".model")
    )
    usual, problem = beside(path, ending), None
    try:
        with _opened(path, cfg) as cells:
            _check_tables(cells, cfg, path, result)
            if usual.exists():
                result["notes"].append(f"{usual} exists: {step} needs output=..., or overwrite=true to replace it")
            _check_expression(cells, cfg, model, path, result)
    except InputError as error:
        problem = error
    options = []
    if usual.exists():
        others = (usual.with_name(f"{usual.stem}-{number}{usual.suffix}") for number in count(2))
        options = [f"output={next(other for other in others if not other.exists())}"]
    if problem is None:
        result["command"] = next_command(path, cfg, *options)
    else:
        result["problem"] = str(problem)
        result["fixes"] = [next_command(path, cfg, *options, fix) for fix in problem.fixes]
    return result


def run_check(cfg: CheckConfig) -> list[Checked]:
    """Print the findings about each file and the next command, as text or JSON; with `output`, write the JSON.

    Returns
    -------
    The findings about each file, as docs/formats.md lists them.

    Raises
    ------
    InputError
        At least one file has a problem; the findings about all files are printed before.
    """
    from scperformer.model import load_bundle, require_annotator, resolve_model

    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite)
    model_path, why = resolve_model(cfg.model_path)
    model = load_bundle(model_path)
    require_annotator(model, model_path)
    results = []
    for path in cfg.inputs:
        results.append(check(path, cfg, model))
        if not cfg.json:
            print(in_words(results[-1], cfg, f"{model.name} ({why})"), flush=True)
    report = {"model": {"name": model.name, "path": str(model_path), "why": why}, "files": results}
    text = json.dumps(report, indent=1, allow_nan=False)
    if cfg.json:
        print(text, flush=True)
    if cfg.output is not None:
        with new_file(cfg.output, cfg.overwrite) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    bad = [result["file"] for result in results if result["problem"] is not None]
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise InputError(
            f"{len(bad)} of {len(results)} files cannot be used as they are: {', '.join(bad[:3])}{more}",
            "files without a problem",
            "see the problem and the remedy of each file above",
        )
    return results
