"""Statistics of trust, on arrays alone: novelty, batch effects, confidence, label sets, shift, doublets."""
