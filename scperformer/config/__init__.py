"""The options that steps share, and how presets, files and words become the options of a step; the only room that knows
Hydra.

- mechanisms: Attention mechanisms that are not part of scperformer: a registry by name, which no option can extend.
- options: Rules for the values of options, and the options that several commands share.
- annotation: The options of annotation: of `predict`, and of the steps that annotate cells to compare with.
- training: The options of training, by group, and of the reference on which a model is trained.
"""
