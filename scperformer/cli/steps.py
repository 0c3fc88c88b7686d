"""The commands by their names: `scperformer predict` is cli/predict.py."""

from types import ModuleType

from scperformer.cli import (
    adapt,
    analyze,
    app,
    bench,
    check,
    evaluate,
    explain,
    models,
    predict,
    preprocess,
    pretrain,
    report,
    train,
    workflow,
)
from scperformer.config.steps import RESULT_VERSION as RESULT_VERSION

BENCH = "bench"
_MODULES = (
    *(check, preprocess, pretrain, train, bench, predict, adapt),
    *(evaluate, report, explain, analyze, models, workflow, app),
)
# The file of each step: `run`, and its USAGE and EXAMPLES for the help; `bench` takes the options of `train`.
STEPS: dict[str, ModuleType] = {module.__name__.rpartition(".")[2]: module for module in _MODULES}
ALIASES = {"annotate": "predict", "classify": "predict", "transfer": "predict", "fit": "train"}  # in other programs
