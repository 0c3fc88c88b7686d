"""The program `scperformer`: one file for each command, with its options.

- models: The library of imported models (`models import`, `list`, `show`): a folder of model folders, found by
  their names.
- sweep: The table of a sweep, with a row for each run: its options, its scores and its error; and a picture of the
  scores.
- words: The words of a command line, sorted into input files, options and flags before Hydra sees any of them.
- help: What `scperformer --help` and `scperformer STEP --help` print.
- cli: The command line: `scperformer STEP files... option=value...` calls the function `run_STEP`.
- workflow_config: The configuration of the workflow and its sample sheet, checked: for the command, and for the
  Snakefile itself.
- workflow: Run the Snakemake workflow of the installed package, or of its source checkout, in the working folder.
"""
