"""The program `scperformer`: one file for each command, with its options."""
