"""Labels of cells: their spelling, ontology ids and tree; constraints on their probabilities; labels of clusters.

- cluster_votes: One label for each cluster of cells: the majority of their votes, each weighted by its confidence.
- texts: The spelling of labels, the same for all sources: columns of obs, tables of text, options.
- constraints: Constraints on probabilities: excluded labels, and label frequencies of the query.
- tree: A tree over the labels: a parent has the summed probability of its labels; low-confidence cells get a
  parent.
- ontology: Labels and the Cell Ontology (CL): ids of labels, by table or by name, and label trees made from its
  terms.
- common: Labels of two studies, merged by the Cell Ontology.
- joining: Joined labels of several studies.
"""
