"""The genes behind calls: their contributions to logits, compared with marker genes and tested by deletion."""

import json
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy.sparse import csr_matrix

from scperformer.adaptation.adapted import Adapted
from scperformer.adaptation.coverage import Coverage, reduced
from scperformer.adaptation.fitted import Model
from scperformer.adaptation.load import load_model
from scperformer.adaptation.tissue_model import tissue_model
from scperformer.annotation.annotate import without_slashes
from scperformer.annotation.markers import compare_genes
from scperformer.annotation.predict import Session
from scperformer.base.errors import InputError
from scperformer.base.outputs import FolderKind, new_folder
from scperformer.cells.opened import open_cells
from scperformer.cells.quality import technical
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.options import checked
from scperformer.config.steps import ExplainConfig
from scperformer.io.h5ad import nullable_strings_allowed
from scperformer.io.writing import write_anndata
from scperformer.labels.constraints import reweighted
from scperformer.labels.tree import best_labels
from scperformer.model.folder import load_reference_cells
from scperformer.model.inference import predict_cells, torch_state_kept
from scperformer.model.minibatches import Cells
from scperformer.model.saved_model import SavedModel
from scperformer.model.tissues import collection
from scperformer.results import explanation_page as page
from scperformer.results.contributions import SUM_TOLERANCE, Contributions, find_contributions
from scperformer.results.read_annotations import Annotated, find_model

log = logging.getLogger(__name__)

EXPLANATION = FolderKind("an explanation")
# Options of `predict` that an explanation repeats.
EXPRESSION_OPTIONS = ("source", "input_kind", "input_total", "input_base", "species", "genes")
NUM_DELETED = (0, 5, 10, 20, 50)  # genes that the deletion test deletes from a cell
MAX_TESTED = 500  # cells of the deletion test
# Of cells that are thinned, whose labels are of several draws, one of which is explained; and of cells of batches, as
# the offsets of the file are explained.
MAX_OTHER_DIFFERENT = 0.2
MAX_OTHER = 0.01  # share of cells whose label may differ from the file; close calls do on a GPU or in bfloat16


@dataclass(repr=False)
class Explanation:
    """The contributions of genes to the calls of some cells."""

    adata: AnnData  # explained cells x genes, with contributions; docs/formats.md lists its entries
    key: str  # prefix of the entries
    path: Path | None = None  # the folder, if it was written

    @property
    def genes(self) -> pd.DataFrame:
        """Genes with the largest mean contributions for each label, as in genes_per_label.csv."""
        return page.genes_per_label(self.adata, self.key)

    @property
    def attention(self) -> pd.DataFrame:
        """Genes with the highest mean attention for each label, as in attention_per_label.csv; empty without it."""
        return page.attention_per_label(self.adata, self.key)

    @property
    def deletion(self) -> pd.DataFrame:
        """Mean probabilities of the calls after genes were deleted from each cell."""
        table: pd.DataFrame = self.adata.uns[self.key]["deletion"]
        return table

    def __repr__(self) -> str:
        num_cells, num_genes = self.adata.shape
        first = (
            f"  {label}: {', '.join(genes['gene'].head(5))}"
            for label, genes in self.genes.groupby("label")
        )
        return "\n".join([f"Explanation of {num_cells:,} cells by {num_genes:,} genes", *first])


