"""What users read: check, evaluate, report, explain.

- cell_map: The cells on the map of the report and of `scperformer.pl`: their expression, their UMAP and the markers
  of labels.
- check: Check files before a run: their content, whether a model can annotate them, and whether they can train a
  model.
- contributions: The contribution of each gene to a logit: exact for the linear branch, integrated gradients for the
  encoder.
- evaluate: Score annotations against true labels, with logistic regression as the baseline, and write the scores to
  a folder.
- explain: The genes behind calls: their contributions to logits, compared with marker genes and tested by deletion.
- explanation_page: The tables, the figures and the page of an explanation, which is an AnnData from explain.py.
- facts: The check of what `predict` recorded in an annotated file, which may have been changed since, or be made by
  hand.
- figures: The figures of the report and the map of the cells as plain data for plotly.js.
- pages: HTML pages from the templates in this room.
- read_annotations: Annotations from the h5ad files that `predict` wrote, read without the expression, or from cells
  in memory.
- report: One HTML page about annotated files, with interactive figures and sortable tables; it needs no network.
- report_tables: The content of a report as plain values: labels, summaries of samples, and tables.
- what_to_check: Whether the labels of samples can be trusted, and what to check: each cause once, whatever number
  of samples.
"""
