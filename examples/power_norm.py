"""A norm of one's own: the file that `plugins = ["power_norm"]` names."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from isoflop.model.slots import Norm

Positive = Annotated[float, Field(gt=0)]


class Power(Norm, kind="power"):
    """Divide by the root of the mean p-th power, then a learned gain; p = 2 is RMSNorm.

    Formula: y = g x / (mean(|x|^p) + eps)^(1/p)
    """

    power: Positive = 1.0
    eps: Positive = 1e-6

    def build(self, width: int) -> nn.Module:
        return PowerNorm(width, self.power, self.eps)


class PowerNorm(nn.Module):
    """See `Power`."""

    def __init__(self, width: int, power: float, eps: float) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.empty(width))
        self.power, self.eps = power, eps
        self.roles = {"gain": "gain"}

    def forward(self, x: Tensor) -> Tensor:
        size = x.float().abs().pow(self.power).mean(-1, keepdim=True) + self.eps  # a mean in 16 bit loses digits
        return x * size.pow(-1 / self.power).to(x.dtype) * self.gain
