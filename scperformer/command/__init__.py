"""The program `scperformer`: takes the words of a command line and returns an exit code.

Files in reading order: words (sorts them into files, options and flags), help (the text of --help), cli (runs a step,
once or as a sweep, and prints errors on one line), sweep (the table of the runs of a sweep), and models and workflow
(two steps that belong to no other room).
"""
