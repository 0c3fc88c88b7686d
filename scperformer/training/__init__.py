"""From labelled cells to a model folder: references, studies, runs that can be resumed."""
