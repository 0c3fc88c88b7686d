"""The genes on which calls depend: contributions to the logits, compared with marker genes and tested by deletion."""

import json
import logging
import time
import warnings
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.sparse import csr_matrix

from scperformer.base.errors import InputError
from scperformer.base.outputs import FolderKind, new_folder, require_absent
from scperformer.cells import find_query
from scperformer.config import ExplainConfig, PredictConfig, checked
from scperformer.explanations.contributions import SUM_TOLERANCE, find_contributions
from scperformer.explanations.page import (
    NUM_SHOWN,
    NUM_TOP,
    deletion_text,
    genes_per_label,
    marker_overlap,
    render_explanation,
)
from scperformer.files import BackedH5ad, default_output, nullable_strings_allowed, open_cells, write_anndata
from scperformer.fitting import Adapted, Condition, adapt_model, find_condition, reduced
from scperformer.labels import reweighted
from scperformer.model import SavedModel, load_reference_cells
from scperformer.network import Cells, Model, load_model, predict_cells, torch_state_kept
from scperformer.prediction import without_slashes
from scperformer.reports import find_model, read_annotated, sample_names

log = logging.getLogger(__name__)

CELLS = "contributions.h5ad"
PAGE = "report.html"
EXPLANATION = FolderKind("an explanation")
GENES_PER_LABEL = "genes_per_label.csv"
DELETION = "deletion.csv"
OF_RUN = ("source", "input_kind", "input_total", "input_base", "species")  # options as in the run of predict
DELETED = (0, 5, 10, 20, 50)  # genes of a cell
MOST_DELETED = 500  # cells of the deletion test
MOST_OTHER = 0.01  # share of the cells whose label may differ: on a GPU, or in bfloat16, close calls do


@dataclass(repr=False)
class Explanation:
    """The genes on which calls depend: `adata`, explained cells x genes with contributions (docs/formats.md)."""

    adata: AnnData
    key: str  # prefix of its entries
    path: Path | None = None  # the folder, if it was written

    @property
    def genes(self) -> pd.DataFrame:
        """The genes with the largest mean contributions for each label, as in genes_per_label.csv."""
        return genes_per_label(self.adata, self.key)

    @property
    def deletion(self) -> pd.DataFrame:
        """The mean probability of the calls after genes were deleted from each cell."""
        table: pd.DataFrame = self.adata.uns[self.key]["deletion"]
        return table

    def __repr__(self) -> str:
        num_cells, num_genes = self.adata.shape
        first = (f"  {label}: {', '.join(genes['gene'].head(5))}" for label, genes in self.genes.groupby("label"))
        return "\n".join([f"Explanation of {num_cells:,} cells by {num_genes:,} genes", *first])

    def _repr_html_(self) -> str:
        first = self.genes.groupby("label", observed=True).head(NUM_SHOWN)
        return f"<p>{escape(repr(self).partition(chr(10))[0])}</p>{first.round(3).to_html(index=False)}"


