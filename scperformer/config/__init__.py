"""The options that steps share, and how presets, files and words become the options of a step; the only room that knows
Hydra.

- groups: Rules for the values of options, and the options of training by group.
- mechanisms: Attention mechanisms that are not part of scperformer: a registry by name, which no option can extend.
- options: The options of each step as a user reads them: their defaults and meanings, and the one that a wrong word
  meant.
- presets: Presets: YAML files with options, by group; those of the package are in conf/, a user's own in `--config-
  dir`.
- steps: The options of every step: one dataclass each, whose comments are the text of docs/configuration.md.
- words: Options as words of a command, `name=value` in the grammar of Hydra's overrides: written, and read again.
- compose: From presets and options to the checked dataclass of a step: the same for the command line, Python and
  the workflow.
- file: Options from a YAML file in the format of the workflow (config/config.yaml), for one step: `--config FILE`.
- sweeps: Sweeps (`-m`) and `--cfg hydra`: Hydra makes the runs of a sweep and launches them, here or on a cluster.
"""
