"""Models of scvi-tools that annotate: scANVI (Xu et al. 2021, Mol. Syst. Biol. 17:e9620), as `SCANVI.save` writes them.

The classifier reads the mean of the latent vector of a cell, which the encoder gets from ln(1 + counts), without
normalisation for depth. Both are dense layers; batch norms are computed into the weights before them. A model that
encodes batches (`encode_covariates`) is imported for one of its batches, whose weights become part of the bias.
"""

import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.base.messages import did_you_mean, shortened
from scperformer.config.steps import ModelsConfig
from scperformer.importing.dense import Steps, batch_norm
from scperformer.importing.pickles import MAX_BYTES, NUMPY, Global, array_of
from scperformer.importing.torch_files import is_torch_file, read_torch, weights_of

NAME = "a model folder of scvi-tools with a scANVI model (model.pt)"
FILE = "model.pt"
SIGN = b"attr_dict"  # the entry of such a file that no other has
BATCH_NORM_EPSILON = 1e-3
LAYER_NORM_EPSILON = 1e-5
# Objects in such a file that are not needed: the history of the training, for example, is a table of pandas.
MODULES = ("pandas.", "numpy.", "scvi.", "anndata.", "torch.")
BUILTINS = (
    "bool",
    "bytearray",
    "bytes",
    "complex",
    "dict",
    "float",
    "int",
    "list",
    "object",
    "set",
    "slice",
    "str",
    "tuple",
)
# Options that make another network; a model with another value is refused.
USUAL = {
    "latent_distribution": "normal",
    "log_variational": True,
    "batch_representation": "one-hot",
    "use_labels_groups": False,
}
TESTED = (
    "probabilities and latent vectors equal those of scvi-tools 1.4.2 to 1e-6 on small models made with it; no "
    "published model was at hand"
)
NOTE = "It reads raw counts as they are, without normalisation for depth, as it was trained: other values are refused."


