"""Models fitted to genes, depth and distribution of a query, and what was measured on the way."""
