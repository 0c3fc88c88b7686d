"""Models from elsewhere: folders and archives of our own, and files of other tools, made into model folders.

Files in reading order: reading (in a child process), pickles and torch_files (read without executing anything), names
(of genes or labels, beside a model), steps (of networks of dense layers), origin (what a model folder records about the
file that it is from); then a file for each format: celltypist, scbert, scvi_tools; recognise (the format of a file, by
its content), labelled (calibration, novelty and kept cells from labelled cells), folders (checked, and written into the
folder of models).
"""

import lazy_loader

# The list of formats is asked for without torch: each file loads with the first use of a name of it.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
