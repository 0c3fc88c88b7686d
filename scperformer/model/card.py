"""What a person should know about a pretrained encoder, as Markdown."""

from collections.abc import Sequence
from typing import Any


def encoder_card(name: str, genes: Sequence[str], info: dict[str, Any]) -> str:
    """The model card of an encoder without labels, from its genes and the content of its bundle.json."""
    made, metrics, masking = info["provenance"], info["metrics"], info["config"]["masking"]
    corpus = "\n".join(f"| {file['name']} | {file['num_cells']} | {file['input']} |" for file in made["corpus"])
    start = f"\n- It started from `{made['init']['name']}` (`{made['init']['hash'][:12]}`)." if "init" in made else ""
    verdict = (
        "lower is better: it has learned more than what is usual for gene and cell"
        if metrics["loss"] < metrics["naive_loss"]
        else "lower is better: **it has learned nothing beyond what is usual for gene and cell**"
    )
    share, num_val_cells = f"{masking['share']:.0%}", metrics["num_val_cells"]
    return f"""\
# {name}

An encoder of scperformer {made["versions"]["scperformer"]} without labels: it cannot annotate. It is the start of
models that can: `scperformer train reference.h5ad label_key=cell_type init={name}`.

| file | cells | input |
|---|---|---|
{corpus}

- Pretrained on {made["num_cells"]} cells, {len(genes)} genes, to predict the expression of {share} of the genes that a
  cell expresses from the others.
- On hidden values of {num_val_cells} held-out cells, which also chose the epoch: loss {metrics["loss"]:.4f}, of a naive
  guess {metrics["naive_loss"]:.4f} ({verdict}).{start}
- Made by `{made["command"]}` with seed {made["seed"]}; all options are in bundle.json.
"""
