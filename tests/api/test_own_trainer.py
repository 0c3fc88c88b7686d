"""The example of docs/own_mechanism.md that trains a network in a Lightning trainer of one's own."""

import re
import warnings
from pathlib import Path

import anndata as ad
import torch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "own_mechanism.md").read_text(encoding="utf-8")


def test_the_example_trains_with_dropout_and_reads_vectors_without(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ad.read_h5ad(ROOT / "data" / "pbmc3k.h5ad")[::20].copy().write_h5ad("reference.h5ad")
    (code,) = re.findall(
        r"```python\n(import anndata as ad\nimport pytorch_lightning.*?)```", PAGE, re.DOTALL
    )
    modes = []
    code = code.replace(
        "        logits,",
        "        modes.append({part.training for part in self.modules()})\n        logits,",
    )
    names = {"modes": modes}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(code, "own_mechanism.md", "exec"), names)
    assert modes
    assert all(mode == {True} for mode in modes)
    assert not [one for one in caught if "eval mode" in str(one.message)]
    network = names["model"].network
    with torch.no_grad():
        torch.testing.assert_close(
            names["vectors"], network.cell_vectors(names["batch"]), rtol=0, atol=0
        )
    assert not any(part.training for part in network.modules())
