"""Model folders of formats 3 to 6, and annotations by such models: their names become those of today.

The linear branch was called `wide` and the encoder `deep` (formats 3 to 5), and the encoder without layers was not a
Performer (up to 6). Some options are constants by now; a model that was made with another value of one cannot be used
any more.
"""

from collections.abc import Mapping
from typing import Any

BRANCH_NAMES = {"wide": "linear", "deep": "encoder"}
OPTION_NAMES = {"wide": "linear", "deep": "encoder", "wide_powers": "linear_powers"}  # in the group `model`
CONSTANTS: dict[str, dict[str, Any]] = {"model": {"feedforward_factor": 4, "activation": "gelu"}}
BINS_PER_LOG2: dict[str, float] = {"bins": 4.0, "scbert": 1.0}  # of the tokens that are bins


def with_current_branches(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping from the names of branches, such as scales, with the names of today."""
    return {BRANCH_NAMES.get(name, name): value for name, value in values.items()}


def with_current_names(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of an older bundle.json with the names of today; the text of a ValueError says what cannot be.

    Parts of an unexpected type stay as they are, for the checks of every model folder.
    """
    info = dict(info)
    if isinstance(config := info.get("config"), dict):
        info["config"] = _current_options(config)
    if isinstance(metrics := info.get("metrics"), dict):
        metrics = dict(metrics)
        if isinstance(scales := metrics.get("scales"), dict):
            metrics["scales"] = with_current_branches(scales)
        fold = metrics.get("out_of_fold")
        if isinstance(fold, dict) and isinstance(branches := fold.get("branches"), dict):
            metrics["out_of_fold"] = fold | {"branches": with_current_branches(branches)}
        info["metrics"] = metrics
    return info


def current_weight(name: str, config: Mapping[str, Any]) -> str:
    """Return the name of today of a tensor of an older model, which has this configuration."""
    if name.startswith("model.wide."):
        return name.replace("model.wide.", "model.linear.", 1)
    model = config.get("model")
    if name == "model.pool.centre_D" and isinstance(model, dict) and model.get("depth") == 0:
        return "model.encoder.reader.mean_X"
    return name


def _current_options(config: Mapping[str, Any]) -> dict[str, Any]:
    config = dict(config)
    if isinstance(tokens := config.get("tokens"), dict):
        tokens = dict(tokens)
        bins = tokens.pop("bins_per_log2", None)
        expected = BINS_PER_LOG2.get(str(tokens.get("name")))
        if bins is not None and expected is not None and bins != expected:
            raise ValueError(f"tokens.bins_per_log2={bins}, which is {expected:g} in this version")
        config["tokens"] = tokens
    if isinstance(model := config.get("model"), dict):
        model = {OPTION_NAMES.get(name, name): value for name, value in model.items()}
        for name, constant in CONSTANTS["model"].items():
            if (value := model.pop(name, constant)) != constant:
                raise ValueError(f"model.{name}={value}, which is {constant} in this version")
        config["model"] = model
    return config
