"""Cells: the kind of their values, normalised expression with the genes of a model; references and queries."""
