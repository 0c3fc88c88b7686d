"""The program `scperformer`: one file for each command, with its options.

- adapt: `scperformer adapt`: adapt a model to the genes and the depth of a file.
- analyze: `scperformer analyze`: analyse the attention of a model, or check a mechanism.
- bench: `scperformer bench`: train once for each combination of options, and compare.
- bench_table: The results of a bench: a table with a row for each run, its summary over seeds, and a picture.
- check: `scperformer check`: describe files, and check if a model can annotate them.
- compose: Hydra composes the options of a step from words, conf/ and presets; ours are the checks, and errors on
  one line.
- evaluate: `scperformer evaluate`: compare with true labels, beside logistic regression.
- explain: `scperformer explain`: find the genes on which calls depend.
- help: What `scperformer --help` and `scperformer STEP --help` print: the options as a user reads them.
- main: The command line: `scperformer STEP files... option=value...` calls `run` in cli/STEP.py.
- models: `scperformer models`: list models and tissues, describe one, or import a model.
- predict: `scperformer predict`: annotate the cells of files.
- preprocess: `scperformer preprocess`: filter, normalise and log-transform a file.
- presets: Presets: YAML files with options, by group; in conf/ of the package, or a user's own in `--config-dir`.
- pretrain: `scperformer pretrain`: train an encoder on unlabelled cells.
- report: `scperformer report`: make one HTML page about annotated files.
- steps: The commands by their names: `scperformer predict` is cli/predict.py.
- train: `scperformer train`: train a model on a labelled reference.
- words: The words of a command line, sorted into input files, options and flags before Hydra sees any; options as
  words.
- workflow: `scperformer workflow`: annotate many samples with Snakemake, and make one report.
- workflow_config: The configuration of the workflow and its sample sheet, checked: for the command, and for the
  Snakefile itself.
"""
