"""The commands by their names: `scperformer predict` is cli/predict.py."""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from scperformer.cli import (
    adapt,
    analyze,
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
    run: Callable[[Any], object]
    usage: str
    purpose: str
    examples: str
    swept_output: str  # the name of the output in the folder of each run of a sweep; "": it cannot be swept


def _step(module: ModuleType, config: type, swept_output: str) -> Step:
    purpose = (module.__doc__ or "").partition(": ")[2].partition(".\n")[0].removesuffix(".")
    return Step(config, module.run, module.USAGE, purpose, module.EXAMPLES, swept_output)


STEPS = {
    "check": _step(check, check.CheckConfig, "check.json"),
    "preprocess": _step(preprocess, preprocess.PreprocessConfig, "prepared.h5ad"),
    "pretrain": _step(pretrain, pretrain.PretrainConfig, "encoder"),
    "train": _step(train, train.TrainConfig, "model"),
    "predict": _step(predict, predict.PredictConfig, "annotated.h5ad"),
    "adapt": _step(adapt, adapt.AdaptConfig, "adapted"),
    "evaluate": _step(evaluate, evaluate.EvaluateConfig, "evaluation"),
    "report": _step(report, report.ReportConfig, "report.html"),
    "explain": _step(explain, explain.ExplainConfig, "explanation"),
    "analyze": _step(analyze, analyze.AnalyzeConfig, "analysis"),
    "models": _step(models, models.ModelsConfig, "models"),
    "workflow": _step(workflow, workflow.WorkflowConfig, ""),
}
SCHEMAS = {name: step.config for name, step in STEPS.items()}  # the dataclass of each step

# The version of what the steps make of the same files and options. It is raised when a default or a method changes
# results that users have: the workflow then repeats its steps. A new option whose default changes nothing leaves it.
RESULT_VERSION = 1
