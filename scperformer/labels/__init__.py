"""Labels of cells: their spelling, ontology ids and tree; constraints on their probabilities; labels of clusters.

- cluster_votes: One label for each cluster of cells: the majority of their votes, each weighted by its confidence.
- common: The labels of two studies merged to what both mean, by the terms of the Cell Ontology that their names
  are.
- constraints: Constraints on probabilities: labels that can occur.
- joining: Labels joined: spellings of one type, numbered samples of one, the labels of several studies.
- ontology: Labels and the Cell Ontology (CL): ids of labels by name, and label trees made from its terms.
- texts: The spelling of labels, the same for all sources: columns of obs, tables of text, options.
- tree: A tree over the labels of a model: a node's probability is the sum of its labels', and unsafe calls back off
  to it.
"""
