"""Models of other tools become model folders.

- name_files: Names of genes or labels from a file beside a model.
- celltypist: CellTypist's models (.pkl).
- scvi_tools: Models of scvi-tools that annotate: scANVI.
- labelled: Labelled cells beside an imported model: calibration, novelty, expected accuracy and stored cells.
- options: The options of importing a model.
- folders: Import a model: recognise it, read it, check it, and write it into the folder of models.
"""
