"""Files: every kind of input is recognised and opened safely, and the names of genes are matched."""