def explain_cells(
    cells: AnnData | BackedH5ad,
    labels: np.ndarray,
    facts: dict[str, Any],
    cfg: ExplainConfig,
    model: Model | None = None,
    path: str = "the data",
) -> AnnData:
    """Explain a sample of the cells of an open file, given their labels (text) and the record of their annotation."""
    key = cfg.key_added
    (model, adapted) = _model_of_calls(cells, facts, cfg, model, path)
    names = model.saved.labels
    network = adapted.model.network
    saved = adapted.model.saved
    codes = pd.Index(names).get_indexer(pd.Index(labels))
    rows = adapted.query.cells
    rows = rows[_sample(codes[rows], cfg)]
    x = adapted.query.some(rows)
    expressed = np.diff(x.indptr) > 0
    if not expressed.any():
        raise InputError(f"no cell of {path} expresses a gene of the model", "at least one", "choose other cells")
    x = x[expressed]
    rows = rows[expressed]
    tokens = adapted.model.tokens
    measured = adapted.query.measured
    with torch_state_kept(threads=1):
        proba, _ = predict_cells(network, Cells(x, tokens, measured=measured), batch_size=64)
        if constraints := facts.get("constraints"):
            proba = reweighted(proba, np.asarray(constraints["weights"]))
        same = proba.argmax(axis=1) == codes[rows]
        if (num_other := int((~same).sum())) > MOST_OTHER * len(rows):
            found = f"another label for {num_other} of {len(rows)} cells of {path} than its '{key}_label'"
            remedy = "explain the file as predict wrote it, or name the expression that it used with source=..."
            raise InputError(found, "the same labels by the same model", remedy)
        if num_other:
            log.warning("%s: %d cells have another label here and are left out", path, num_other)
            x = x[same]
            rows = rows[same]
            proba = proba[same]
        own = codes[rows]
        chosen = own if cfg.label is None else np.full(len(rows), names.index(cfg.label))
        if network.encoder is not None and network.encoder.stack and not network.linear_alone:
            log.info("%s: %d cells, through layers of attention: up to seconds each (cells=10: fewer)", path, len(rows))
        result = find_contributions(network, Cells(x, tokens, measured=measured), chosen)
        deletion = delete_genes(adapted.model, x, result.genes, chosen, cfg.seed, measured)

    obs = {
        f"{key}_label": pd.Categorical.from_codes(own, names).remove_unused_categories(),
        f"{key}_probability": proba[np.arange(len(rows)), chosen],
        f"{key}_logit": result.logits,
        f"{key}_bias": result.bias,
        f"{key}_error": result.errors,
    }
    var = pd.DataFrame(index=pd.Index(saved.genes, dtype=object))
    made = AnnData(result.genes, obs=pd.DataFrame(obs, index=cells.obs_names[rows].astype(str)), var=var)
    made.layers["expression"] = x
    present = made.obs[f"{key}_label"].cat.categories.tolist()
    means = [result.genes[own == names.index(name)].mean(axis=0, dtype=np.float64) for name in present]
    columns: dict[str, Any] = {"index": made.var_names, "columns": without_slashes(present)}
    made.varm[f"{key}_contributions"] = pd.DataFrame(np.concatenate(means).T, dtype=np.float32, **columns)
    if (ranks := rank_markers(model, saved)) is None:
        log.info("the model keeps no cells of its reference: its marker genes are not known")
    else:
        explained = [names.index(cfg.label or name) for name in present]
        made.varm[f"{key}_marker_ranks"] = pd.DataFrame(ranks[:, explained], **columns)
    made.uns[key] = {
        "model": {"name": saved.name, "hash": model.saved.hash, "adapted": adapted.record["adapted"]},
        "label": cfg.label or "",
        "num_cells": len(codes),
        "labels": np.array(present, dtype=object),  # of the cells, as the columns of varm
        "deletion": deletion,
        "versions": facts["versions"],
    }
    _log_findings(made, key, path)
    return made


