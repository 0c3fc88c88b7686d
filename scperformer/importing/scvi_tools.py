"""Models of scvi-tools that annotate: scANVI (Xu et al. 2021, Mol. Syst. Biol. 17:e9620), as `SCANVI.save` writes them.

The classifier reads the mean of the latent vector of a cell, which the encoder gets from ln(1 + counts), without
normalisation for depth. Both are dense layers; batch norms are computed into the weights before them. A model that
encodes batches (`encode_covariates`) is imported for one of its batches, whose weights become part of the bias.
"""

import itertools
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from scperformer.base.errors import InputError
from scperformer.base.inputs import sha256
from scperformer.base.messages import did_you_mean, shortened
from scperformer.config.steps import ImportOptions
from scperformer.importing.foreign import ForeignModel
from scperformer.io.pickles import MAX_PICKLE_BYTES, NUMPY, array_of
from scperformer.io.torch_files import is_torch_file, read_torch, weights_of
from scperformer.model.bundle import NetworkConfig

NAME = "a model folder of scvi-tools with a scANVI model (model.pt)"
FILE = "model.pt"
SIGN = b"attr_dict"  # the entry of such a file that no other has
BATCH_NORM_EPSILON = 1e-3
LAYER_NORM_EPSILON = 1e-5
# Objects in such a file that are not needed: the history of the training, for example, is a table of pandas.
KNOWN = ("pandas.", "numpy.", "scvi.", "anndata.", "torch.", "builtins.", "__builtin__.", *NUMPY)
# Options that make another network; a model with another value is refused.
SUPPORTED = {
    "latent_distribution": "normal",
    "log_variational": True,
    "batch_representation": "one-hot",
    "use_labels_groups": False,
}
TESTED = (
    "probabilities and latent vectors equal scvi-tools 1.4.2 to 1e-6 on small models made with it; no published model "
    "was at hand"
)
NOTE = "It reads raw counts as they are, without normalisation for depth, as it was trained: other values are refused."


