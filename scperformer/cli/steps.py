"""The commands by their names: `scperformer predict` is cli/predict.py."""

from importlib import import_module
from types import ModuleType

from scperformer.base.lab import from_lab
from scperformer.config.steps import RESULT_VERSION as RESULT_VERSION

BENCH = "bench"
_NAMES = (
    *("check", "preprocess", "pretrain", "train", BENCH, "predict", "curate", "adapt"),
    *("evaluate", "report", "explain", "analyze", "models", "workflow", "app"),
)
# The file of each step: `run`, and its USAGE and EXAMPLES for the help; `bench` takes the options of `train`.
STEPS: dict[str, ModuleType] = {
    name: from_lab(name) if name == BENCH else import_module(f"scperformer.cli.{name}")
    for name in _NAMES
}
# in other programs
ALIASES = {"annotate": "predict", "classify": "predict", "transfer": "predict", "fit": "train"}
