"""Looks into the attention of a trained model: which analyses there are is said in config.py, analyze.py runs them."""