def is_it(path: Path) -> bool:
    """Whether a folder or file may be such a model: it has, or is, a file of torch with attributes of a model."""
    file = path / FILE if path.is_dir() else path
    if not is_torch_file(file):
        return False
    with (
        suppress(zipfile.BadZipFile, EOFError, OSError, KeyError, NotImplementedError, ValueError),
        zipfile.ZipFile(file) as archive,
    ):
        pickles = [entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl")]
        return (
            len(pickles) == 1
            and pickles[0].file_size < MAX_PICKLE_BYTES
            and SIGN in archive.read(pickles[0])
        )
    return path.is_dir() or path.name == FILE  # damaged


def _options_of(attributes: Any) -> dict[str, Any]:
    """Return the options with which a model was made; refuse those that are not understood."""
    made_with = _entry(attributes, "init_params_")
    options = dict(_entry(made_with, "non_kwargs"))
    for name, value in _entry(made_with, "kwargs").items():
        # nested options are of its network
        options |= value if isinstance(value, dict) else {name: value}
    for name, default in SUPPORTED.items():
        if (value := options.get(name, default)) != default:
            why = f"with which no model can be imported (only {default})"
            raise ValueError(f"{name}={str(value)[:50]}, {why}")
    for name in ("extra_encoder_kwargs", "classifier_parameters"):
        if options.get(name):
            raise ValueError(f"{name}, with which no model can be imported")
    return options


def read(path: Path, cfg: ImportOptions, names: Mapping[str, list[str]]) -> ForeignModel:
    """Read a scANVI model : a ValueError says how it is damaged, or why it cannot be used."""
    file = path / FILE if path.is_dir() else path
    content = read_torch(file, KNOWN)
    weights = weights_of(content, "model_state_dict")
    attributes = content.get("attr_dict")
    registry = _entry(attributes, "registry_")
    kind = registry.get("model_name")
    if kind != "SCANVI":
        found = f"{path} with a model {str(kind)[:50]} of scvi-tools"
        expected = "a scANVI model (SCANVI), which has a classifier"
        raise InputError("scvi-kind", found, expected, "import a model that annotates")
    options = _options_of(attributes)
    for name in weights:
        if name.startswith(("z_encoder.", "classifier.")) and not np.isfinite(weights[name]).all():
            raise ValueError(f"weights '{name[:100]}' that are not finite numbers")
    genes = [str(gene) for gene in array_of(content.get("var_names"), "var_names").ravel()]
    batch, notes = _batch(options, registry, cfg)
    is_normed = options.get("use_layer_norm", "none") in ("encoder", "both")
    layers = _DenseLayers(weights, len(genes), is_normed)
    layers.add_hidden("z_encoder.encoder", batch)
    layers.add_dense("z_encoder.mean_encoder")
    latent = len(layers.steps)
    # hidden layers and the last, or the last alone
    first, last = ("classifier.classifier.0", "classifier.classifier.1")
    if f"{last}.weight" in weights:
        layers.add_hidden(first)
    elif f"{first}.weight" in weights:
        last = first
    else:
        raise ValueError("no classifier")
    layers.add_dense(last)
    # the category of cells without a label comes last
    labels = _categories(registry, "labels")[: layers.width]
    if len(labels) < layers.width:
        raise ValueError(f"{len(labels)} labels for a classifier of {layers.width}")
    unlabelled = _entry(registry, "setup_args").get("unlabeled_category")
    network = {"name": "dense", "steps": layers.steps, "embedding": latent}
    return {
        # The model has the name of its folder, as its only file is always called model.pt.
        "name": file.absolute().parent.name
        if file.name == FILE
        else path.name.removesuffix(path.suffix),
        "origin": {
            "tool": "scvi-tools",
            "version": str(registry.get("scvi_version", ""))[:50],
            "file": file.name,
            "sha256": sha256(file),
            "tested": TESTED,
            "labels of cells without a label": unlabelled if isinstance(unlabelled, str) else "",
        },
        "genes": genes,
        "labels": labels,
        "config": NetworkConfig(target_sum=None, network=network),
        "weights": layers.arrays,
        "notes": [NOTE, *notes],
    }


def _entry(mapping: Any, name: str) -> Mapping[str, Any]:
    value = mapping.get(name) if isinstance(mapping, dict) else None
    if not isinstance(value, dict):
        raise ValueError(f"no {name}")
    return value


def _categories(registry: Mapping[str, Any], field_name: str) -> list[str]:
    """Return the categories of a field: the labels or the batches, in the order of their numbers."""
    state = _entry(_entry(_entry(registry, "field_registries"), field_name), "state_registry")
    return [
        str(name)
        for name in array_of(state.get("categorical_mapping"), f"the {field_name}").ravel()
    ]


def _batch(
    options: Mapping[str, Any], registry: Mapping[str, Any], cfg: ImportOptions
) -> tuple[np.ndarray | None, list[str]]:
    """Return the code of the chosen batch, 1 for it and 0 for others, or None if the encoder does not read batches."""
    if not options.get("encode_covariates", False):
        if cfg.batch is not None:
            found = f"batch={cfg.batch} and a model whose encoder does not read batches"
            expected = "no batch: cells of any batch are read in the same way"
            raise InputError("scvi-batch", found, expected, "leave batch out")
        return None, []
    batches = _categories(registry, "batch")
    if len(batches) == 1:
        return np.zeros(0), []
    if cfg.batch not in batches:
        names = ", ".join(f"'{shortened(name)}'" for name in batches[:20])
        near = did_you_mean(cfg.batch, batches) if cfg.batch is not None else ""
        found = "a scANVI model that encodes batches" + (
            "" if cfg.batch is None else f", and batch={cfg.batch}"
        )
        remedy = f"{near}add batch=... of the batch as which cells are to be read"
        raise InputError("scvi-batch", found, f"one of its batches: {names}", remedy)
    note = f"Cells are read as cells of the batch '{cfg.batch}'; its batches are {', '.join(batches[:20])}."
    return np.array([name == cfg.batch for name in batches], dtype=np.float64), [note[:1000]]


class _DenseLayers:
    """The steps of a network `dense` (model/imported.py) and their weights, from those of scvi-tools."""

    def __init__(self, weights: Mapping[str, np.ndarray], num_genes: int, is_normed: bool):
        self.weights = weights
        self.width = num_genes  # of the last step
        self.is_normed = is_normed  # a layer norm follows each hidden layer
        self.steps: list[dict[str, str | int | float]] = []
        self.arrays: dict[str, np.ndarray] = {}

    def add_hidden(self, name: str, batch: np.ndarray | None = None) -> None:
        for number in itertools.count():
            layer = f"{name}.fc_layers.Layer {number}"
            if number > 0 and f"{layer}.0.weight" not in self.weights:
                break
            self.add_dense(f"{layer}.0", f"{layer}.1", batch)
            if self.is_normed:
                self.steps.append({"kind": "standardise", "epsilon": LAYER_NORM_EPSILON})
            self.steps.append({"kind": "relu"})

    def add_dense(self, name: str, norm: str = "", batch: np.ndarray | None = None) -> None:
        """Add a product and a bias, with the code of the batch (behind the genes) and the batch norm that follows."""
        weight = self._array(f"{name}.weight").T
        bias = self._array(f"{name}.bias")
        if weight.ndim != 2 or bias.shape != weight.shape[1:]:
            raise ValueError(f"weights '{name}' of shapes that do not fit")
        if batch is not None and len(weight) == self.width + len(batch):
            bias = bias + batch @ weight[self.width :]
            weight = weight[: self.width]
        if len(weight) != self.width:
            raise ValueError(f"weights '{name}' for {len(weight)} instead of {self.width} numbers")
        if f"{norm}.running_var" in self.weights:
            parts = [
                self._array(f"{norm}.{part}")
                for part in ("weight", "bias", "running_mean", "running_var")
            ]
            gain, shift, mean, variance = parts
            if any(part.shape != bias.shape for part in parts) or not (variance >= 0).all():
                raise ValueError(f"a batch norm '{norm}' that does not fit")
            factor = gain / np.sqrt(variance + BATCH_NORM_EPSILON)
            weight = weight * factor
            bias = bias * factor + (shift - mean * factor)
        self.width = len(bias)
        self.steps.append({"kind": "dense", "width": self.width})
        self.arrays[f"weight_{len(self.steps)}"] = np.ascontiguousarray(weight)
        self.arrays[f"bias_{len(self.steps)}"] = bias

    def _array(self, name: str) -> np.ndarray:
        if name not in self.weights:
            raise ValueError(f"no weights '{name}'")
        return self.weights[name].astype(np.float64)
