"""Some of the heads of an attention: those that a prior acts on."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isoflop.model.relation import Relation, combined, given
from isoflop.model.term import Meeting


class Chosen(NamedTuple):
    """The heads that a prior acts on.

    Attributes:
        heads: how many there are.
        numbers: those that are chosen, in order.
        width: of each.
    """

    heads: int
    numbers: tuple[int, ...]
    width: int

    @property
    def all(self) -> bool:
        """Whether no head is left out."""
        return len(self.numbers) == self.heads

    def spread(self, x_BNT1: Tensor) -> Tensor:
        """Numbers of the chosen heads (or one for all) as numbers of every head; what the others get is not read."""
        if x_BNT1.shape[1] == 1 or self.all:
            return x_BNT1
        index = [self.numbers.index(head) if head in self.numbers else 0 for head in range(self.heads)]
        return x_BNT1.index_select(1, torch.tensor(index, device=x_BNT1.device))

    def of(self, x_BHTE: Tensor) -> Tensor:
        """The chosen heads of all."""
        return x_BHTE if self.all else x_BHTE.index_select(1, torch.tensor(self.numbers, device=x_BHTE.device))

    def mask(self, meeting: Meeting) -> Tensor:
        """Whether a head is chosen, (H,)."""
        return torch.tensor([head in self.numbers for head in range(self.heads)], device=meeting.q_BHTE.device)

    def spare(self, share: Tensor, meeting: Meeting) -> Tensor:
        """A share on the chosen heads, 0 on the rest."""
        return share if self.all else torch.where(self.mask(meeting).view(-1, 1, 1), share, 0.0)

    def only(self, relation: Relation, otherwise: float, meeting: Meeting) -> Relation:
        """The relation on the chosen heads, another number on the rest."""
        if self.all:
            return relation
        return combined(
            lambda value, chosen: torch.where(chosen, value, otherwise),
            relation,
            given(self.mask(meeting).view(1, -1, 1, 1)),
        )
