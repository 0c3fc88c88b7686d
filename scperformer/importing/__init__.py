"""Models of other tools become model folders.

- pickles: Pickles, read in a child process without executing anything: functions and classes stay names.
- torch_files: Files that torch has saved (.pt, .pth), read without executing anything.
- name_files: Names of genes or labels from a file beside a model.
- celltypist: CellTypist's models (.pkl).
- scbert: Checkpoints of scBERT (.pth), pretrained or fine-tuned.
- scvi_tools: Models of scvi-tools that annotate: scANVI.
- labelled: Labelled cells beside an imported model: calibration, novelty, expected accuracy and stored cells.
- options: The options of importing a model.
- folders: Import a model: recognise it, read it, check it, and write it into the folder of models.
"""
