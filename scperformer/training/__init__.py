"""From labelled cells to a model folder: both branches are fitted, with out-of-fold evidence; models are refitted to a
query."""
