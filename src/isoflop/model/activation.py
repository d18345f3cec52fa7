"""Elementwise functions."""

from __future__ import annotations

from typing import Literal

from torch import nn

from isoflop.model.slots import Activation


class ReLU(Activation, kind="relu"):
    """Rectified linear unit.

    Formula: max(x, 0)
    Paper: Nair & Hinton 2010
    """

    def build(self) -> nn.Module:
        return nn.ReLU()


class SiLU(Activation, kind="silu"):
    """Swish with β = 1, also called SiLU.

    Formula: x σ(x)
    Paper: Ramachandran, Zoph & Le 2017, arXiv 1710.05941
    """

    def build(self) -> nn.Module:
        return nn.SiLU()


class GELU(Activation, kind="gelu"):
    """Gaussian error linear unit; the exact form and the tanh approximation differ by up to 4.7e-4.

    Formula: x Φ(x), or x/2 (1 + tanh(sqrt(2/π) (x + 0.044715 x³)))
    Paper: Hendrycks & Gimpel 2016, arXiv 1606.08415
    """

    form: Literal["exact", "tanh"] = "exact"

    def build(self) -> nn.Module:
        return nn.GELU(approximate="none" if self.form == "exact" else "tanh")


class Sigmoid(Activation, kind="sigmoid"):
    """The logistic function; as the activation of a gated feed-forward it gives the original GLU.

    Formula: σ(x) = 1 / (1 + exp(-x))
    Paper: Dauphin et al. 2017, arXiv 1612.08083
    """

    def build(self) -> nn.Module:
        return nn.Sigmoid()


class Identity(Activation, kind="identity"):
    """No function; as the activation of a gated feed-forward it gives the bilinear form.

    Formula: x
    Paper: Shazeer 2020, arXiv 2002.05202
    """

    def build(self) -> nn.Module:
        return nn.Identity()
