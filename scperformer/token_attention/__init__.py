"""For method developers: token encoders and their training, pretraining, analyses of attention."""
