"""`scperformer analyze`: analyse the attention of a trained model."""

from dataclasses import dataclass
from pathlib import Path

from scperformer.config.options import ONE_OR_MORE, SEED, THREADS, ModelOptions, choice, fixed, option

USAGE = "analyze spectrum|approximation FILE"
EXAMPLES = """\
  scperformer analyze spectrum sample.h5ad model_path=my_model          # -> sample.spectrum/
  scperformer analyze spectrum sample.h5ad cells=20 max_tokens=1024 output=spectrum
  scperformer analyze approximation sample.h5ad model_path=my_model"""


@dataclass(kw_only=True)
class AnalyzeConfig(ModelOptions):
    """Analyse the attention of a trained model on real cells."""

    takes_one = True
    model_path: str | None = None  # null: $SCPERFORMER_MODEL, else the packaged model pbmc3k
    analysis: str = fixed(choice("spectrum", "approximation"))  # the first plain word
    output: str | None = None  # a folder; null: INPUT.spectrum or INPUT.approximation beside the input
    cells: int = option(8, ONE_OR_MORE)  # number of cells, a random sample of those that express any gene
    max_tokens: int = option(2048, (lambda num: num >= 2, "2 or more"))  # maximum number of tokens of a cell
    seed: int = option(0, SEED)  # seed of the samples
    threads: int = option(1, THREADS)  # CPU threads of torch


def run(cfg: AnalyzeConfig) -> Path:
    """Write the folder of an analysis, by default INPUT.ANALYSIS beside the input, and return its path."""
    from scperformer.lab.analyze import run_analyze

    return run_analyze(cfg)
