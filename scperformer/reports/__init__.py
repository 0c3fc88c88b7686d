"""Results for people: the check of files, scores against true labels, and one HTML page about annotated files.

Files in reading order: check; read_annotations, evaluate; pages; report, with its parts tables, what_to_check, figures,
expression, layout, cell_map, clusters and composition. The steps are not imported here but from their files, when they
are needed.
"""

from scperformer.reports.pages import render_page
from scperformer.reports.read_annotations import Annotated, find_model, of_cells, read_annotated, sample_names