def _model_of_calls(
    cells: AnnData | BackedH5ad, facts: dict[str, Any], cfg: ExplainConfig, model: Model | None, path: str
) -> tuple[Model, Adapted]:
    """Return the model that the record of an annotation names, and the same model as it was adapted to the cells.

    Options of the expression are those of the run of predict, if no others are given.
    """
    made = facts.get("condition", {})  # earlier versions had no conditions
    model = model or load_model(cfg.model_path or find_model(facts))
    if model.saved.hash != facts["model"]["hash"]:
        found = f"{path} annotated by the model {facts['model']['name']} ({str(facts['model']['hash'])[:12]})"
        expected = f"the same model, not {model.saved.name} ({model.saved.hash[:12]}, {model.path})"
        raise InputError(found, expected, "set model_path to the model of the calls")
    if cfg.label is not None and cfg.label not in model.saved.labels:
        expected = f"one of {', '.join(model.saved.labels)}"
        raise InputError(f"label={cfg.label}", expected, "choose a label of the model")
    try:
        run = json.loads(facts["config_json"])
        options = {name: run[name] for name in OF_RUN if name in run}
    except (KeyError, TypeError, ValueError) as error:
        found = f"no record of the options of predict in {path}"
        raise InputError(found, f"uns['{cfg.key_added}'] as predict wrote it", "annotate the file again") from error
    options |= {name: value for name in OF_RUN if (value := getattr(cfg, name)) != getattr(PredictConfig, name)}
    adapt = bool(made.get("adapted", False))
    condition = None
    # Any genes will do: the calls show whether they are those of the run.
    options |= {"inputs": [path], "adapt": str(adapt).lower(), "min_overlap": 0.0}
    predict: PredictConfig = checked(PredictConfig, options, "")
    query = find_query(cells, model.saved, predict, path)
    if adapt:  # to the recorded depth: cells may have been left out since
        depth = None if np.isnan(made["depth"]) else float(made["depth"])
        condition = replace(find_condition(query, with_depth=False), depth=depth)
        if condition.key != made["key"]:
            remedy = "explain the file with all genes that it had, or name their place with source=..."
            raise InputError(f"other genes in {path} than when it was annotated", "the same genes", remedy)
    return model, adapt_model(model, query, predict, condition)


def _sample(codes: np.ndarray, cfg: ExplainConfig) -> np.ndarray:
    """Draw up to `cfg.cells` cells of each label: ascending row numbers."""
    rng = np.random.default_rng(cfg.seed)
    most = None if cfg.cells == "all" else cfg.cells
    return np.sort(np.concatenate([rng.permutation(np.flatnonzero(codes == code))[:most] for code in np.unique(codes)]))


