"""From a user's expression to ln(1 + counts per 10,000), filtered and aligned. Scanpy does the work."""

import logging
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData
from scipy import sparse

from scperformer import genes
from scperformer.config import PredictConfig, PreprocessConfig
from scperformer.detect import ASSUMED_TOTAL, PREPARED, Findings, detect, expression, gene_table
from scperformer.errors import InputError
from scperformer.groups import DataConfig
from scperformer.io import require_absent, write_h5ad
from scperformer.readers import beside, read_cells, require_readable

log = logging.getLogger(__name__)


def normalise(
    x: sparse.spmatrix | sparse.sparray | np.ndarray, findings: Findings, target_sum: float
) -> sparse.csr_matrix:
    """Expression as ln(1 + target_sum * value / total of the cell).

    Parameters
    ----------
    x
        N cells x G genes as stored; it is not changed. Totals are over all of its genes.
    findings
        What the values are. log1p values are inverted and logged anew, unless they are already as wanted:
        then they stay as they are, bit for bit. Where their total cannot be seen it is taken as 10,000.
    target_sum
        Counts per cell after normalisation.

    Returns
    -------
    N x G CSR float32 without stored zeros, indices sorted; cells without counts stay zero.
    """
    rows = sparse.csr_matrix(x, dtype=np.float32, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    if findings.kind == "log1p":
        assert findings.log_base is not None, "detect gives log1p values a base"
        total = findings.total or ASSUMED_TOTAL
        if findings.log_base != math.e or total != target_sum:
            linear = np.expm1(rows.data.astype(np.float64) * math.log(findings.log_base))
            rows.data = np.log1p(linear * (target_sum / total)).astype(np.float32)
        return rows
    import scanpy  # takes seconds, so only here

    adata = AnnData(rows)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some cells have zero counts")  # the findings note them
        scanpy.pp.normalize_total(adata, target_sum=target_sum)
    scanpy.pp.log1p(adata)
    return sparse.csr_matrix(adata.X)


def prepare_reference(
    adata: AnnData,
    data: DataConfig,
    source: str = "auto",
    input_kind: str = "auto",
    input_total: float | None = None,
    *,
    path: str | Path = "the reference",
) -> AnnData:
    """A reference ready for training: filtered and normalised, genes in the order of the file.

    Cells with fewer than `data.min_genes` genes are dropped, then genes expressed in fewer than
    `data.min_cells` of the remaining cells. Cells are normalised over all genes before any gene is dropped.
    What was prepared to the same target sum before is returned as it is.

    Returns
    -------
    N' x G' AnnData: X CSR float32 ln(1 + target_sum * share), obs and var of what was kept, and in
    uns["scperformer_prepared"] what was done.

    Raises
    ------
    InputError
        As `detect` and `expression`, or the filters leave nothing.
    """
    findings = detect(adata, source, input_kind, input_total=input_total, path=path)
    x, names = expression(adata, findings, path=path)
    if is_prepared(adata, findings) and findings.total == data.target_sum:
        return adata
    import scanpy  # takes seconds, so only here

    rows = sparse.csr_matrix(x)
    keep_cells, _ = scanpy.pp.filter_cells(rows, min_genes=data.min_genes)
    _require_some(keep_cells, "cells", f"data.min_genes={data.min_genes}", path)
    rows = rows[keep_cells]
    keep_genes, _ = scanpy.pp.filter_genes(rows, min_cells=data.min_cells)
    _require_some(keep_genes, "genes", f"data.min_cells={data.min_cells}", path)
    var = gene_table(adata, findings.source)
    prepared = AnnData(
        normalise(rows, findings, data.target_sum)[:, keep_genes],
        obs=adata.obs[keep_cells].copy(),
        var=var.set_axis(names)[keep_genes].copy(),
    )
    prepared.uns[PREPARED] = _mark(
        prepared,
        findings,
        data.target_sum,
        cells_dropped=int((~keep_cells).sum()),
        genes_dropped=int((~keep_genes).sum()),
    )
    return prepared


def is_prepared(adata: AnnData, findings: Findings) -> bool:
    """Whether what `findings` names was written by this module."""
    return findings.source == "X" and "target_sum" in adata.uns.get(PREPARED, {})


def _require_some(keep: np.ndarray, what: str, option: str, path: str | Path) -> None:
    if not keep.any():
        raise InputError(
            f"{option} drops all {len(keep)} {what} of {path}", f"at least some {what} to be kept", "lower it"
        )


def _mark(
    adata: AnnData, findings: Findings, target_sum: float, *, cells_dropped: int, genes_dropped: int
) -> dict[str, Any]:
    """What was done, for the file and for the provenance of a model."""
    return {
        "target_sum": float(target_sum),
        "source": findings.source,
        "kind": findings.kind,
        "notes": np.array(findings.notes, dtype=str),
        "cells": adata.n_obs,
        "genes": adata.n_vars,
        "cells_dropped": cells_dropped,
        "genes_dropped": genes_dropped,
    }


def align_to_model(
    adata: AnnData,
    findings: Findings,
    model_genes: Sequence[str],
    *,
    target_sum: float,
    min_overlap: float,
    path: str | Path,
) -> tuple[sparse.csr_matrix, genes.Overlap]:
    """Cells as a model wants them: normalised over all genes of the file, then the model's genes as columns.

    Returns
    -------
    N x len(model_genes) CSR float32, genes that the file lacks 0; and how the genes overlap.

    Raises
    ------
    InputError
        Gene names repeat, or fewer than `min_overlap` of the model's genes are there.
    """
    x, names = expression(adata, findings, path=path)
    shared = genes.overlap(names, model_genes)
    var = gene_table(adata, findings.source)
    genes.require_overlap(shared, min_overlap, path, file_genes=names, model_genes=model_genes, var=var)
    return genes.align(normalise(x, findings, target_sum), names, model_genes), shared


def _prepare_for_model(adata: AnnData, cfg: PreprocessConfig, path: Path) -> AnnData:
    """All cells of a file with the genes of the model `cfg.model_path`."""
    from scperformer.bundle import load_bundle

    assert cfg.model_path is not None
    model = load_bundle(cfg.model_path)
    target_sum = float(model.config["target_sum"])
    findings = detect(adata, cfg.source, cfg.input_kind, input_total=cfg.input_total, path=path)
    x, shared = align_to_model(
        adata, findings, model.genes, target_sum=target_sum, min_overlap=PredictConfig.min_overlap, path=path
    )
    prepared = AnnData(x, obs=adata.obs.copy(), var=pd.DataFrame(index=model.genes))
    mark = _mark(prepared, findings, target_sum, cells_dropped=0, genes_dropped=shared.num_dropped)
    prepared.uns[PREPARED] = mark | {"model": model.name, "genes_absent": shared.num_absent}
    return prepared


def run_preprocess(cfg: PreprocessConfig) -> Path:
    """Write a prepared copy of a file: as a reference, or with `model_path` aligned to a model's genes.

    Returns
    -------
    The file that was written: `output`, else <input>.prepared.h5ad beside the input.

    Raises
    ------
    InputError
        The input cannot be used, or the output exists.
    """
    start = time.perf_counter()
    path = Path(cfg.inputs[0])
    require_readable(path)
    output = Path(cfg.output) if cfg.output is not None else beside(path, ".prepared.h5ad")
    require_absent(output, cfg.overwrite)
    adata = read_cells(path, cfg.orientation)
    if cfg.model_path is not None:
        prepared = _prepare_for_model(adata, cfg, path)
    else:
        prepared = prepare_reference(adata, cfg.data, cfg.source, cfg.input_kind, cfg.input_total, path=path)
    _log_mark(prepared.uns[PREPARED], path)
    write_h5ad(prepared, output, cfg.overwrite)
    log.info("wrote %s in %.1f s", output, time.perf_counter() - start)
    return output


def _log_mark(mark: Mapping[str, Any], path: Path) -> None:
    log.info("read %s from %s of %s", mark["kind"], mark["source"], path)
    for note in mark["notes"]:
        log.info("%s", note)
    absent = f", {mark['genes_absent']} genes of model {mark['model']} absent" if "model" in mark else ""
    log.info(
        "kept %d cells (%d dropped) and %d genes (%d dropped%s), %g counts per cell",
        mark["cells"],
        mark["cells_dropped"],
        mark["genes"],
        mark["genes_dropped"],
        absent,
        mark["target_sum"],
    )
