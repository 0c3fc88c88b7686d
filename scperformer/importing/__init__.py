"""Models of other tools become model folders.

- dense: Dense layers of another tool as the steps of our network `dense` (model/imported.py), and their weights.
- labelled: Labelled cells beside an imported model: calibration, novelty, expected accuracy, and cells with which
  it adapts.
- origin: A model folder for a model of another tool: what it records about the file, and the checks of genes and
  labels.
- pickles: Pickles, read without executing anything: functions and classes stay names.
- celltypist: CellTypist's models (.pkl): a logistic regression or SGD classifier, and the scaler before it, of
  scikit-learn.
- reading: Read a file of another tool in a child process, with limits of CPU time and memory (base/child.py).
- name_files: Names of genes or labels from a file beside a model: text, a pickled or saved array, or the genes of
  an h5ad file.
- recognise: The format of a model, by its content; a file for each format says how it is recognised and read.
- folders: Import a model: check it as a whole, and write it into the folder of models, whole or not at all.
- torch_files: Read files that torch has saved (.pt, .pth) without executing anything: by `torch.load` with
  `weights_only`.
- scbert: Checkpoints of scBERT (.pth; Yang et al. 2022, Nature Machine Intelligence 4:852), pretrained or fine-
  tuned.
- scvi_tools: Models of scvi-tools that annotate: scANVI (Xu et al. 2021, Mol. Syst. Biol. 17:e9620), as
  `SCANVI.save` writes them.
"""
