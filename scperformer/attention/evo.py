"""Window attention whose scores are convolved several times."""

from dataclasses import dataclass

import torch

from scperformer.attention.base import Sizes
from scperformer.attention.window import Window, WindowOptions
from scperformer.config import require


@dataclass(kw_only=True)
class EvoOptions(WindowOptions):
    """Options of `attention=evo`."""

    num_convolutions: int = 2  # N: learned kernels per head; 1 equals `window`

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.num_convolutions >= 1, "attention.num_convolutions", self.num_convolutions, "1 or more")


class Evo(Window):
    """As `window`, but scores are convolved N times; entries without a real key are set to 0 before each.

    Source
    ------
    Of this project: see `window`.
    """

    Options = EvoOptions

    def __init__(self, sizes: Sizes, options: EvoOptions, generator: torch.Generator):
        super().__init__(sizes, options, generator, num_convolutions=options.num_convolutions)
