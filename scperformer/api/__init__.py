"""The steps as functions of Python: keywords instead of words, files or AnnData objects, and objects as results.

Each function makes the same options as the command line, from its keywords and from `options`, a mapping of the full
names in docs/configuration.md: `options={"trainer.max_epochs": 5}`. Their defaults are those of the step. No function
changes an AnnData but `annotate`, which adds to it. Files in reading order: keywords, making (models), using (them);
classifier, the estimator of scikit-learn; pl, the plots.
"""

from scperformer.api.making import Trained, adapt, models, preprocess, pretrain, train
from scperformer.api.using import Page, annotate, check, embed, evaluate, explain, report
