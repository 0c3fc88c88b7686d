"""Cells in memory, opened as `predict` opens them; what is found about their expression."""

import anndata as ad

from scperformer.cells.detect import Findings, detect_expression
from scperformer.cells.opened import OpenedCells
from scperformer.config.annotation import AnnotationOptions
from scperformer.config.options import ExpressionOptions


def opened(adata: ad.AnnData, path: str = "the data", **options) -> OpenedCells:
    return OpenedCells(adata, AnnotationOptions(inputs=[path], **options), path)


def detected(
    adata: ad.AnnData, source="auto", input_kind="auto", path: str = "the data", **more
) -> Findings:
    options = ExpressionOptions(inputs=[path], source=source, input_kind=input_kind, **more)
    return detect_expression(adata, options, path)
