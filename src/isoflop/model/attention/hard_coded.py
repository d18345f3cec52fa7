"""Attention without queries and keys: every head weighs values by a density of the distance."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from isoflop.model.attention.declared import Probability, Size, check_divides
from isoflop.model.linear import Linear
from isoflop.model.prior.hard_coded import HardCoded
from isoflop.model.prior.measure import NARROWEST
from isoflop.model.slots import Attend, Attention, Heads, Setting
from isoflop.model.term import Scoring
from isoflop.spec import OneOrMany, SpecError


class HardCodedAttention(Attention, kind="hard_coded"):
    """Attention that does not look: every head weighs values by a Gaussian density around a place beside the query.

    There are neither queries nor keys, so that a block has half the attention's parameters and caches values alone. `offset`: of
    each head, dealt in turn; 0 is the query itself, -1 the token before. `head_width` absent = width / heads. `bias`: on v and o.
    `dropout`: on the weights. Where only some heads are to be so, `multi_head` has a prior `hard_coded`.

    Formula: o_i = sum over the allowed j of exp(-(j - i - offset)² / (2 sigma²)) / (sigma sqrt(2 pi)) v_j per head, heads
        concatenated, times W_o
    Paper: You, Sun & Iyyer 2020, arXiv 2005.00742
    """

    heads: Size = 4
    head_width: Size | None = None
    sigma: Annotated[float, Field(gt=NARROWEST)] = 1.0
    offset: OneOrMany[float] = (0.0,)
    bias: bool = False
    dropout: Probability = 0.0

    @property
    def density(self) -> HardCoded:
        """The prior that does on some heads what this does on all."""
        return HardCoded(heads=None, sigma=self.sigma, offset=self.offset)

    def shape(self, width: int) -> Heads:
        return Heads(self.heads, self.heads, width=0, value=self.head_width or width // self.heads, rotary=0)

    def check(self, setting: Setting) -> None:
        if self.head_width is None:
            check_divides("heads", self.heads, "width", setting.architecture.width)
        self.density.measure.check(setting, self.heads)
        idle = [position.kind for position in setting.block.position if position.stages - {"embed"}]
        if idle:
            raise SpecError(
                f"has neither queries nor keys, between which position {', '.join(map(repr, idle))} would act; "
                "set position = 'none' beside it, or one that is added to the embeddings"
            )

    def build(self, setting: Setting) -> nn.Module:
        shape = self.shape(setting.architecture.width)
        term = self.density.term(setting, shape.query, shape.width)
        scoring = Scoring(1.0, setting.causal, None, None, self.dropout, (term,))
        return ValuesAlone(setting.architecture.width, shape, self.bias, scoring)


class ValuesAlone(nn.Module):
    """See `HardCodedAttention`. Queries and keys are vectors of no components."""

    def __init__(self, width: int, shape: Heads, bias: bool, scoring: Scoring) -> None:
        super().__init__()
        self.shape, self.scoring = shape, scoring
        inner = shape.query * shape.value
        self.v, self.o = Linear(width, {"v": inner}, bias), Linear(inner, {"o": width}, bias)

    def forward(self, x_BTD: Tensor, attend: Attend) -> Tensor:
        v_BHTE = self.v(x_BTD).unflatten(-1, (self.shape.query, self.shape.value)).transpose(1, 2)
        nothing_BHT0 = v_BHTE[..., :0].detach()
        o_BHTE = attend(nothing_BHT0, nothing_BHT0, v_BHTE, self.scoring)
        return self.o(o_BHTE.transpose(1, 2).flatten(2))
