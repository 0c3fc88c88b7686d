"""Models of other tools become model folders."""