def rank_markers(model: Model, saved: SavedModel) -> np.ndarray | None:
    """Rank the genes of `saved` as markers of each label among the cells that a model keeps; None if it keeps none.

    scanpy's t-test of a label against the others, with overestimated variance: Wilcoxon's test finds about the same
    genes in a hundred times the time. Rank 1 is the best marker; NaN for labels with a single cell. G x C.
    """
    import scanpy as sc  # takes seconds to import

    reference_cells = load_reference_cells(model.saved, model.path)
    if reference_cells is None:
        return None
    measured = np.isin(model.saved.genes, saved.genes)
    x = reduced(reference_cells, Condition(measured, None), float(saved.config["target_sum"]), seed=0)
    tested = [code for code, num in enumerate(np.bincount(reference_cells.labels)) if num > 1]
    if len(tested) < 2:
        return None
    cells = AnnData(
        x,
        obs=pd.DataFrame(
            {"code": pd.Categorical(reference_cells.labels.astype(str))}, index=map(str, range(x.shape[0]))
        ),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about divisions by 0 for genes that no cell of a label expresses
        groups = [str(code) for code in tested]
        sc.tl.rank_genes_groups(cells, "code", groups=groups, method="t-test_overestim_var", use_raw=False)
    ranks = np.full((len(saved.genes), len(saved.labels)), np.nan)
    for code in tested:
        order = cells.uns["rank_genes_groups"]["names"][str(code)].astype(int)
        ranks[order, code] = np.arange(1, len(order) + 1)
    return ranks


def delete_genes(
    model: Model,
    x: csr_matrix,
    contributions: csr_matrix,
    labels: np.ndarray,
    seed: int,
    measured: np.ndarray | None = None,
) -> pd.DataFrame:
    """Delete genes of at most 500 random cells and predict again: the mean probability of `labels`.

    Each cell loses the genes with the largest contributions, random ones that it expresses, or its most expressed ones.
    The values of the other genes stay. One row for each number of genes, one column for each choice.
    """
    rng = np.random.default_rng(seed)
    some = np.sort(rng.permutation(x.shape[0])[:MOST_DELETED])
    x = x[some]
    contributions = contributions[some]
    labels = labels[some]
    cell_of = np.repeat(np.arange(len(some)), np.diff(x.indptr))
    orders = {"contribution": -contributions.data, "random": rng.random(x.nnz), "expression": -x.data}
    table = pd.DataFrame({"num_genes": DELETED})
    for name, values in orders.items():
        place = np.empty(x.nnz, dtype=np.int64)  # of each value in its cell
        place[np.lexsort((values, cell_of))] = np.arange(x.nnz) - x.indptr[cell_of]
        means = []
        for num in DELETED:
            left = csr_matrix((np.where(place < num, 0, x.data), x.indices, x.indptr), shape=x.shape, copy=True)
            left.eliminate_zeros()
            proba, _ = predict_cells(model.network, Cells(left, model.tokens, measured=measured), batch_size=64)
            means.append(float(proba[np.arange(len(labels)), labels].mean()))
        table[name] = means
    return table


def _log_findings(made: AnnData, key: str, path: str) -> None:
    """Log the size of the explanation, its completeness, and the result of its tests."""
    labels = made.uns[key]["labels"]
    error = float(np.abs(made.obs[f"{key}_error"]).max())
    change = np.maximum(np.abs(made.obs[f"{key}_logit"] - made.obs[f"{key}_bias"]), 1)
    num_off = int((np.abs(made.obs[f"{key}_error"]) > SUM_TOLERANCE * change).sum())
    text = "%s: %d cells of %d labels explained; contributions add up to the logit within %.2g"
    log.info(text, path, made.n_obs, len(labels), error)
    if num_off:
        log.warning("%s: the sums of %d cells differ by more than %.0f %%", path, num_off, 100 * SUM_TOLERANCE)
    log.info("%s", deletion_text(made.uns[key]["deletion"]))
    if overlap := marker_overlap(made, key):
        mean = sum(overlap.values()) / len(overlap)
        log.info("%.1f of the first %d genes of a label are among its first %d markers", mean, NUM_TOP, NUM_TOP)


def explain_file(cfg: ExplainConfig, model: Model | None = None) -> AnnData:
    """Explain a sample of the cells of an annotated file; without a model, by the one that the annotation names."""
    path = cfg.inputs[0]
    (sample,) = read_annotated([path], cfg.key_added)
    with open_cells(path, cfg.orientation) as cells:
        return explain_cells(cells, sample.labels, sample.facts, cfg, model, path)


def write_explanation(made: AnnData, output: Path, cfg: ExplainConfig, sample: str) -> None:
    """Write the folder of an explanation: contributions, tables and a page about the sample of this name."""
    page = render_explanation(made, cfg.key_added, sample)
    with new_folder(output, EXPLANATION, cfg.overwrite) as folder:
        with nullable_strings_allowed():
            write_anndata(made, folder / CELLS, compression="gzip")
        genes_per_label(made, cfg.key_added).to_csv(folder / GENES_PER_LABEL, index=False, float_format="%.6g")
        made.uns[cfg.key_added]["deletion"].to_csv(folder / DELETION, index=False, float_format="%.6g")
        (folder / PAGE).write_text(page, encoding="utf-8", errors="xmlcharrefreplace")
    log.info("written: %s", output)


def run_explain(cfg: ExplainConfig) -> Path:
    """Write the folder of an explanation, `cfg.output` or `<input>.explanation` beside the input, and return it."""
    start = time.perf_counter()
    path = cfg.inputs[0]
    output = Path(cfg.output) if cfg.output else default_output(path, ".explanation")
    require_absent(output, cfg.overwrite, EXPLANATION)
    write_explanation(explain_file(cfg), output, cfg, sample_names([Path(path)])[0])
    log.info("explained in %.1f s", time.perf_counter() - start)
    return output
