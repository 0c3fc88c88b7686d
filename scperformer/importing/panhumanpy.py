"""Models of panhumanpy, the neural network of Azimuth (.keras): a probability for each label of several levels.

Such a file of Keras 3 is a zip archive of JSON (`config.json`, the layers and how they are connected) and an HDF5 file
of weights. Its labels are in another file, `inference_encoders.pkl` (`labels=`), one label encoder for each level, and
its genes in `inference_feature_panel.txt` (`genes=`). The labels of the deepest level are those of the model. Each of
them is a path with "|" between its levels, and the paths are the label tree: a parent's probability is the sum over its
labels, where panhumanpy has a classifier for each level.
"""

import json
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scperformer.base.errors import InputError
from scperformer.config import ModelsConfig
from scperformer.files import open_hdf5
from scperformer.importing.names import is_encoder, read_names
from scperformer.importing.origin import foreign_model
from scperformer.importing.pickles import Made, array_of, looks_like_pickle, read_pickle, state_of
from scperformer.importing.steps import Steps, batch_norm
from scperformer.labels import LabelTree
from scperformer.model import SavedModel

NAME = "a model of panhumanpy (.keras of Keras 3)"
CONFIG = "config.json"
WEIGHTS = "model.weights.h5"
MAX_BYTES = 2**31  # of the files in the archive
MAX_CONFIG_BYTES = 2**24
TARGET_SUM = 10_000.0
SEPARATOR = "|"  # between the levels of a label
IN_TRAINING = ("Dropout", "GaussianDropout", "GaussianNoise", "AlphaDropout", "ActivityRegularization")
LICENCE = "CC BY 4.0"
TESTED = (
    "untested with published weights, which could not be had: only a small model of this form, made with Keras 3.15, "
    "gets the probabilities that Keras gives it"
)
NOTE = (
    "The probabilities are those of the deepest level before panhumanpy's calibration (its temperatures per level are "
    "not part of the file), and its rules for refined labels are not applied."
)


