"""The commands by their names: `scperformer predict` is cli/predict.py."""

from types import ModuleType

from scperformer.cli import (
    adapt,
    analyze,
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

BENCH = "bench"
_MODULES = (
    *(check, preprocess, pretrain, train, bench, predict, adapt),
    *(evaluate, report, explain, analyze, models, workflow),
)
# The file of each step: `run`, and its USAGE and EXAMPLES for the help.
STEPS: dict[str, ModuleType] = {module.__name__.rpartition(".")[2]: module for module in _MODULES}
USUAL_STEPS = {
    "annotate": "predict",
    "classify": "predict",
    "transfer": "predict",
    "fit": "train",
}  # as others call them
# The options of each step; `bench` takes those of `train`.
SCHEMAS: dict[str, type] = {
    name: vars(module)[f"{name.capitalize()}Config"] for name, module in STEPS.items() if name != BENCH
}

# The version of what the steps make of the same files and options. It is raised when a default or a method changes
# results that users have: the workflow then repeats its steps. A new option whose default changes nothing leaves it.
RESULT_VERSION = 1
