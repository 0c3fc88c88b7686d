"""From a model and a query to an annotated file."""
