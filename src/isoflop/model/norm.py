"""Normalisations over the last axis."""

from __future__ import annotations

from typing import Annotated, Any, Literal

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
    `unit_offset` learns w in g = 1 + w, w = 0 at first, as Gemma does: 16 bit then hold small changes of a gain near 1, which
    is formed in fp32.

    Formula: y = g x / sqrt(mean(x²) + eps)
    Paper: Zhang & Sennrich 2019, arXiv 1910.07467
    """

    eps: Epsilon = 1e-6
    cast: Literal["after_gain", "before_gain"] = "after_gain"
    unit_offset: bool = False

    def build(self, width: int) -> nn.Module:
        make = OffsetRMSNorm if self.unit_offset else RMSNorm
        return make(width, self.eps, self.cast)


class Nothing(Norm, kind="none"):
    """No normalisation: what comes in goes out.

    Formula: y = x
    """

    def build(self, width: int) -> nn.Module:
        return nn.Identity()


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
        # In 16 bit the lean form would round before the gain, which `cast` says it does not.
        if x.device.type == "cpu" and x.dtype.itemsize >= 4 and not torch.compiler.is_compiling():
            return LeanRMSNorm.apply(x, self.gain, self.eps)
        return F.rms_norm(x, self.gain.shape, self.gain, self.eps)


class OffsetRMSNorm(RMSNorm):
    """See `RMS`: the gain that is held is w in 1 + w."""

    def __init__(self, width: int, eps: float, cast: str) -> None:
        super().__init__(width, eps, cast)
        self.initial = {"gain": (0.0,)}

    def forward(self, x: Tensor) -> Tensor:
        wide = torch.promote_types(x.dtype, torch.float32)
        gain = 1 + self.gain.to(wide)
        if self.gain_after_cast:
            return (F.rms_norm(x, gain.shape, eps=self.eps) * gain).to(x.dtype)
        return F.rms_norm(x.to(wide), gain.shape, gain, self.eps).to(x.dtype)


class LeanRMSNorm(torch.autograd.Function):
    """RMSNorm in eager mode on a CPU, where torch's own is a chain of passes over memory.

    Forward and backward touch the activation as few times as they can: 1.2 to 4 times as fast as `F.rms_norm`
    (`benchmarks/rms_norm.py`). A compiler fuses the chain itself, and a GPU has a kernel for it.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, gain, inverse)
        ctx.eps = eps
        return (x * inverse).mul_(gain)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, inverse = ctx.saved_tensors
        (dy,) = grad_outputs
        if torch.is_grad_enabled():  # a second derivative is wanted: differentiate the plain formula
            y = F.rms_norm(x, gain.shape, gain, ctx.eps)
            return *torch.autograd.grad(y, (x, gain), dy, create_graph=True), None
        width = x.shape[-1]
        normed = x * inverse
        product = dy * normed
        dgain = product.reshape(-1, width).sum(0)
        # dx = inverse (g dy - normed mean(g dy normed))
        mean = torch.mv(product.reshape(-1, width), gain).div_(-width).view(*x.shape[:-1], 1)
        dx = torch.mul(dy, gain, out=product).addcmul_(normed, mean).mul_(inverse)
        return dx, dgain, None