def explain_cells(annotated: Annotated, cfg: ExplainConfig, model: Model | None) -> Explanation:
    """Explain a random sample of annotated cells; refuse a model that is not the one that gives them their labels.

    By default, expression is read as `predict` read it; if the model is None, that of the annotation is loaded.
    """
    record = annotated.record
    key = annotated.key
    path = annotated.path
    model = _model_of(annotated, model)
    labels = model.saved.labels
    label = cfg.label
    if label is not None and label not in labels:
        expected = f"one of {', '.join(labels)}"
        raise InputError("unknown-label", f"label={label}", expected, "choose a label of the model")
    predict = _options_of_predict(annotated, cfg)
    with open_cells(str(path) if annotated.cells is None else annotated.cells, predict) as cells:
        cells.path = str(path)
        adapted = Session(cells, model, predict).as_recorded(record)
        with torch_state_kept(threads=1):
            rows, x, codes, proba = _draw_sample(adapted, annotated, cfg.num_cells, cfg.seed)
            explained = codes if label is None else np.full(len(rows), labels.index(label))
            network = adapted.model.network
            if not network.only_sums:
                text = "%s: layers of attention take up to seconds for each of the %d cells (cells=10: fewer)"
                log.info(text, path, len(rows))
            measured = adapted.query.measured
            contributions = find_contributions(
                network, Cells(x, adapted.model.tokens, measured=measured), explained
            )
            deletion = delete_genes(
                adapted.model, x, contributions.genes, explained, cfg.seed, measured
            )
            names = cells.obs_names[rows].astype(str)
    obs = {
        f"{key}_label": pd.Categorical.from_codes(codes, labels).remove_unused_categories(),
        f"{key}_probability": proba[np.arange(len(rows)), explained],
        f"{key}_logit": contributions.logits,
        f"{key}_bias": contributions.bias,
        f"{key}_error": contributions.errors,
    }
    genes = adapted.saved.genes
    var = pd.DataFrame({"listed": ~technical(genes)}, index=pd.Index(genes, dtype=object))
    explanation = AnnData(contributions.genes, obs=pd.DataFrame(obs, index=names), var=var)
    explanation.layers["expression"] = x
    present = [labels[code] for code in np.unique(codes)]
    ranks = marker_ranks(model, adapted.saved)
    for name, values in _label_means(contributions, codes).items():
        explanation.varm[f"{key}_{name}"] = _gene_table(explanation, values, present)
    if ranks is None:
        log.info("the model stores no reference cells, so its marker genes are unknown")
    else:
        # the same for all cells of a label
        first = [explained[codes == code][0] for code in np.unique(codes)]
        explanation.varm[f"{key}_marker_ranks"] = _gene_table(explanation, ranks[:, first], present)
    explanation.uns[key] = {
        "model": {
            "name": adapted.saved.name,
            "hash": model.saved.hash,
            "adapted": adapted.record.adapted,
            "tissue": "" if record.tissue is None else record.tissue.title,
        },
        "label": label or "",
        "num_cells": len(annotated.obs),
        "labels": np.array(present, dtype=object),  # labels of the cells, as the columns of varm
        "deletion": deletion,
        "versions": record.versions,
    }
    _log_explanation(explanation, key, path)
    return Explanation(explanation, key)


def _label_means(contributions: Contributions, codes: np.ndarray) -> dict[str, np.ndarray]:
    """Return the mean contributions and the mean attention of the cells of each label, float32 genes x labels."""
    parts = {"contributions": contributions.genes, "attention": contributions.attention}
    return {
        name: np.concatenate(
            [values[codes == code].mean(axis=0, dtype=np.float64) for code in np.unique(codes)]
        ).T.astype(np.float32)
        for name, values in parts.items()
        if values is not None
    }


def _gene_table(explanation: AnnData, values: np.ndarray, labels: list[str]) -> pd.DataFrame:
    return pd.DataFrame(values, index=explanation.var_names, columns=without_slashes(labels))


def _model_of(annotated: Annotated, given: Model | None) -> Model:
    """Return the model of an annotation, which is the `given` one, the profiles of its tissue, or in a folder."""
    record = annotated.record
    model = given
    if model is None and record.tissue is not None:
        model = tissue_model(
            collection().find(str(record.tissue.name), None), bool(record.tissue.in_capitals)
        )
        if record.model.hash != model.saved.hash:
            found = f"{annotated.path} annotated by other profiles ({record.model.hash[:12]})"
            expected = f"the profiles of this version ({model.saved.hash[:12]})"
            raise InputError("other-profiles", found, expected, "annotate its cells again")
    model = model or load_model(find_model(record.model))
    if model.saved.hash != record.model.hash:
        found = f"{annotated.path} annotated by the {annotated.model_id}"
        expected = f"the same model, not {model.saved.name} ({model.saved.hash[:12]}, {model.path})"
        of_model = "set model_path to the model of the predictions"
        remedy = of_model if record.tissue is None else "leave model_path out"
        raise InputError("other-model", found, expected, remedy)
    return model


