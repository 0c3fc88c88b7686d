"""The model: saved folder and card, linear branch, Performer, inference; confidence, novelty and distribution shift."""
