"""Models of other tools become model folders.

- labelled: Labelled cells beside an imported model: calibration, novelty, expected accuracy, and cells with which
  it adapts.
- pickles: Pickles, read in a child process without executing anything: functions and classes stay names.
- celltypist: CellTypist's models (.pkl): a logistic regression or SGD classifier, and the scaler before it, of
  scikit-learn.
- name_files: Names of genes or labels from a file beside a model: text, a pickled or saved array, or the genes of
  an h5ad file.
- folders: Import a model: recognise it, read it, check it as a whole, and write it into the folder of models, or
  not at all.
- torch_files: Read files that torch has saved (.pt, .pth) without executing anything: by `torch.load` with
  `weights_only`.
- scbert: Checkpoints of scBERT (.pth; Yang et al. 2022, Nature Machine Intelligence 4:852), pretrained or fine-
  tuned.
- scvi_tools: Models of scvi-tools that annotate: scANVI (Xu et al. 2021, Mol. Syst. Biol. 17:e9620), as
  `SCANVI.save` writes them.
- options: The options of importing a model.
"""