def is_scvi_tools(path: Path) -> bool:
    """Whether a folder or file may be such a model: it has, or is, a file of torch with attributes of a model."""
    file = path / FILE if path.is_dir() else path
    if not is_torch_file(file):
        return False
    with (
        suppress(zipfile.BadZipFile, EOFError, OSError, KeyError, NotImplementedError, ValueError),
        zipfile.ZipFile(file) as archive,
    ):
        pickles = [entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")]
        return len(pickles) == 1 and pickles[0].file_size < MAX_BYTES and SIGN in archive.read(pickles[0])
    return path.is_dir() or path.name == FILE  # damaged


def read_scvi_tools(path: Path, cfg: ModelsConfig, names: Mapping[str, list[str]]) -> dict[str, Any]:
    """Read a scANVI model, as the arguments of `foreign_model`.

    The text of a ValueError says how it is damaged, or why it cannot be used.
    """
    file = path / FILE if path.is_dir() else path
    content = read_torch(file, _is_known)
    weights = weights_of(content, "model_state_dict")
    attributes = content.get("attr_dict")
    registry = _entry(attributes, "registry_")
    kind = registry.get("model_name")
    if kind != "SCANVI":
        found = f"{path} with a model {str(kind)[:50]} of scvi-tools"
        raise InputError(found, "a scANVI model (SCANVI), which has a classifier", "import a model that annotates")
    options = _options(_entry(attributes, "init_params_"))
    _require_usual(options, weights)
    genes = [str(gene) for gene in array_of_text(content.get("var_names"), "var_names")]
    num_labels = _num_labels(weights)
    labels = _categories(registry, "labels")[:num_labels]  # the last of them is that of cells without a label
    if len(labels) < num_labels:
        raise ValueError(f"{len(labels)} labels for a classifier of {num_labels}")
    steps, embedding, notes = _layers(weights, options, registry, len(genes), cfg)
    unlabelled = _entry(registry, "setup_args").get("unlabeled_category")
    described = {"labels of cells without a label": unlabelled if isinstance(unlabelled, str) else ""}
    # It is called what its folder is called, as its only file is always called model.pt.
    whole = path.absolute() if path.is_dir() else path.absolute().parent if path.name == FILE else path
    return {
        "path": str(whole),
        "origin": {
            "tool": "scvi-tools",
            "version": str(registry.get("scvi_version", ""))[:50],
            "file": FILE,
            "sha256": sha256(file),
            "tested": TESTED,
            **described,
        },
        "genes": genes,
        "labels": labels,
        "config": {"target_sum": None, "network": steps.network(scores=steps.last, embedding=embedding)},
        "weights": steps.weights,
        "notes": [NOTE, *notes],
    }


def _is_known(found: Global) -> bool:
    is_plain = found.module in ("builtins", "__builtin__") and found.name in BUILTINS
    return is_plain or (found.module, found.name) in NUMPY or found.module.startswith(MODULES)


def _entry(mapping: Any, name: str) -> Mapping[str, Any]:
    value = mapping.get(name) if isinstance(mapping, dict) else None
    if not isinstance(value, dict):
        raise ValueError(f"no {name}")
    return value


def array_of_text(value: Any, what: str) -> list[Any]:
    """Return the entries of an array of text."""
    return list(array_of(value, what).ravel())


def _options(init_params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with which a model was made; those for its network are nested."""
    options = dict(_entry(init_params, "non_kwargs"))
    for name, value in _entry(init_params, "kwargs").items():
        options |= value if isinstance(value, dict) else {name: value}
    return options


def _require_usual(options: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> None:
    """Refuse a model whose network is computed in another way than those that are known."""
    for name, usual in USUAL.items():
        if (value := options.get(name, usual)) != usual:
            raise ValueError(f"{name}={str(value)[:50]}, with which no model can be imported (only {usual})")
    for name in ("extra_encoder_kwargs", "classifier_parameters"):
        if options.get(name):
            raise ValueError(f"{name}, with which no model can be imported")
    for name in weights:
        if name.startswith(("z_encoder.", "classifier.")) and not np.isfinite(weights[name]).all():
            raise ValueError(f"weights '{name[:100]}' that are not finite numbers")


def _categories(registry: Mapping[str, Any], field_name: str) -> list[str]:
    """Return the categories of a field: the labels or the batches, in the order of their numbers."""
    state = _entry(_entry(_entry(registry, "field_registries"), field_name), "state_registry")
    return [str(name) for name in array_of_text(state.get("categorical_mapping"), f"the {field_name}")]


def _num_labels(weights: Mapping[str, np.ndarray]) -> int:
    last = _last_of_classifier(weights)
    return len(weights[f"{last}.bias"])


def _last_of_classifier(weights: Mapping[str, np.ndarray]) -> str:
    """Return the name of the last layer of the classifier: behind its hidden layers, or alone."""
    for name in ("classifier.classifier.1", "classifier.classifier.0"):
        if f"{name}.weight" in weights and f"{name}.bias" in weights:
            return name
    raise ValueError("no classifier")


def _layers(
    weights: Mapping[str, np.ndarray],
    options: Mapping[str, Any],
    registry: Mapping[str, Any],
    num_genes: int,
    cfg: ModelsConfig,
) -> tuple[Steps, int, list[str]]:
    """Return the encoder and the classifier as steps, the number of the latent mean, and a note about the batch."""
    batch, notes = _batch(options, registry, cfg)
    is_normed = options.get("use_layer_norm", "none") in ("encoder", "both")
    steps = Steps()
    width = _add_hidden(steps, weights, "z_encoder.encoder", num_genes, is_normed, batch)
    width = _add_linear(steps, weights, "z_encoder.mean_encoder", width)
    latent = steps.last
    last = _last_of_classifier(weights)
    if last.endswith(".1"):
        width = _add_hidden(steps, weights, "classifier.classifier.0", width, is_normed, None)
    _add_linear(steps, weights, last, width)
    return steps, latent, notes


def _batch(
    options: Mapping[str, Any], registry: Mapping[str, Any], cfg: ModelsConfig
) -> tuple[np.ndarray | None, list[str]]:
    """Return the code of the chosen batch, 1 for it and 0 for others, or None if the encoder does not read batches."""
    if not options.get("encode_covariates", False):
        if cfg.batch is not None:
            found = f"batch={cfg.batch} and a model whose encoder does not read batches"
            raise InputError(found, "no batch: cells of any batch are read in the same way", "leave batch out")
        return None, []
    arguments = _entry(registry, "setup_args")
    for name in ("categorical_covariate_keys", "continuous_covariate_keys"):
        if arguments.get(name):
            raise ValueError(f"an encoder that reads {name}, which cannot be imported")
    batches = _categories(registry, "batch")
    if len(batches) == 1:
        return np.zeros(0), []
    if cfg.batch not in batches:
        known = ", ".join(f"'{shortened(name)}'" for name in batches[:20])
        near = did_you_mean(cfg.batch, batches) if cfg.batch is not None else ""
        found = "a scANVI model that encodes batches" + ("" if cfg.batch is None else f", and batch={cfg.batch}")
        remedy = f"{near}add batch=... of the batch as which cells are to be read"
        raise InputError(found, f"one of its batches: {known}", remedy)
    note = f"Cells are read as those of the batch '{cfg.batch}'; its batches are {', '.join(batches[:20])}."
    return np.array([name == cfg.batch for name in batches], dtype=np.float64), [note[:1000]]


def _add_hidden(
    steps: Steps,
    weights: Mapping[str, np.ndarray],
    name: str,
    width: int,
    is_normed: bool,
    batch: np.ndarray | None,
) -> int:
    """Add hidden layers: a product, a batch norm if there is one, maybe a layer norm, and ReLU; return their width."""
    number = 0
    while f"{name}.fc_layers.Layer {number}.0.weight" in weights:
        layer = f"{name}.fc_layers.Layer {number}"
        weight, bias = _linear(weights, f"{layer}.0")
        if batch is not None and len(weight) == width + len(batch):
            bias = bias + batch @ weight[width:]
            weight = weight[:width]
        _require_width(weight, width, layer)
        if f"{layer}.1.running_var" in weights:
            gain, offset = _weight(weights, f"{layer}.1.weight"), _weight(weights, f"{layer}.1.bias")
            mean, variance = (_weight(weights, f"{layer}.1.running_{part}") for part in ("mean", "var"))
            factor, shift = batch_norm(gain, offset, mean, variance, BATCH_NORM_EPSILON)
            _require_width(weight.T, len(factor), layer)
            weight = weight * factor
            bias = bias * factor + shift
        steps.dense(weight, bias)
        if is_normed:
            steps.add("standardise", epsilon=LAYER_NORM_EPSILON)
        steps.add("relu")
        width = len(bias)
        number += 1
    if number == 0:
        raise ValueError(f"no layers {name}")
    return width


def _add_linear(steps: Steps, weights: Mapping[str, np.ndarray], name: str, width: int) -> int:
    """Add a product and a bias; return its width."""
    weight, bias = _linear(weights, name)
    _require_width(weight, width, name)
    steps.dense(weight, bias)
    return len(bias)


def _linear(weights: Mapping[str, np.ndarray], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the weights of a product, in x out, and its bias, float64."""
    weight = _weight(weights, f"{name}.weight").T
    bias = _weight(weights, f"{name}.bias")
    if weight.ndim != 2 or bias.shape != weight.shape[1:]:
        raise ValueError(f"weights '{name}' of shapes that do not fit")
    return weight, bias


def _weight(weights: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in weights:
        raise ValueError(f"no weights '{name}'")
    return weights[name].astype(np.float64)


def _require_width(weight: np.ndarray, width: int, name: str) -> None:
    if len(weight) != width:
        raise ValueError(f"weights '{name}' for {len(weight)} instead of {width} numbers")
