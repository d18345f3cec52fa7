"""The numbers of a prior: declared, learned, or predicted from the query. Whatever they come from, they start as declared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from isoflop.model.chosen import Chosen
from isoflop.model.linear import Roles
from isoflop.model.relation import Relation, given, given_by_query
from isoflop.model.term import Meeting
from isoflop.spec import SpecError

Learned = Literal["fixed", "learned", "per_head"]
"""`fixed` as declared; `learned`: one number for all heads of the prior; `per_head`: one for each."""

Source = Literal["fixed", "learned", "per_head", "predicted"]
"""Besides those, `predicted`: one for each head and query, from the content of the query."""


@dataclass(frozen=True)
class Span:
    """The range of a number, and how any real number is brought into it.

    Attributes:
        into: from the reals into the range.
        back: the inverse of `into` for a number inside of the range.
        holds: whether a number lies inside.
        words: the range in words.
    """

    into: Callable[[Tensor], Tensor]
    back: Callable[[float], float]
    holds: Callable[[float], bool]
    words: str


def above(floor: float) -> Span:
    """floor + softplus(x)."""
    return Span(
        lambda x: F.softplus(x) + floor,
        # log(e^y - 1), written so that no large y overflows.
        lambda value: value - floor + math.log(-math.expm1(floor - value)),
        lambda value: value > floor,
        f"above {floor:g}",
    )


# A clone, since torch's counter of FLOPs fails at a module whose output is a view of its parameter.
ANY = Span(torch.clone, lambda value: value, lambda value: True, "any number")
POSITIVE = above(0.0)
NEGATIVE = Span(lambda x: -POSITIVE.into(x), lambda value: POSITIVE.back(-value), lambda value: value < 0, "below 0")
SHARE = Span(torch.sigmoid, lambda value: math.log(value / (1 - value)), lambda value: 0 < value < 1, "between 0 and 1")


def check_number(name: str, value: float, source: str, span: Span) -> None:
    """Refuse a start that a number which moves cannot have.

    Raises:
        SpecError: at the field of this name.
    """
    if source != "fixed" and not span.holds(value):
        raise SpecError.at(name, f"must be {span.words} where {name}_is is {source!r}, came {value:g}")


def number(values: float | Sequence[float], source: str, span: Span, chosen: Chosen, *, hidden: bool = False) -> Number:
    """The module of a number.

    Args:
        values: what it is or starts at; several are dealt to the chosen heads in turn.
        source: a `Source`.
        span: the range it is kept in when it moves.
        chosen: the heads.
        hidden: predict through a hidden layer, u tanh(W q) + b instead of u q + b.
    """
    dealt = [values] if isinstance(values, int | float) else list(values)
    starts = [dealt[n % len(dealt)] for n in range(len(chosen.numbers))]
    return {"fixed": Fixed, "learned": OneForAll, "per_head": PerHead, "predicted": Predicted}[source](
        starts, span, chosen, hidden
    )


class Number(nn.Module):
    """A number for all heads, each head, or each head and query: meeting -> (B or 1, H or 1, T or 1, 1), in fp32."""

    by_query = False

    def __init__(self, span: Span, chosen: Chosen) -> None:
        super().__init__()
        self.span, self.chosen = span, chosen

    def relation(self, meeting: Meeting) -> Relation:
        """The number, as what it is for every pair."""
        return (given_by_query if self.by_query else given)(self(meeting))


class Fixed(Number):
    """As declared."""

    def __init__(self, starts: list[float], span: Span, chosen: Chosen, hidden: bool) -> None:
        super().__init__(span, chosen)
        self.values = starts[:1] if len(set(starts)) == 1 else starts

    def forward(self, meeting: Meeting) -> Tensor:
        values = torch.tensor(self.values, device=meeting.q_BHTE.device, dtype=torch.float32)
        return self.chosen.spread(values.view(1, -1, 1, 1))


class PerHead(Number):
    """A parameter for each chosen head."""

    def __init__(self, starts: list[float], span: Span, chosen: Chosen, hidden: bool) -> None:
        super().__init__(span, chosen)
        self.raw = nn.Parameter(torch.empty(len(starts)))
        self.roles: Roles = {"raw": "prior"}
        self.initial = {"raw": tuple(map(span.back, starts))}

    def forward(self, meeting: Meeting) -> Tensor:
        return self.chosen.spread(self.span.into(self.raw.float()).view(1, -1, 1, 1))


class OneForAll(PerHead):
    """One parameter."""

    def __init__(self, starts: list[float], span: Span, chosen: Chosen, hidden: bool) -> None:
        super().__init__(starts[:1], span, chosen, hidden)


class Predicted(Number):
    """From the content of the query: u_h q + b_h, or u_h tanh(W_h q) + b_h; b starts at the declared value."""

    by_query = True

    def __init__(self, starts: list[float], span: Span, chosen: Chosen, hidden: bool) -> None:
        super().__init__(span, chosen)
        count, width = len(starts), chosen.width
        self.inner = nn.Parameter(torch.empty(count * width, width)) if hidden else None
        self.outer = nn.Parameter(torch.empty(count, width))
        self.raw = nn.Parameter(torch.empty(count))
        self.roles: Roles = {"inner": "prior_map", "outer": "prior_map", "raw": "prior"}
        self.initial = {"raw": tuple(map(span.back, starts))}

    def forward(self, meeting: Meeting) -> Tensor:
        x_BNTE = self.chosen.of(meeting.content_BHTE).float()
        if self.inner is not None:
            inner_NEE = self.inner.float().unflatten(0, (-1, self.chosen.width))
            x_BNTE = torch.tanh(x_BNTE @ inner_NEE.mT)
        raw_BNT1 = x_BNTE @ self.outer.float().unsqueeze(-1) + self.raw.float().view(-1, 1, 1)
        return self.chosen.spread(self.span.into(raw_BNT1))
