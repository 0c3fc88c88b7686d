"""The one trainer: Lightning, for networks of all kinds, when a reference is trained and when a model adapts to a file.

Files in reading order: loaders (batches of cells in memory or on disk), learner (what all trainings share), trainer
(the trainer of a run: devices, processes, signals, checkpoints, logs).
"""

from scperformer.learning.learner import (
    EncoderLearner,
    SeededLearner,
    informative_genes,
    loss_weights,
    lr_factor,
    process_factor,
    variability,
)
from scperformer.learning.loaders import Labelled, Loader, StreamedCells, source_of_cells, validation_batches
from scperformer.learning.trainer import (
    CHECKPOINTS,
    EPOCHS_TABLE,
    LAST,
    checkpoint_problem,
    device_of,
    make_trainer,
    require_loggers,
    run_epochs,
    run_steps,
)
