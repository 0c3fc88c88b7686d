"""`scperformer analyze`: analyse the attention of a model, or check a mechanism."""

from scperformer.base.errors import InputError
from scperformer.base.lab import from_lab
from scperformer.config.steps import CONTRACT, AnalyzeConfig

USAGE = "analyze spectrum|approximation|contract"
EXAMPLES = """\
  scperformer analyze spectrum sample.h5ad model_path=my_model          # -> sample.spectrum/
  scperformer analyze spectrum sample.h5ad cells=20 max_tokens=1024 output=spectrum
  scperformer analyze approximation sample.h5ad model_path=my_model
  scperformer analyze contract attention=favor attention.causal=true    # your own: --plugin FILE before analyze"""


def run(cfg: AnalyzeConfig) -> None:
    """Write the folder of an analysis; for `contract`, print a line for each promised property."""
    if cfg.analysis != CONTRACT:
        from_lab("analyze")(cfg)
        return
    from scperformer.model.inference import torch_state_kept

    num_broken = 0
    with torch_state_kept(cfg.threads):
        for name, holds, figure in from_lab("contract")(cfg.attention):
            print(f"{'pass' if holds else 'FAIL'}  {name}: {figure}", flush=True)
            num_broken += not holds
    if num_broken:
        found = f"attention={cfg.attention['name']} breaks {num_broken} of them"
        remedy = (
            "correct the mechanism, or what its class attributes claim: see docs/own_mechanism.md"
        )
        raise InputError("contract-broken", found, "all to pass", remedy)
