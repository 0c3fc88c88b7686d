"""Models of other tools become model folders.

- celltypist: CellTypist's models (.pkl): a logistic regression or SGD classifier, and the scaler before it, of
  scikit-learn.
- folders: Import a model: recognise it, read it, check it as a whole, and write it into the folder of models, or
  not at all.
- labelled: Labelled cells beside an imported model: calibration, novelty, expected accuracy, and cells with which
  it adapts.
- options: The options of importing a model.
- scvi_tools: Models of scvi-tools that annotate: scANVI (Xu et al. 2021, Mol. Syst. Biol. 17:e9620), as
  `SCANVI.save` writes them.
"""
