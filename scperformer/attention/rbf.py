"""Linear attention with Gaussian features of the distance to anchors."""

from dataclasses import dataclass

import torch
from torch import nn

from scperformer.attention.additive import Additive
from scperformer.attention.base import Sizes
from scperformer.config import require, require_choice


@dataclass(kw_only=True)
class RbfOptions:
    """Options of `attention=rbf`."""

    num_anchors: int = 64  # per head
    sigma: float | None = None  # width of the features; null: head_dim**0.25, as softmax's kernel has
    init: str = "sample"  # anchors: sample, fixed keys of training cells; learned, trained from there
    causal: bool = False  # a token sees only itself and those before it

    def __post_init__(self) -> None:
        require(self.num_anchors >= 1, "attention.num_anchors", self.num_anchors, "1 or more")
        if self.sigma is not None:
            require(self.sigma > 0, "attention.sigma", self.sigma, "a number above 0, or null")
        require_choice("attention.init", self.init, ("sample", "learned"))


class Rbf(Additive):
    """Linear attention with phi_m(x) = exp(-|x - a_m|^2 / (2 sigma^2)) for anchors a_1 .. a_M of each head.

    Softmax attention weights keys by exp(q k / sqrt(E)), that is by exp(-|q - k|^2 / (2 sqrt(E))) and a factor for
    the length of the key: a Gaussian with sigma = E^(1/4), the default.

    Source
    ------
    The linear form: Katharopoulos et al. 2020, arXiv 2006.16236. Anchors as landmarks among the keys: Xiong et al.
    2021, arXiv 2102.03902.
    """

    Options = RbfOptions
    causal = True
    starts_from_keys = True
    size_option = "num_anchors"
    anchors_HME: torch.Tensor

    def __init__(self, sizes: Sizes, options: RbfOptions, generator: torch.Generator):
        super().__init__(sizes, options, generator)
        self.variance = sizes.head_dim**0.5 if options.sigma is None else options.sigma**2
        anchors_HME = torch.randn(sizes.num_heads, options.num_anchors, sizes.head_dim, generator=generator)
        if options.init == "learned":
            self.anchors_HME = nn.Parameter(anchors_HME)
        else:
            self.register_buffer("anchors_HME", anchors_HME)

    @torch.no_grad()
    def start(self, k_BHLE: torch.Tensor, keep_BL: torch.Tensor, generator: torch.Generator) -> None:
        """Draw the anchors of each head from its keys of real tokens; if there are too few, repeat them."""
        k_HTE = k_BHLE.transpose(1, 2)[keep_BL].transpose(0, 1)  # T real tokens
        num_heads, num_anchors, _ = self.anchors_HME.shape
        num_tokens = k_HTE.shape[1]
        for head in range(num_heads):
            drawn = torch.randperm(num_tokens, generator=generator)
            index = drawn.repeat(-(-num_anchors // num_tokens))[:num_anchors]
            self.anchors_HME[head] = k_HTE[head, index.to(k_HTE.device)].to(self.anchors_HME)

    def features(self, x_BHLE: torch.Tensor, queries: bool) -> torch.Tensor:
        anchors_HME = self.anchors_HME.to(x_BHLE.dtype)
        # -|x - a|^2 / 2 without the tensor of all differences
        log_phi_BHLM = x_BHLE @ (anchors_HME / self.variance).transpose(1, 2)
        log_phi_BHLM.sub_(anchors_HME.square().sum(-1).unsqueeze(1) / (2 * self.variance))
        if queries:
            return log_phi_BHLM  # |q|^2 is the same for every anchor
        return log_phi_BHLM.sub_(x_BHLE.square().sum(-1, keepdim=True) / (2 * self.variance))
