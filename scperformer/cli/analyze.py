"""`scperformer analyze`: analyse the attention of a model, or check a mechanism."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scperformer.base.errors import InputError
from scperformer.config.options import ONE_OR_MORE, SEED, THREADS, ModelOptions, Options, choice, fixed, option

USAGE = "analyze spectrum|approximation|contract"
EXAMPLES = """\
  scperformer analyze spectrum sample.h5ad model_path=my_model          # -> sample.spectrum/
  scperformer analyze spectrum sample.h5ad cells=20 max_tokens=1024 output=spectrum
  scperformer analyze approximation sample.h5ad model_path=my_model
  scperformer analyze contract attention=favor attention.causal=true    # your own: --plugin FILE before analyze"""
CONTRACT = "contract"


@dataclass(kw_only=True)
class AnalyzeConfig(ModelOptions):
    """Analyse the attention of a trained model on real cells, or check that a mechanism keeps its contract."""

    takes_one = True
    model_path: str | None = None  # null: $SCPERFORMER_MODEL, else the packaged model pbmc3k
    analysis: str = fixed(choice("spectrum", "approximation", CONTRACT))  # the first plain word
    attention: dict[str, Any] = field(default_factory=dict)  # the mechanism of `contract`, with its options
    output: str | None = None  # a folder; null: INPUT.spectrum or INPUT.approximation beside the input
    cells: int = option(8, ONE_OR_MORE)  # number of cells, a random sample of those that express any gene
    max_tokens: int = option(2048, (lambda num: num >= 2, "2 or more"))  # maximum number of tokens of a cell
    seed: int = option(0, SEED)  # seed of the samples
    threads: int = option(1, THREADS)  # CPU threads of torch

    def __post_init__(self) -> None:
        if self.analysis != CONTRACT:
            super().__post_init__()
        else:
            Options.__post_init__(self)  # without the checks of FileOptions: the contract needs no cells
        if bool(self.attention) != (self.analysis == CONTRACT) or (self.attention and self.inputs):
            found = f"analyze {self.analysis} {' '.join(self.inputs)}".rstrip()
            found += f" attention={self.attention['name']}" if self.attention else " without attention=NAME"
            expected = "'analyze contract' with attention=NAME and no file, or another analysis with a file alone"
            raise InputError("analysis-arguments", found, expected, "'scperformer analyze --help' shows examples")


def run(cfg: AnalyzeConfig) -> Path | None:
    """Write the folder of an analysis, and return its path; for `contract`, print a line for each promised property."""
    if cfg.analysis != CONTRACT:
        from scperformer.token_attention.analyze import run_analyze

        return run_analyze(cfg)
    from scperformer.model.inference import torch_state_kept
    from scperformer.token_attention.contract import check_contract

    num_broken = 0
    with torch_state_kept(cfg.threads):
        for name, holds, figure in check_contract(cfg.attention):
            print(f"{'pass' if holds else 'FAIL'}  {name}: {figure}", flush=True)
            num_broken += not holds
    if num_broken:
        remedy = "correct the mechanism, or what its class attributes claim: see docs/own_mechanism.md"
        raise InputError(
            "contract-broken", f"attention={cfg.attention['name']} breaks {num_broken} of them", "all to pass", remedy
        )
    return None
