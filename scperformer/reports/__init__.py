"""Results for readers: a check of files, scores against true labels, an HTML report, analyses of attention.

Files in reading order: check (with quality), annotated, evaluate, report (with summary and figures), analyze (with
attention_maps). Only analyze needs torch.
"""
