"""The program `scperformer`: words in, an exit code out.

Files in reading order: words (files, options and flags), help (the texts), cli (runs a step, once or as a sweep, and
turns errors into lines), sweep (the table of its runs), models and workflow (the steps that belong to no other room).
"""
