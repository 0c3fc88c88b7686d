"""A trained model as plain data, and MODEL_CARD.md: what a person should know before using it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ANNOTATOR, ENCODER = "annotator", "encoder"  # kinds of model: with labels, or an encoder alone
BRANCHES = {"wide": "linear branch", "deep": "encoder"}
SILENT = 0.01  # an encoder with a smaller scale decides no label


@dataclass(kw_only=True)
class Bundle:
    """A trained model as plain data: G genes, C labels."""

    name: str
    genes: list[str]  # in order
    gene_means: np.ndarray  # float32 G: mean ln(1 + cp10k) over the reference
    labels: list[str]  # in the order of the logits
    ontology_term_ids: list[str]  # a Cell Ontology id or "unknown" for each label
    config: dict[str, Any]  # groups tokens, model, attention, head and the number target_sum: all to build the network
    metrics: dict[str, Any]
    provenance: dict[str, Any]
    weights: dict[str, np.ndarray] = field(repr=False)  # model.*: the network's state; baseline.weight, baseline.bias
    hash: str = ""  # SHA-256 of bundle.json, which holds the checksums of the other files; "" before saving
    kind: str = ANNOTATOR  # or ENCODER, from `pretrain`: without labels, head and logistic regression

    @property
    def scales(self) -> dict[str, float]:
        """The factor of each branch (`wide`, `deep`) in the logits; a branch that is off is left out."""
        return {name: float(scale) for name, scale in self.metrics["scales"].items()}

    @property
    def importance(self) -> np.ndarray:
        """The importance of each gene for the labels, float64 G: its mean times the spread of its weights over labels.

        The weights are those of logistic regression; an encoder has none, and the means stand alone.
        """
        means = np.asarray(self.gene_means, dtype=np.float64)
        weight = self.weights.get("baseline.weight")
        return means if weight is None else means * np.asarray(weight, dtype=np.float64).std(axis=1)


def encoder_is_silent(scales: Mapping[str, float]) -> bool:
    """Whether a model has both branches and its labels come from the linear branch alone."""
    return len(scales) == len(BRANCHES) and scales["deep"] < SILENT


def sum_of_branches(scales: Mapping[str, float]) -> str:
    """Describe the logits, as in "1.20 x linear branch + 0.35 x encoder"."""
    return " + ".join(f"{scale:.2f} x {BRANCHES[name]}" for name, scale in scales.items())


def _annotator_card(bundle: Bundle) -> str:
    made, metrics = bundle.provenance, bundle.metrics
    counts = made["cells_per_label"]
    labels = "\n".join(f"| {label} | {counts[label]} |" for label in bundle.labels)
    ours, baseline = metrics["model"], metrics["baseline"]
    checksum = f" (SHA-256 `{made['reference_sha256']}`)" if made["reference_sha256"] else ""
    alone = " The labels come from the linear branch alone." if encoder_is_silent(bundle.scales) else ""
    notes = "".join(f"- {note}\n" for note in made.get("notes", []))
    return f"""\
# {bundle.name}

A cell-type model of scperformer {made["versions"]["scperformer"]}. It distinguishes the {len(bundle.labels)} labels
below and no others: a cell of any other type still gets one of them.

| label | cells in the reference |
|---|---|
{labels}

- Trained on `{made["reference"]}`{checksum}, labels in `{made["label_key"]}`,
  {made["num_cells"]} cells, {len(bundle.genes)} genes.
- Input: {made["input"]}.
{notes}\
- Scores on {metrics["num_val_cells"]} validation cells of the reference. They also chose the epoch, so the scores are
  optimistic: accuracy {ours["accuracy"]:.3f}, macro-F1 {ours["macro_f1"]:.3f}; logistic regression trained on the same
  cells: accuracy {baseline["accuracy"]:.3f}, macro-F1 {baseline["macro_f1"]:.3f}.
- Logits are {sum_of_branches(bundle.scales)}; the factors were fitted on those cells.{alone}
- Confidences are probabilities scaled on the same validation cells: they hold for cells like those of the reference.
- Made by `{made["command"]}` with seed {made["seed"]}; all options are in bundle.json.
"""


def _encoder_card(bundle: Bundle) -> str:
    made, metrics, share = bundle.provenance, bundle.metrics, f"{bundle.config['masking']['share']:.0%}"
    corpus = "\n".join(f"| {file['name']} | {file['num_cells']} | {file['input']} |" for file in made["corpus"])
    start = f"\n- It started from `{made['init']['name']}` (`{made['init']['hash'][:12]}`)." if "init" in made else ""
    usual = "the usual values of gene and cell"
    more, nothing = "it has learned more than", "**it has learned nothing beyond"
    verdict = f"{more} {usual}" if metrics["loss"] < metrics["naive_loss"] else f"{nothing} {usual}**"
    return f"""\
# {bundle.name}

An encoder of scperformer {made["versions"]["scperformer"]} without labels: it cannot annotate. It is the start of
models that can: `scperformer train reference.h5ad label_key=cell_type init={bundle.name}`.

| file | cells | input |
|---|---|---|
{corpus}

- Pretrained on {made["num_cells"]} cells, {len(bundle.genes)} genes, to predict the expression of {share} of the genes
  that a cell expresses from the others.
- On masked values of {metrics["num_val_cells"]} validation cells, which also chose the epoch: loss
  {metrics["loss"]:.4f}, of a naive guess {metrics["naive_loss"]:.4f} (lower is better: {verdict}).{start}
- Made by `{made["command"]}` with seed {made["seed"]}; all options are in bundle.json.
"""


def model_card(bundle: Bundle, pictures: Mapping[str, Any] | None = None) -> str:
    """Return the model card as Markdown; it shows the PNG files among `pictures`."""
    text = _annotator_card(bundle) if bundle.kind == ANNOTATOR else _encoder_card(bundle)
    shown = {name: Path(name).stem.replace("_", " ") for name in pictures or {} if name.endswith(".png")}
    return text + "".join(f"\n![{caption}]({name})\n" for name, caption in shown.items())
