"""Labels of cells: their spelling, ontology ids and tree; constraints on their probabilities; labels of clusters."""
