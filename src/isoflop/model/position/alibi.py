"""Linear biases by distance."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import ClassVar, Literal

import torch
from torch import Tensor

from isoflop.model.relation import Relation, Tensors, View
from isoflop.model.slots import Position, Setting
from isoflop.model.term import Meeting, Term


class ALiBi(Position, kind="alibi"):
    """A penalty on the scores that grows linearly with the distance, with another slope for each head.

    `slopes`: `paper` interpolates where the number of heads is no power of two, as the authors do; `geometric` is
    2^(-8h/H) for any H. They agree for powers of two.

    Formula: score_ij -= m_h |i - j|, m_h = 2^(-8h/H), h = 1..H
    Paper: Press, Smith & Lewis 2022, arXiv 2108.12409
    """

    stages: ClassVar[frozenset[str]] = frozenset({"add"})
    slopes: Literal["paper", "geometric"] = "paper"

    def term(self, setting: Setting, heads: int, head_width: int) -> Term:
        return LinearBias(paper_slopes(heads) if self.slopes == "paper" else geometric_slopes(heads))


class LinearBias(Term):
    """See `ALiBi`."""

    stages: frozenset[str] = frozenset({"add"})

    def __init__(self, slopes: list[float]) -> None:
        super().__init__()
        self.slopes = tuple(slopes)

    @property
    def key(self) -> Hashable:
        return ("alibi", self.slopes)

    def add(self, meeting: Meeting) -> Relation:
        slopes_H11 = torch.tensor(self.slopes, device=meeting.q_BHTE.device).view(-1, 1, 1)
        return Relation(_linear, shared=(slopes_H11,), relative=True)


def _linear(rows: Tensors, columns: Tensors, shared: Tensors, view: View) -> Tensor:
    (slopes_H11,) = shared
    return -slopes_H11 * view.offsets.abs()


def geometric_slopes(heads: int) -> list[float]:
    """2^(-8h/H) for h = 1..H."""
    return [2 ** (-8 * (head + 1) / heads) for head in range(heads)]


def paper_slopes(heads: int) -> list[float]:
    """The authors' rule: geometric for the next lower power of two, the rest from every other slope of the next higher one."""
    lower = 2 ** math.floor(math.log2(heads))
    return geometric_slopes(lower) + geometric_slopes(2 * lower)[0::2][: heads - lower]