def _options_of_predict(annotated: Annotated, options: ExplainConfig) -> AnnotationOptions:
    """Return the options with which `predict` read the expression, of which `options` replace some."""
    path = str(annotated.path)
    try:
        run = json.loads(annotated.record.config_json)
        recorded = {name: run[name] for name in EXPRESSION_OPTIONS if name in run}
    except (TypeError, ValueError) as error:
        found = f"no record of the options of predict in {path}"
        expected = f"uns['{annotated.key}'] as predict wrote it"
        raise InputError(
            "damaged-annotation", found, expected, "annotate the file again"
        ) from error
    given = {name: getattr(options, name) for name in EXPRESSION_OPTIONS if hasattr(options, name)}
    recorded |= {
        name: value for name, value in given.items() if value != getattr(AnnotationOptions, name)
    }
    # No genes are required here: `_draw_sample` refuses cells whose genes give other labels.
    adapt = "true" if annotated.record.coverage.adapted else "false"
    values = recorded | {
        "inputs": [path],
        "orientation": options.orientation,
        "adapt": adapt,
        "min_overlap": 0.0,
    }
    values |= {"shift": "false"}  # it is recorded
    recorded_options: AnnotationOptions = checked(AnnotationOptions, values, "")
    return recorded_options


def _draw_sample(
    adapted: Adapted, annotated: Annotated, num_cells: int | None, seed: int
) -> tuple[np.ndarray, csr_matrix, np.ndarray, np.ndarray]:
    """Draw cells of each label, and refuse them if the model gives more than 1 % another label.

    Cells without expression, and the few cells with another label, are left out. Returns of N cells: their ascending
    rows in the file; the expression, N x genes; the codes of their labels; and the probabilities, N x labels.
    """
    query = adapted.query
    path = annotated.path
    codes = pd.Index(adapted.model.saved.labels).get_indexer(pd.Index(annotated.labels))
    rng = np.random.default_rng(seed)
    candidates = codes[query.cell_rows]
    drawn = [
        rng.permutation(np.flatnonzero(candidates == code))[:num_cells]
        for code in np.unique(candidates)
    ]
    rows = query.cell_rows[np.sort(np.concatenate(drawn))]
    as_measured = query.some(rows)
    x = adapted.correct(as_measured, rows)
    is_expressed = np.diff(x.indptr) > 0
    if not is_expressed.any():
        found = f"no cell of {path} expresses a gene of the model"
        raise InputError("no-expression", found, "at least one", "choose other cells")
    x = x[is_expressed]
    rows = rows[is_expressed]
    cells = Cells(x, adapted.model.tokens, measured=query.measured)
    proba = predict_cells(adapted.model.network, cells, batch_size=64).proba
    proba, _ = adapted.judge(proba, as_measured[is_expressed])
    if (constraints := annotated.record.constraints) is not None:
        proba = reweighted(proba, np.asarray(constraints.weights))
    is_same = best_labels(proba, adapted.saved.families) == codes[rows]
    is_different = query.share < 1 or (
        len(adapted.compared.batches) > 0 and len(adapted.compared.offsets) > 0
    )
    most = MAX_OTHER_DIFFERENT if is_different else MAX_OTHER
    # Labels that `predict` has exchanged are not of the model, and are not explained.
    check = annotated.record.check
    fine_types = annotated.record.fine_types
    taken = [] if check is None else check.taken_labels
    if fine_types is not None:
        taken += [*fine_types.first, *fine_types.second]
    is_exchanged = np.isin(np.array(adapted.saved.labels)[codes[rows]], taken)
    if (num_other := int((~is_same & ~is_exchanged).sum())) > most * len(rows):
        found = f"another label for {num_other} of {len(rows)} cells of {path} than its '{annotated.key}_label'"
        remedy = "explain the file as predict wrote it, or name the expression that it used with source=..."
        raise InputError("other-labels", found, "the same labels by the same model", remedy)
    if num_skipped := int((~is_same).sum()):
        log.warning(
            "%s: skipping %d cells with another label here than in the file", path, num_skipped
        )
    return rows[is_same], x[is_same], codes[rows[is_same]], proba[is_same]


