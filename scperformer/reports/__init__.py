"""Results for readers: a check of files, scores against true labels, one HTML page about annotated files.

Files in reading order: check, read_annotations, evaluate, pages, report (with expression, umap, figures, tables). The
steps themselves are imported by file, when they are needed.
"""

from scperformer.reports.pages import render_page
from scperformer.reports.read_annotations import Annotated, find_model, of_cells, read_annotated, sample_names
