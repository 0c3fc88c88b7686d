"""The commands by their names: `scperformer predict` is cli/predict.py."""

from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Step:
    """A command: its options, its function, and its text in the help."""

    config: type  # the dataclass of its options
    run: Callable[..., object]
    usage: str
    purpose: str
    examples: str


def _step(module: ModuleType, config: type) -> Step:
    purpose = (module.__doc__ or "").partition(": ")[2].partition(".\n")[0].removesuffix(".")
    return Step(config, module.run, module.USAGE, purpose, module.EXAMPLES)


BENCH = "bench"
STEPS = {
    "check": _step(check, check.CheckConfig),
    "preprocess": _step(preprocess, preprocess.PreprocessConfig),
    "pretrain": _step(pretrain, pretrain.PretrainConfig),
    "train": _step(train, train.TrainConfig),
    BENCH: _step(bench, train.TrainConfig),
    "predict": _step(predict, predict.PredictConfig),
    "adapt": _step(adapt, adapt.AdaptConfig),
    "evaluate": _step(evaluate, evaluate.EvaluateConfig),
    "report": _step(report, report.ReportConfig),
    "explain": _step(explain, explain.ExplainConfig),
    "analyze": _step(analyze, analyze.AnalyzeConfig),
    "models": _step(models, models.ModelsConfig),
    "workflow": _step(workflow, workflow.WorkflowConfig),
}
# The options of each step; `bench` takes those of `train`.
SCHEMAS = {name: step.config for name, step in STEPS.items() if name != BENCH}

# The version of what the steps make of the same files and options. It is raised when a default or a method changes
# results that users have: the workflow then repeats its steps. A new option whose default changes nothing leaves it.
RESULT_VERSION = 1