def marker_ranks(model: Model, saved: SavedModel) -> np.ndarray | None:
    """Rank genes as markers of each label in the reference cells that a model keeps, by scanpy's t-test.

    Wilcoxon's test finds about the same genes and takes a hundred times as long. `saved` has the genes to rank: `model`
    itself, or `model` adapted to fewer genes. Returns genes x labels: rank 1 is the best marker, labels with a single
    cell have NaN. None if the model keeps no cells, or if fewer than two labels can be tested.
    """
    reference_cells = load_reference_cells(model.saved, model.path)
    if reference_cells is None:
        return None
    measured = np.isin(model.saved.genes, saved.genes)
    x = reduced(reference_cells, Coverage(measured, None), saved.config.target_sum, seed=0)
    cells = AnnData(x)
    tested = compare_genes(cells, reference_cells.labels)
    if len(tested) < 2:
        return None
    ranks = np.full((len(saved.genes), len(saved.labels)), np.nan)
    for code in tested:
        order = cells.uns["rank_genes_groups"]["names"][code].astype(int)
        ranks[order, int(code)] = np.arange(1, len(order) + 1)
    return ranks


def delete_genes(
    model: Model,
    x: csr_matrix,
    contributions: csr_matrix,
    labels: np.ndarray,
    seed: int,
    measured: np.ndarray | None = None,
) -> pd.DataFrame:
    """Delete genes from at most 500 random cells, and predict them again.

    The genes deleted from a cell are those with the largest contributions, random genes that it expresses, or its most
    expressed genes. Returns the mean probability of `labels`, with a row for each number of deleted genes (`num_genes`)
    and a column for each choice of genes.
    """
    rng = np.random.default_rng(seed)
    tested = np.sort(rng.permutation(x.shape[0])[:MAX_TESTED])
    x = x[tested]
    contributions = contributions[tested]
    labels = labels[tested]
    cell_of = np.repeat(np.arange(len(tested)), np.diff(x.indptr))
    orders = {
        "contribution": -contributions.data,
        "random": rng.random(x.nnz),
        "expression": -x.data,
    }
    table = pd.DataFrame({"num_genes": NUM_DELETED})
    for name, values in orders.items():
        rank = np.empty(x.nnz, dtype=np.int64)  # rank of each gene in its cell, from 0
        rank[np.lexsort((values, cell_of))] = np.arange(x.nnz) - x.indptr[cell_of]
        means = []
        for num in NUM_DELETED:
            rest = csr_matrix(
                (np.where(rank < num, 0, x.data), x.indices, x.indptr), shape=x.shape, copy=True
            )
            rest.eliminate_zeros()
            cells = Cells(rest, model.tokens, measured=measured)
            proba = predict_cells(model.network, cells, batch_size=64).proba
            means.append(float(proba[np.arange(len(labels)), labels].mean()))
        table[name] = means
    return table


def _log_explanation(explanation: AnnData, key: str, path: Path) -> None:
    """Log the size of an explanation, the errors of its sums, and the results of its tests."""
    obs = explanation.obs
    errors = np.abs(obs[f"{key}_error"])
    text = "%s: %d cells of %d labels explained; contributions add up to the logit within %.2g"
    log.info(
        text, path, explanation.n_obs, len(explanation.uns[key]["labels"]), float(errors.max())
    )
    change = np.maximum(np.abs(obs[f"{key}_logit"] - obs[f"{key}_bias"]), 1)
    if num_off := int((errors > SUM_TOLERANCE * change).sum()):
        text = "%s: in %d of %d cells the contributions differ from the logit by more than %.0f %%"
        log.warning(text, path, num_off, explanation.n_obs, 100 * SUM_TOLERANCE)
    log.info("%s", page.deletion_text(explanation.uns[key]["deletion"]))
    if overlap := page.marker_overlap(explanation, key):
        mean = sum(overlap.values()) / len(overlap)
        text = "%.1f of the %d genes that contribute most to a label are among its %d best markers (mean of the labels)"
        log.info(text, mean, page.NUM_TOP, page.NUM_TOP)


def write_explanation(
    explanation: Explanation, output: Path, sample: str, *, overwrite: bool = False
) -> None:
    """Write the folder of an explanation: contributions, tables, and a page about `sample`, the name of a sample."""
    html = page.render_explanation(explanation.adata, explanation.key, sample)
    tables = {"genes_per_label": explanation.genes, "attention_per_label": explanation.attention}
    tables["deletion"] = explanation.deletion
    with new_folder(output, EXPLANATION, overwrite) as folder:
        with nullable_strings_allowed():
            write_anndata(explanation.adata, folder / "contributions.h5ad", compression="gzip")
        for name, table in tables.items():
            if len(table):
                table.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g")
        (folder / "report.html").write_text(html, encoding="utf-8", errors="xmlcharrefreplace")
    explanation.path = output
    log.info("written: %s", output)
