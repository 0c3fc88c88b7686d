"""Analyses of attention: inputs of the attention, the spectrum of its exact maps, errors of linear mechanisms."""
