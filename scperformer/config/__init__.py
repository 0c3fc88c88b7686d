"""The options that several commands share, and the rules for their values; cli/X.py has the options of X alone.

- annotation: The options of annotation: of `predict`, and of the steps that annotate cells to compare with.
- mechanisms: Attention mechanisms that are not part of scperformer: a registry by name, which no option can extend.
- options: Rules for the values of options, and the options that several commands share.
- training: The options of training, by group, and of the reference on which a model is trained.
"""
