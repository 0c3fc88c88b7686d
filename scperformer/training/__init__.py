"""From a reference to a model folder."""
