"""Results for readers: a check of files, scores against true labels, pages about calls and genes, maps of attention.

Files in reading order: check (with quality), annotated, evaluate, report (with expression, layout, figures, summary),
explain (with explanation), analyze (with attention_maps). Only explain and analyze need torch.
"""
