"""The input doctor: what is in a file, whether a model can annotate it, and whether it can train one."""

import json
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from anndata import AnnData

from scperformer import genes
from scperformer.config import CheckConfig, PredictConfig
from scperformer.detect import Findings, detect, expression, gene_table
from scperformer.errors import InputError
from scperformer.genenames import map_genes
from scperformer.groups import DataConfig
from scperformer.io import new_file, require_absent
from scperformer.labels import rare_labels, rare_note
from scperformer.overlap import measure_overlap, require_overlap
from scperformer.readers import read_cells
from scperformer.values import BASE_NAMES

if TYPE_CHECKING:
    from scperformer.bundle import Bundle

__all__ = [
    "Findings",
    "detect",
    "expression",
    "label_columns",
    "require_labels",
    "run_check",
]

MAX_LABELS = 200  # a column with more values holds names or numbers, not labels


def label_columns(adata: AnnData) -> dict[str, int]:
    """The obs columns that could be labels, with their number of values: 2 to 200 texts, two cells each or more."""
    found = {}
    most = min(MAX_LABELS, adata.n_obs // 2)
    for key in adata.obs.columns:
        column = adata.obs[key]
        is_number = pd.api.types.is_numeric_dtype(column.dtype) and not pd.api.types.is_bool_dtype(column.dtype)
        num = 0 if is_number else int(column.nunique())
        if 2 <= num <= most:
            found[str(key)] = num
    return found


def require_labels(adata: AnnData, label_key: str, path: str | Path) -> pd.Series:
    """The labels of the cells as strings, surrounding blanks removed; NaN where a cell has none.

    Returns
    -------
    Series of N str or NaN (missing, or blank in the file), index = the cells.

    Raises
    ------
    InputError
        There is no such column (the message lists those that could be meant), or it holds no label at all, or
        numbers with decimals.
    """
    remedy = "set label_key=... to the column of labels"
    if label_key not in adata.obs:
        likely = [f"{key} ({num} values)" for key, num in label_columns(adata).items()]
        there = ", ".join(likely or map(str, adata.obs.columns)) or "columns in obs, but it has none"
        raise InputError(f"no column '{label_key}' in obs of {path}", there, remedy)
    column = adata.obs[label_key]
    if pd.api.types.is_float_dtype(column.dtype) and not (column.dropna() % 1 == 0).all():
        raise InputError(f"obs['{label_key}'] of {path} holds numbers with decimals", "labels", remedy)
    labels = column.astype(object).map(lambda label: str(label).strip(), na_action="ignore")
    labels = labels.where(labels.notna() & (labels != ""))
    if labels.isna().all():
        raise InputError(f"no cell of {path} has a label in obs['{label_key}']", "labelled cells", remedy)
    return labels


# One file


def _examine(path: str, cfg: CheckConfig, model: "Bundle") -> dict[str, Any]:
    """Everything that can be said about a file; the first problem ends it."""
    result: dict[str, Any] = {"file": path, "problem": None}
    try:
        adata = read_cells(path, cfg.orientation)
        result["label_columns"] = label_columns(adata)
        findings = detect(adata, cfg.source, cfg.input_kind, input_total=cfg.input_total, path=path)
        result["findings"] = findings.as_dict()
        var = gene_table(adata, findings.source)
        result["species"] = genes.guess_species(list(map(str, var.index))) if cfg.species == "auto" else cfg.species
        _, names = expression(adata, findings, path=path)
        if cfg.label_key is None:
            mapping = map_genes(names, model.genes, var, cfg.species, path=path)
            result["species"] = mapping.species
            notes, least = mapping.notes, PredictConfig.min_overlap
            shared = measure_overlap(mapping.target, names, model.genes, importance=model.importance, notes=notes)
            result["overlap"] = asdict(shared)
            require_overlap(shared, least, path, file_genes=names, model_genes=model.genes, var=var)
        else:
            labels = require_labels(adata, cfg.label_key, path)
            cells = {str(label): int(num) for label, num in labels.value_counts().items()}
            result["labels"] = {"cells": cells, "num_unlabelled": int(labels.isna().sum())}
            result["labels"]["rare"] = rare_labels(labels, DataConfig.min_cells_per_label)
            if len(cells) < 2:
                raise InputError(f"one label in obs['{cfg.label_key}'] of {path}", "two or more", "add other cells")
    except InputError as error:
        result["problem"] = str(error)
    return result


def _expression_text(findings: dict[str, Any]) -> str:
    text = f"{findings['kind']} in {findings['source']}"
    if findings["kind"] == "log1p":
        total = findings["total"]
        per = "unknown total" if total is None else f"{total:,.6g} counts per cell"
        text += f" ({BASE_NAMES[findings['log_base']]}, {per})"
    return text


def _model_text(overlap: dict[str, Any], model: "Bundle", why: str) -> str:
    share = overlap["share_of_model"]
    num_shared, num_model = overlap["num_shared"], overlap["num_model"]
    informative = overlap["informative_share"]
    text = f"{model.name} ({why}): {num_shared:,} of {num_model:,} genes ({share:.1%}) found, "
    text += f"with {informative:.1%} of its informative expression"
    if overlap["absent"]:
        text += f", not {', '.join(overlap['absent'][:3])}" + (" ..." if overlap["num_absent"] > 3 else "")
    return text


def _block(result: dict[str, Any], cfg: CheckConfig, model: "Bundle", why: str) -> str:
    """The findings about a file as a person reads them."""
    rows: list[tuple[str, str]] = []
    if findings := result.get("findings"):
        rows.append(("cells", f"{findings['num_cells']:,}"))
        species = {"unknown": "species unknown", "other": "another species"}.get(result["species"], result["species"])
        rows.append(("genes", f"{findings['num_genes']:,}, {genes.KIND_NAMES[findings['id_kind']]}, {species}"))
        rows.append(("expression", _expression_text(findings)))
        rows += [("note", note) for note in findings["notes"]]
    if columns := result.get("label_columns"):
        rows.append(("obs columns", ", ".join(f"{key} ({num} values)" for key, num in columns.items())))
    if labels := result.get("labels"):
        labelled = sum(labels["cells"].values())
        rows.append(("labels", f"{len(labels['cells'])} in {cfg.label_key}, {labelled:,} cells"))
        if labels["num_unlabelled"]:
            rows.append(("note", f"cells without a label: {labels['num_unlabelled']:,}"))
        if rare := labels["rare"]:
            advice = "trained on but not validated; data.rare_labels=merge or drop does otherwise"
            rows.append(("note", f"{rare_note(rare, DataConfig.min_cells_per_label)} ({advice})"))
    if overlap := result.get("overlap"):
        rows.append(("model", _model_text(overlap, model, why)))
        rows += [("note", note) for note in overlap["notes"]]
    file = shlex.quote(result["file"])
    if result["problem"] is not None:
        rows.append(("problem", result["problem"]))
    elif cfg.label_key is None:
        told = "" if cfg.species == "auto" else f" species={cfg.species}"
        rows.append(("ok", f"scperformer predict {file}{told}"))
    else:
        rows.append(("ok", f"scperformer train {file} label_key={shlex.quote(cfg.label_key)}"))
    return "\n".join([result["file"], *(f"  {name:<12} {text}" for name, text in rows), ""])


# The step


def run_check(cfg: CheckConfig) -> list[dict[str, Any]]:
    """Print what each file holds and what to do with it; with `output`, write the same as JSON.

    Returns
    -------
    A dict per file: file, problem (None: all is well), and as far as the examination came: findings,
    label_columns, overlap, labels.

    Raises
    ------
    InputError
        At least one file has a problem; all files have been printed before.
    """
    from scperformer.bundle import load_bundle, require_annotator, resolve_model

    if cfg.output is not None:
        require_absent(cfg.output, cfg.overwrite)
    model_path, why = resolve_model(cfg.model_path)
    model = load_bundle(model_path)
    require_annotator(model, model_path)
    results = []
    for path in cfg.inputs:
        results.append(_examine(path, cfg, model))
        print(_block(results[-1], cfg, model, why), flush=True)
    if cfg.output is not None:
        with new_file(cfg.output, cfg.overwrite) as temporary:
            report = {"model": {"name": model.name, "path": str(model_path), "why": why}, "files": results}
            temporary.write_text(json.dumps(report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    _require_no_problem(results)
    return results


def _require_no_problem(results: list[dict[str, Any]]) -> None:
    bad = [result["file"] for result in results if result["problem"] is not None]
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise InputError(
            f"{len(bad)} of {len(results)} files cannot be used as they are: {', '.join(bad[:3])}{more}",
            "files without a problem",
            "each file's problem and its remedy are printed above",
        )
