"""Feed-forward sublayers: the plain one and the gated family."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator
from torch import Tensor, nn

from isoflop.model.linear import Linear
from isoflop.model.slots import Activation, FeedForward
from isoflop.spec import SpecError

Size = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class Plain(FeedForward, kind="plain"):
    """Two matrices with an activation between them. `hidden` is 4 width when absent.

    Formula: y = act(x W_inᵀ + b_in) W_outᵀ + b_out
    Paper: Vaswani et al. 2017, arXiv 1706.03762
    """

    activation: Activation = "relu"  # type: ignore[assignment]  # a name is parsed into its kind
    hidden: Size | None = None
    bias: bool = False
    dropout: Probability = 0.0

    def size(self, width: int) -> int:
        """The hidden width in a model of this width."""
        return self.hidden or 4 * width

    def build(self, width: int) -> nn.Module:
        return PlainFeedForward(width, self.size(width), self.activation.build(), self.bias, self.dropout)


class GLU(FeedForward, kind="glu"):
    """The gated family: sigmoid gives GLU, relu ReGLU, silu SwiGLU, gelu GeGLU, identity the bilinear form.

    When `hidden` is absent it is 8/3 width, rounded up to a multiple of `multiple`: the parameters of a plain
    feed-forward of 4 width.

    Formula: y = (act(x W_gateᵀ + b_gate) * (x W_inᵀ + b_in)) W_outᵀ + b_out
    Paper: Shazeer 2020, arXiv 2002.05202
    """

    activation: Activation = "silu"  # type: ignore[assignment]
    hidden: Size | None = None
    multiple: Size = 1
    bias: bool = False
    dropout: Probability = 0.0

    @model_validator(mode="after")
    def _multiple_is_used(self) -> Self:
        if self.hidden is not None and self.multiple != 1:
            raise SpecError.at(
                "multiple", "rounds the 8/3 rule and does nothing when hidden is given; remove one of them"
            )
        return self

    def size(self, width: int) -> int:
        """The hidden width in a model of this width."""
        return self.hidden or -(-8 * width // (3 * self.multiple)) * self.multiple

    def build(self, width: int) -> nn.Module:
        return GatedFeedForward(width, self.size(width), self.activation.build(), self.bias, self.dropout)


class PlainFeedForward(nn.Module):
    """See `Plain`."""

    def __init__(self, width: int, hidden: int, activation: nn.Module, bias: bool, dropout: float) -> None:
        super().__init__()
        self.up = Linear(width, {"ffn_in": hidden}, bias)
        self.activation = activation
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.down = Linear(hidden, {"ffn_out": width}, bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.down(self.dropout(self.activation(self.up(x_BTD))))


class GatedFeedForward(nn.Module):
    """See `GLU`. The gate stands first in the stacked matrix."""

    def __init__(self, width: int, hidden: int, activation: nn.Module, bias: bool, dropout: float) -> None:
        super().__init__()
        self.up = Linear(width, {"ffn_gate": hidden, "ffn_in": hidden}, bias)
        self.activation = activation
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.down = Linear(hidden, {"ffn_out": width}, bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate_BTF, value_BTF = self.up(x_BTD).chunk(2, dim=-1)
        return self.down(self.dropout(self.activation(gate_BTF) * value_BTF))
