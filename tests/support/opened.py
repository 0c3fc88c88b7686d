"""Cells in memory, opened as `predict` opens them."""

import anndata as ad

from scperformer.cells.opened import OpenedCells
from scperformer.config.annotation import AnnotationOptions


def opened(adata: ad.AnnData, path: str = "the data", **options) -> OpenedCells:
    return OpenedCells(adata, AnnotationOptions(inputs=[path], **options), path)
