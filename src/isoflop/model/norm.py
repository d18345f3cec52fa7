"""Normalisations over the last axis."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from isoflop.model.linear import Roles
from isoflop.model.slots import Norm

Epsilon = Annotated[float, Field(gt=0)]


class Layer(Norm, kind="layer"):
    """LayerNorm: zero mean and unit variance, then a learned gain and bias.

    Formula: y = g (x - mean(x)) / sqrt(var(x) + eps) + b
    Paper: Ba, Kiros & Hinton 2016, arXiv 1607.06450
    """

    eps: Epsilon = 1e-5
    bias: bool = True

    def build(self, width: int) -> nn.Module:
        return LayerNorm(width, self.eps, self.bias)


class RMS(Norm, kind="rms"):
    """RMSNorm: unit root mean square, then a learned gain; the mean is left alone.

    `cast` matters in 16 bit: the statistics are fp32, and the result returns to 16 bit before or after the gain.

    Formula: y = g x / sqrt(mean(x²) + eps)
    Paper: Zhang & Sennrich 2019, arXiv 1910.07467
    """

    eps: Epsilon = 1e-6
    cast: Literal["after_gain", "before_gain"] = "after_gain"

    def build(self, width: int) -> nn.Module:
        return RMSNorm(width, self.eps, self.cast)


class LayerNorm(nn.Module):
    """See `Layer`."""

    def __init__(self, width: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.eps = eps
        self.roles: Roles = {"gain": "gain", "bias": "bias"}

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.gain.shape, self.gain, self.bias, self.eps)


class RMSNorm(nn.Module):
    """See `RMS`."""

    def __init__(self, width: int, eps: float, cast: str) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(width))
        self.eps = eps
        self.gain_after_cast = cast == "before_gain"
        self.roles: Roles = {"gain": "gain"}

    def forward(self, x: Tensor) -> Tensor:
        if self.gain_after_cast:
            return F.rms_norm(x, self.gain.shape, eps=self.eps) * self.gain
        return F.rms_norm(x, self.gain.shape, self.gain, self.eps)