def is_keras(path: Path) -> bool:
    """Whether a file begins as one that Keras 3 has saved; it may end too early."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(100)
    return head.startswith(b"PK") and (b"metadata.json" in head or CONFIG.encode() in head)


def read_panhumanpy(path: Path, cfg: ModelsConfig) -> SavedModel:
    """Read a model of panhumanpy; the text of a ValueError says how it is damaged, or that it is another one."""
    described, weights = _content(path)
    steps, outputs, num_genes = _steps(described, weights)
    for option, what in (("labels", "inference_encoders.pkl"), ("genes", "inference_feature_panel.txt")):
        if getattr(cfg, option) is None:
            found = f"{path}, which does not name its {option}"
            raise InputError(found, f"{what}, which panhumanpy has beside it", f"add {option}=FILE")
    levels = _levels(str(cfg.labels))
    sizes = [steps.steps[output - 1]["width"] for output in outputs]
    if [len(level) for level in levels] != sizes:
        found = f"labels={cfg.labels} with levels of {_listed(map(len, levels))} labels"
        raise InputError(found, f"levels of {_listed(sizes)} labels, as in {path}", "name the encoders of this model")
    genes = read_names(str(cfg.genes), "genes")
    if len(genes) != num_genes:
        found = f"{len(genes)} names in genes={cfg.genes}"
        raise InputError(found, f"the {num_genes} genes that {path} reads", "name the feature panel of this model")
    tree = label_tree(levels[-1])
    finest = outputs[-1]
    embedding = steps.steps[finest - 1]["of"][0]
    return foreign_model(
        path,
        cfg,
        origin={
            "tool": "panhumanpy",
            "levels": f"{len(levels)}, of {_listed(sizes)} labels",
            "licence": LICENCE,
            "tested": TESTED,
        },
        genes=genes,
        labels=tree.labels,
        config={"target_sum": TARGET_SUM, "network": steps.network(finest, embedding or finest)},
        weights=steps.weights,
        tree=tree,
        notes=[NOTE],
    )


def _listed(numbers: Any) -> str:
    return ", ".join(map(str, numbers))


def label_tree(paths: list[str]) -> LabelTree:
    """Return the tree over labels that are paths, such as "Immune|T|CD4"; empty levels of a path are left out.

    A node has the name of its last level or, if other nodes have this name too, its whole path.
    """
    nodes: dict[tuple[str, ...], None] = {}
    labels = [tuple(part.strip() for part in path.split(SEPARATOR) if part.strip()) for path in paths]
    for label in labels:
        nodes |= dict.fromkeys(label[:end] for end in range(1, len(label) + 1))
    last = Counter(node[-1] for node in nodes)
    names = {node: node[-1] if last[node[-1]] == 1 else SEPARATOR.join(node) for node in nodes}
    if not all(labels):
        raise ValueError("an empty label")
    parents = {name: names[node[:-1]] for node, name in names.items() if len(node) > 1}
    return LabelTree([names[label] for label in labels], parents)


def _levels(path: str) -> list[list[str]]:
    """Return the labels of each level, from a pickled list of label encoders."""
    file = Path(path)
    expected = "inference_encoders.pkl of panhumanpy: a pickled list of label encoders, one for each level"
    if not file.is_file():
        raise InputError(f"no file labels={path}", expected, "check the path")
    try:
        content = read_pickle(file, is_encoder) if looks_like_pickle(file) else None
        encoders = list(content.values()) if isinstance(content, dict) else content
        if not isinstance(encoders, list | tuple) or not encoders or not all(isinstance(one, Made) for one in encoders):
            raise ValueError("no label encoders")
        classes = [state_of(encoder, "label encoder").get("classes_") for encoder in encoders]
        return [[str(label) for label in array_of(labels, "labels").ravel()] for labels in classes]
    except ValueError as error:
        raise InputError(f"labels={path} with {error}", expected, "name another file") from error


def _content(path: Path) -> tuple[Mapping[str, Any], dict[str, list[np.ndarray]]]:
    """Return the description of a model and the weights of each layer by its name."""
    try:
        with zipfile.ZipFile(path) as archive, tempfile.TemporaryDirectory(prefix="scperformer-") as temporary:
            sizes = {entry.filename: entry.file_size for entry in archive.infolist()}
            if not {CONFIG, WEIGHTS} <= sizes.keys():
                raise ValueError(f"no {CONFIG} and {WEIGHTS}")
            if sum(sizes.values()) > MAX_BYTES or sizes[CONFIG] > MAX_CONFIG_BYTES:
                raise ValueError(f"content of {sum(sizes.values()):,} bytes")
            described = json.loads(archive.read(CONFIG))
            return described, _weights(Path(archive.extract(WEIGHTS, temporary)))
    except InputError as error:
        raise ValueError("damaged weights") from error
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError("a damaged archive") from error
    except json.JSONDecodeError as error:
        raise ValueError("a damaged archive") from error


def _weights(path: Path) -> dict[str, list[np.ndarray]]:
    """Return the weights of each layer in an HDF5 file; each group `vars` has the name of its layer."""
    found: dict[str, list[np.ndarray]] = {}
    try:
        with open_hdf5(path) as file:
            for group in file["layers"].values():
                name = group["vars"].attrs.get("name")
                count = len(group["vars"])
                if count and isinstance(name, str):
                    found[name] = [np.asarray(group["vars"][str(number)][()]) for number in range(count)]
    except (KeyError, OSError, RuntimeError, AttributeError, TypeError) as error:
        raise ValueError("damaged weights") from error
    for name, arrays in found.items():
        if any(array.dtype.kind != "f" or not np.isfinite(array).all() for array in arrays):
            raise ValueError(f"weights '{name[:100]}' that are not finite numbers")
    return found


def _steps(described: Mapping[str, Any], weights: Mapping[str, list[np.ndarray]]) -> tuple[Steps, list[int], int]:
    """Return the steps of a model, the numbers of the scores of its outputs, and its number of genes."""
    try:
        config = described["config"]
        layers = [(layer["class_name"], layer["config"], layer["inbound_nodes"]) for layer in config["layers"]]
        outputs = [place[0] for place in _places(config["output_layers"])]
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError("a description that is not that of a functional model of Keras 3") from error
    steps = Steps()
    values: dict[str, int] = {}  # the value of each layer
    scores: dict[int, int] = {}  # of each softmax, the value before it
    num_genes = 0
    for kind, options, nodes in layers:
        name = options.get("name")
        if kind == "InputLayer":
            if num_genes:
                raise ValueError("a second input")
            values[name] = 0
            num_genes = _input_width(options)
            continue
        inputs = [values.get(before, -1) for before in _before(nodes)]
        if not inputs or -1 in inputs:
            raise ValueError(f"a layer '{str(name)[:100]}' that is not behind the layers before it")
        values[name] = _add_layer(steps, kind, options, inputs, weights.get(name, []), scores)
    ends = [scores.get(values.get(name, -1)) for name in outputs]
    if not ends or None in ends or any(steps.steps[end - 1]["kind"] != "dense" for end in ends if end):
        raise ValueError("an output that is not the softmax of a dense layer")
    return steps, [end for end in ends if end], num_genes


def _places(layers: Any) -> list[Any]:
    """Return the outputs of a model as a list; that of a single output is one of its own."""
    return [layers] if layers and isinstance(layers[0], str) else layers


def _before(nodes: Any) -> list[str]:
    """Return the names of the layers whose results a layer reads."""

    def tensors(value: Any) -> Iterator[str]:
        if isinstance(value, dict) and value.get("class_name") == "__keras_tensor__":
            yield value["config"]["keras_history"][0]
        elif isinstance(value, list):
            for entry in value:
                yield from tensors(entry)

    try:
        (node,) = nodes
        return list(tensors(node["args"]))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError("a layer that is used twice, or whose inputs are not known") from error


def _input_width(options: Mapping[str, Any]) -> int:
    shape = options.get("batch_shape", options.get("batch_input_shape"))
    if not isinstance(shape, list) or len(shape) != 2 or type(shape[1]) is not int or shape[1] < 1:
        raise ValueError("an input that is not a row of genes")
    return shape[1]


def _add_layer(
    steps: Steps,
    kind: str,
    options: Mapping[str, Any],
    inputs: list[int],
    arrays: list[np.ndarray],
    scores: dict[int, int],
) -> int:
    """Add the steps of a layer and return the number of its value; for a softmax, note the value before it."""
    value = inputs[0]
    if kind == "Concatenate":
        return steps.add("concatenate", inputs)
    if len(inputs) > 1:
        raise ValueError(f"a layer {str(kind)[:50]} of several inputs, which cannot be imported")
    if kind in IN_TRAINING:
        return value
    if kind == "Dense":
        bias = arrays[1] if len(arrays) == 2 else np.zeros(arrays[0].shape[-1:]) if len(arrays) == 1 else np.zeros(0)
        if not arrays or arrays[0].ndim != 2 or bias.shape != arrays[0].shape[1:]:
            raise ValueError("a dense layer without weights that fit")
        value = steps.dense(arrays[0], bias, [value])
    elif kind in ("BatchNormalization", "LayerNormalization"):
        value = _add_norm(steps, kind, options, value, arrays)
    elif kind not in ("Activation", "ReLU", "Softmax"):
        raise ValueError(f"a layer {str(kind)[:50]}, which cannot be imported")
    function = {"ReLU": "relu", "Softmax": "softmax"}.get(kind) or options.get("activation", "linear")
    if function in (None, "linear"):
        return value
    if function == "swish":
        function = "silu"
    result = steps.add(str(function), [value])
    if function == "softmax":
        scores[result] = value
    return result


def _add_norm(steps: Steps, kind: str, options: Mapping[str, Any], value: int, arrays: list[np.ndarray]) -> int:
    """Add a batch norm or a layer norm over the last axis."""
    if options.get("axis") not in (-1, 1, [-1], [1]):
        raise ValueError(f"a {kind} over other axes than the last")
    epsilon = options.get("epsilon")
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise ValueError(f"a {kind} without an epsilon")
    rest = list(arrays)
    count = 2 if kind == "BatchNormalization" else 0  # the mean and the variance
    if len(rest) != count + bool(options.get("scale", True)) + bool(options.get("center", True)):
        raise ValueError(f"a {kind} without weights that fit")
    width = rest[-1].shape if rest else ()
    factor = rest.pop(0) if options.get("scale", True) else np.ones(width)
    shift = rest.pop(0) if options.get("center", True) else np.zeros(width)
    if kind == "BatchNormalization":
        mean, variance = rest
        return steps.affine(*batch_norm(factor, shift, mean, variance, epsilon), of=[value])
    value = steps.add("standardise", [value], epsilon=epsilon)
    return steps.affine(factor, shift) if width else value
