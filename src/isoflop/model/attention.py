"""Attention sublayers: projections and heads. What happens between queries and keys is `kernel.py`; terms are handed in."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from isoflop.model.linear import Linear
from isoflop.model.slots import Attend, Attention, Heads, Norm, Prior, Setting
from isoflop.model.term import Scoring
from isoflop.spec import OneOrMany, SpecError

Size = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class MultiHead(Attention, kind="multi_head"):
    """Scaled dot-product attention in several heads: MHA, GQA (fewer key/value heads), MQA (one).

    Fields: `kv_heads` absent = one for each query head. `head_width` absent = width / heads. `window`: keys a query
    sees, itself included; absent = all. `qk_norm`: a norm over each head of q and k. `softcap`: c in c tanh(s / c) on
    the scores. `scale`: factor on q kᵀ; absent = 1 / sqrt(head width). `dropout`: on the weights. `priors`: which keys are
    preferred before q and k are looked at.

    Formula: o = softmax(scale q kᵀ + bias) v per head, heads concatenated, times W_o
    Paper: Vaswani et al. 2017, arXiv 1706.03762; Shazeer 2019 (MQA), 1911.02150; Ainslie et al. 2023 (GQA), 2305.13245
    """

    heads: Size = 4
    kv_heads: Size | None = None
    head_width: Size | None = None
    window: Size | None = None
    qk_norm: Norm | None = None
    softcap: Positive | None = None
    scale: Positive | None = None
    bias: bool = False
    dropout: Probability = 0.0
    priors: OneOrMany[Prior] = ()

    def shape(self, width: int) -> Heads:
        return Heads(self.heads, self.kv_heads or self.heads, self.head_width or width // self.heads)

    def check(self, setting: Setting) -> None:
        width = setting.architecture.width
        if self.head_width is None and width % self.heads:
            raise SpecError.at(
                "heads",
                f"must divide width {width}, came {self.heads}; nearest that do: {_divisors_near(width, self.heads)}",
            )
        if self.kv_heads is not None and self.heads % self.kv_heads:
            near = _divisors_near(self.heads, self.kv_heads)
            raise SpecError.at(
                "kv_heads", f"must divide heads {self.heads}, came {self.kv_heads}; nearest that do: {near}"
            )
        for index, prior in enumerate(self.priors):
            try:
                prior.check(setting)
            except SpecError as error:
                raise error.under("priors", *([index] if len(self.priors) > 1 else [])) from None

    def build(self, setting: Setting) -> nn.Module:
        width = setting.architecture.width
        shape = self.shape(width)
        inside = [position for position in setting.block.position if position.stages - {"embed"}]
        terms = [position.term(setting, shape.query, shape.width) for position in inside]
        priors = [prior.term(setting, shape.query, shape.width) for prior in self.priors]
        scoring = Scoring(
            scale=self.scale or shape.width**-0.5,
            causal=setting.causal,
            window=self.window,
            softcap=self.softcap,
            dropout=self.dropout,
            terms=(*terms, *priors),
        )
        return MultiHeadAttention(width, shape, scoring, len(priors), self.qk_norm, self.bias)


class MultiHeadAttention(nn.Module):
    """See `MultiHead`. q, k and v are one stacked matrix; query head h reads key/value head h // (H / G)."""

    def __init__(
        self, width: int, shape: Heads, scoring: Scoring, priors: int, qk_norm: Norm | None, bias: bool
    ) -> None:
        super().__init__()
        self.shape, self.scoring = shape, scoring
        rows_q, rows_kv = shape.query * shape.width, shape.key_value * shape.width
        self.qkv = Linear(width, {"q": rows_q, "k": rows_kv, "v": rows_kv}, bias)
        self.q_norm = qk_norm.build(shape.width) if qk_norm else nn.Identity()
        self.k_norm = qk_norm.build(shape.width) if qk_norm else nn.Identity()
        # Apart, so that the name of a prior's parameter does not depend on how many positions there are.
        positions = len(scoring.terms) - priors
        self.terms, self.priors = nn.ModuleList(scoring.terms[:positions]), nn.ModuleList(scoring.terms[positions:])
        self.o = Linear(rows_q, {"o": width}, bias)

    def forward(self, x_BTD: Tensor, attend: Attend) -> Tensor:
        heads, kv_heads, head_width = self.shape
        qkv_BNTE = self.qkv(x_BTD).unflatten(-1, (heads + 2 * kv_heads, head_width)).transpose(1, 2)
        q_BHTE, k_BGTE, v_BGTE = qkv_BNTE.split([heads, kv_heads, kv_heads], dim=1)
        o_BHTE = attend(self.q_norm(q_BHTE), self.k_norm(k_BGTE), v_BGTE, self.scoring)
        return self.o(o_BHTE.transpose(1, 2).flatten(2))


def _divisors_near(whole: int, wanted: int) -> str:
    small = [n for n in range(1, math.isqrt(whole) + 1) if whole % n == 0]
    divisors = sorted({*small, *(whole // n for n in small)})
    below = [n for n in divisors if n < wanted][-1:]
    above = [n for n in divisors if n > wanted][:1]
    return " and ".join(map(str, below + above))
