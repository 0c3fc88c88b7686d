"""The input doctor: what is in a file, whether a model can annotate it, and whether it can train one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anndata import AnnData

from scperformer.config import CheckConfig, DataConfig, PredictConfig, TrainConfig
from scperformer.dataset import (
    Seen,
    find_query,
    keys_of,
    label_columns,
    make_reference,
    rare_labels,
    require_labels,
    require_not_annotated,
)
from scperformer.errors import InputError
from scperformer.expression import detect_expression, gene_table, plan_alignment, stored_expression
from scperformer.files import BackedH5ad, Rows, beside, can_stream, open_backed, read_cells, reading, require_readable
from scperformer.genes import guess_species, id_kind
from scperformer.outputs import new_file, require_absent
from scperformer.reports.check_text import block, commands, ready_command
from scperformer.reports.quality import Quality, count_doublets, measure_quality, why_no_doublets

if TYPE_CHECKING:
    from scperformer.model import Bundle

Checked = dict[str, Any]  # what is known of a file, JSON-able: docs/formats.md says what is in it


@contextmanager
def _opened(path: str, cfg: CheckConfig) -> Iterator[AnnData | BackedH5ad]:
    """The cells of a file as `predict` has them, or as `train` has them, in memory."""
    if cfg.label_key is None and require_readable(path) == "h5ad" and can_stream(path):
        with open_backed(path) as cells:
            yield cells
    else:
        yield read_cells(path, cfg.orientation)


def _examine(path: str, cfg: CheckConfig, model: "Bundle") -> Checked:
    """Everything that can be said about a file; a problem ends the examination that meets it, but no other one."""
    result: Checked = {"file": path, "problem": None, "mends": [], "command": None, "notes": []}
    try:
        with _opened(path, cfg) as cells:
            result |= _contents(cells, cfg, path)
            result["notes"] = _notes(cells, result, path, cfg)
            seen = Seen()
            problem = _problem(cells, model, cfg, path, seen)
            result |= _expression(cells, seen, cfg, path)
            if cfg.label_key is not None:
                result |= _labels(cells, cfg.label_key, path)
                result["notes"] += _try_model(cells, model, cfg, path, seen)
            if seen.plan is not None:
                result |= {"overlap": asdict(seen.plan.overlap), "species": seen.plan.mapping.species}
    except InputError as error:
        problem = error
    output = _free_output(path, cfg)
    if problem is not None:
        result |= {"problem": str(problem), "mends": commands(path, cfg, problem.mends, *output)}
    else:
        result["command"] = ready_command(path, cfg, *output)
    return result


def _usual_output(path: str, cfg: CheckConfig) -> Path:
    """What the step writes unless it is told otherwise."""
    return beside(Path(path), f".annotated.{PredictConfig.output_format}" if cfg.label_key is None else ".model")


def _free_output(path: str, cfg: CheckConfig) -> list[str]:
    """Where the step can write, as an option; none where nothing is in the way of what it writes by itself."""
    usual = _usual_output(path, cfg)
    if not usual.exists():
        return []
    names = (usual.with_name(f"{usual.stem}-{number}{usual.suffix}") for number in count(2))
    return [f"output={next(name for name in names if not name.exists())}"]


def _contents(cells: AnnData | BackedH5ad, cfg: CheckConfig, path: str) -> Checked:
    """What can be said before anyone has looked at values."""
    names = list(map(str, cells.var.index))
    species = guess_species(names) if cfg.species == "auto" else cfg.species
    found = {"num_cells": cells.n_obs, "num_genes": cells.n_vars, "id_kind": id_kind(names), "species": species}
    return found | {"label_columns": _label_columns(cells, path)}


def _label_columns(cells: AnnData | BackedH5ad, path: str) -> dict[str, int] | None:
    """The columns that could be labels; None where obs cannot be read, which is nothing that `predict` needs."""
    try:
        with reading(path):
            return label_columns(cells.obs)
    except InputError:
        return None


def _notes(cells: AnnData | BackedH5ad, result: Checked, path: str, cfg: CheckConfig) -> list[str]:
    notes = []
    if result["label_columns"] is None:
        notes.append("the columns of obs cannot be read")
    elif num := int(cells.obs_names.duplicated().sum()):
        notes.append(f"{num:,} cell names repeat earlier ones; they are kept as they are")
    output = _usual_output(path, cfg)
    if output.exists():
        step = "predict" if cfg.label_key is None else "train"
        notes.append(f"{output} exists: {step} needs output=..., or overwrite=true to replace it")
    return notes


def _problem(
    cells: AnnData | BackedH5ad, model: "Bundle", cfg: CheckConfig, path: str, seen: Seen
) -> InputError | None:
    """Why `predict`, or with `label_key` `train`, would refuse some cells: what these two do is done here."""
    try:
        if cfg.label_key is None:
            find_query(cells, model, cfg, path, seen)
            keys = cells.keys() if isinstance(cells, BackedH5ad) else keys_of(cells)
            require_not_annotated(keys, PredictConfig.key_added, path)
        else:
            assert isinstance(cells, AnnData), "train reads files as a whole"
            _require_reference(cells, cfg, path, seen)
    except InputError as error:
        return error
    return None


def _require_reference(adata: AnnData, cfg: CheckConfig, path: str, seen: Seen) -> None:
    """Fail where `train` would."""
    assert cfg.label_key is not None
    seen.findings = detect_expression(
        adata, cfg.source, cfg.input_kind, input_total=cfg.input_total, input_base=cfg.input_base, path=path
    )
    matrix, _ = stored_expression(adata, seen.findings, path=path)
    seen.rows = Rows(matrix)
    told = {
        name: getattr(cfg, name)
        for name in ("orientation", "source", "input_kind", "input_total", "input_base", "species")
    }
    make_reference(adata, TrainConfig(inputs=[path], label_key=cfg.label_key, **told), path, seen.findings)


def _expression(cells: AnnData | BackedH5ad, seen: Seen, cfg: CheckConfig, path: str) -> Checked:
    """Where the expression is, what it is, and what it says about the cells."""
    if seen.findings is None:
        return {}
    found = seen.findings.as_dict()
    result: Checked = {"findings": found, "num_genes": found["num_genes"], "id_kind": found["id_kind"]}
    if seen.rows is not None:
        with reading(path) if isinstance(cells, BackedH5ad) else nullcontext():
            result["quality"] = _quality(cells, seen, cfg).as_dict()
    return result


def _quality(cells: AnnData | BackedH5ad, seen: Seen, cfg: CheckConfig) -> Quality:
    assert seen.findings is not None
    assert seen.rows is not None
    quality = measure_quality(seen.rows, gene_table(cells, seen.findings.source), seen.findings)
    num, note = None, why_no_doublets(seen.findings, cfg.doublets)
    if not note:
        num, note = count_doublets(seen.rows)
    return replace(quality, num_doublets=num, doublet_note=note)


def _labels(adata: AnnData | BackedH5ad, label_key: str, path: str) -> Checked:
    """The labels of a reference; nothing where there are none, which is its problem."""
    assert isinstance(adata, AnnData)
    try:
        labels = require_labels(adata, label_key, path)
    except InputError:
        return {}
    cells = {str(label): int(num) for label, num in labels.value_counts().items()}
    rare = rare_labels(labels, DataConfig.min_cells_per_label)
    return {"labels": {"cells": cells, "num_unlabelled": int(labels.isna().sum()), "rare": rare}}


def _try_model(cells: AnnData | BackedH5ad, model: "Bundle", cfg: CheckConfig, path: str, seen: Seen) -> list[str]:
    """How a reference fits the model, which it need not; a note if it does not at all."""
    if seen.findings is None:
        return []
    options = {"importance": model.importance, "target_sum": model.config["target_sum"], "species": cfg.species}
    var = gene_table(cells, seen.findings.source)
    try:
        seen.plan = plan_alignment(var, seen.findings, model.genes, **options, min_overlap=None, path=path)
    except InputError:
        return [f"{model.name} could not annotate these cells: they are of another species, or genes have no names"]
    return []


# The step


def run_check(cfg: CheckConfig) -> list[Checked]:
    """Print what each file holds and what to do with it, for people or as JSON; with `output`, write the JSON.

    Returns
    -------
    A dict per file, as docs/formats.md describes it.

    Raises
    ------
    InputError
        At least one file has a problem; all files have been printed before.
    """
    from scperformer.model import load_bundle, require_annotator, resolve_model

    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite)
    model_path, why = resolve_model(cfg.model_path)
    model = load_bundle(model_path)
    require_annotator(model, model_path)
    results = []
    for path in cfg.inputs:
        results.append(_examine(path, cfg, model))
        if not cfg.json:
            print(block(results[-1], cfg, f"{model.name} ({why})"), flush=True)
    report = {"model": {"name": model.name, "path": str(model_path), "why": why}, "files": results}
    text = json.dumps(report, indent=1, allow_nan=False)
    if cfg.json:
        print(text, flush=True)
    if cfg.output is not None:
        with new_file(cfg.output, cfg.overwrite) as temporary:
            temporary.write_text(text + "\n", encoding="utf-8")
    _require_no_problem(results)
    return results


def _require_no_problem(results: list[Checked]) -> None:
    bad = [result["file"] for result in results if result["problem"] is not None]
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise InputError(
            f"{len(bad)} of {len(results)} files cannot be used as they are: {', '.join(bad[:3])}{more}",
            "files without a problem",
            "each file's problem and its remedy are printed above",
        )
