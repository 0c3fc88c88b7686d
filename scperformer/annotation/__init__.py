"""From an adapted model to labels, columns, remarks, and an annotated file."""
