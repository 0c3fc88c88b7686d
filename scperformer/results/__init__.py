"""What users read: check, evaluate, report, explain.

- check: Check files before a run: their content, whether a model can annotate them, and whether they can train a
  model.
- contributions: The contribution of each gene to a logit: exact for the linear branch, integrated gradients for the
  encoder.
- facts: The record of `predict` in uns, checked as content from elsewhere.
- figures: The figures of the report as plain data for plotly.js, and the map of cells as arrays of small integers.
- pages: HTML pages from the templates in this room.
- explanation_page: Tables, figures and page of an explanation.
- read_annotations: Annotations from the h5ad files that `predict` wrote, read without the expression, or from cells
  in memory.
- cell_map: The map of the cells and its colours.
- evaluate: Score annotations against true labels, with logistic regression as the baseline, and write the scores to
  a folder.
- explain: Genes behind labels: contributions to logits, compared with markers and tested by deletion.
- report: One HTML page about annotated files, with interactive figures and sortable tables; it needs no network.
- report_tables: The content of a report as plain values: labels, summaries of samples, tables, and things to check.
- what_to_check: Whether the labels of samples can be trusted, and what to check.
"""
