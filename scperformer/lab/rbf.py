"""Linear attention with Gaussian features around anchors, which are keys of training cells."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scperformer.attention.base import AttentionOptions, Sizes
from scperformer.attention.linear_attention import LOG2_E, Exponents, LinearAttention
from scperformer.config.options import ABOVE_ZERO, ONE_OR_MORE, choice, option


class Rbf(LinearAttention):
    """Linear attention with phi_m(x) = exp(-|x - a_m|^2 / (2 sigma^2)) for anchors a_1 .. a_M of each head.

    Softmax attention weights keys by exp(q k / sqrt(E)). This is exp(-|q - k|^2 / (2 sqrt(E))) times a factor that
    depends on the length of the key: a Gaussian with sigma = E^(1/4), the default.

    Source: Katharopoulos et al. 2020, arXiv 2006.16236; anchors as landmarks among the keys: Xiong et al. 2021, arXiv
    2102.03902.
    """

    @dataclass(kw_only=True)
    class Options(AttentionOptions):
        num_anchors: int = option(64, rule=ONE_OR_MORE)  # per head
        # width of the features; null: head_dim**0.25
        sigma: float | None = option(None, rule=ABOVE_ZERO)
        # fixed keys of training cells, or trained from these
        init: str = choice("sample", "learned")
        causal: bool = False  # tokens attend only to themselves and earlier tokens

    causal = True
    starts_from_keys = True
    size_option = "num_anchors"
    anchors_HME: Tensor

    def __init__(self, sizes: Sizes, options: Options, generator: torch.Generator):
        super().__init__(sizes, options, generator)
        self.variance = sizes.head_dim**0.5 if options.sigma is None else options.sigma**2
        anchors_HME = torch.randn(
            sizes.num_heads, options.num_anchors, sizes.head_dim, generator=generator
        )
        if options.init == "learned":
            self.anchors_HME = nn.Parameter(anchors_HME)
        else:
            self.register_buffer("anchors_HME", anchors_HME)

    @property
    def num_features(self) -> int:
        return self.sizes.num_heads * self.options.num_anchors

    @torch.no_grad()
    def start(self, k_BHLE: Tensor, keep_BL: Tensor, generator: torch.Generator) -> None:
        """Draw the anchors of each head from the keys of real tokens, repeating them if there are too few."""
        k_HTE = k_BHLE.transpose(1, 2)[keep_BL].transpose(0, 1)  # T real tokens
        num_anchors = self.anchors_HME.shape[1]
        num_tokens = k_HTE.shape[1]
        for anchors_ME, k_TE in zip(self.anchors_HME, k_HTE, strict=True):
            drawn = torch.randperm(num_tokens, generator=generator)
            index = drawn.repeat(-(-num_anchors // num_tokens))[:num_anchors]
            anchors_ME.copy_(k_TE[index.to(k_TE.device)])

    @property
    def can_fuse(self) -> bool:
        # the kernels give anchors no gradient
        return not (self.anchors_HME.requires_grad and torch.is_grad_enabled())

    def exponents(self) -> Exponents:
        directions_HME = self.anchors_HME / self.variance
        bias_HM = self.anchors_HME.square().sum(-1) / (-2 * self.variance)
        return Exponents(directions_HME, 1 / self.variance, bias_HM)

    def features(self, x_BHLE: Tensor, queries: bool) -> Tensor:
        anchors_HME = self.anchors_HME.to(x_BHLE.dtype)
        factor = LOG2_E / self.variance
        # -|x - a|^2 / 2, without a tensor of all differences
        log_phi_BHLM = x_BHLE @ (anchors_HME * factor).transpose(1, 2)
        log_phi_BHLM.sub_(anchors_HME.square().sum(-1).unsqueeze(1) * (factor / 2))
        if queries:
            return log_phi_BHLM  # |q|^2 is the same for every anchor
        return log_phi_BHLM.sub_(x_BHLE.square().sum(-1, keepdim=True) * (factor / 2))
