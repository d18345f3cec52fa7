"""Heads: from the stream to logits. The output matrix is the head's own or the embedding's table, see `tie_head`.

Legend: D width of the stream, E width of the table of tokens (D unless it is factorised), V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from isoflop.model.linear import Linear, Roles, linear
from isoflop.model.slots import Activation, Head, Norm

if TYPE_CHECKING:
    from isoflop.model.architecture import Architecture


@dataclass(frozen=True)
class Output:
    """All that logits are made of: what generation computes them from, and training its fused loss.

    Formula: z = W h + b, then c tanh(z / c) where there is a softcap c.
    """

    hidden: Tensor
    weight_VE: Tensor
    bias_V: Tensor | None = None
    softcap: float | None = None

    def logits(self) -> Tensor:
        """(..., V), in the type of the hidden vectors; a softcap is taken in fp32."""
        z = linear(self.hidden, self.weight_VE, self.bias_V)
        if self.softcap is None:
            return z
        wide = z.to(torch.promote_types(z.dtype, torch.float32))
        return (self.softcap * torch.tanh(wide / self.softcap)).to(z.dtype)


class LinearHead(Head, kind="linear"):
    """One matrix. Where embeddings are factorised, a map to the width of their table stands before it.

    `bias`: one number for each token. `softcap`: bound c of c tanh(z / c) on the logits. `scale`: factor on the stream, which
    without a bias and a softcap is one on the logits.

    Formula: z = W (scale h) + b, then c tanh(z / c)
    Paper: Vaswani et al. 2017, arXiv 1706.03762; Gemma Team 2024 (softcap), 2408.00118
    """

    def build(self, architecture: Architecture) -> nn.Module:
        return TokenHead(self, architecture, architecture.embed.build_reader(architecture.width))


class TransformHead(Head, kind="transform"):
    """A dense layer, an activation and a norm before the matrix, as in encoders that were trained on hidden tokens.

    The dense layer maps to the width of the table of tokens. `dense_bias`: it has a bias. The other fields are those of
    `linear`.

    Formula: z = W (scale N(act(W_d h + b_d))) + b, then c tanh(z / c)
    Paper: Devlin et al. 2019, arXiv 1810.04805
    """

    activation: Activation = "gelu"  # type: ignore[assignment]  # a name is parsed into its kind
    norm: Norm = "layer"  # type: ignore[assignment]
    dense_bias: bool = True

    def build(self, architecture: Architecture) -> nn.Module:
        table = architecture.embed.table_width(architecture.width)
        transform = Transform(
            architecture.width, table, self.activation.build(), self.norm.build(table), self.dense_bias
        )
        return TokenHead(self, architecture, transform)


class TokenHead(nn.Module):
    """The module of every head: what happens before the matrix, the matrix unless it is tied, and what happens after."""

    def __init__(self, spec: Head, architecture: Architecture, before: nn.Module) -> None:
        super().__init__()
        vocab, width = architecture.vocab, architecture.embed.table_width(architecture.width)
        self.before = before
        self.weight = None if architecture.tie_head else nn.Parameter(torch.empty(vocab, width))
        self.bias = nn.Parameter(torch.empty(vocab)) if spec.bias else None
        self.scale, self.softcap = spec.scale, spec.softcap
        self.roles: Roles = {"weight": "head", "bias": "head_bias"}

    def forward(self, features: Tensor, table_VE: Tensor) -> Output:
        hidden = self.before(features)
        if self.scale is not None:
            hidden = hidden * self.scale
        return Output(hidden, table_VE if self.weight is None else self.weight, self.bias, self.softcap)


class Transform(nn.Module):
    """`norm(act(x Wᵀ + b))`."""

    def __init__(self, width: int, width_out: int, activation: nn.Module, norm: nn.Module, bias: bool) -> None:
        super().__init__()
        self.dense = Linear(width, {"head_map": width_out}, bias)
        self.activation, self.norm = activation, norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(x)))
