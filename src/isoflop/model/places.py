"""Where queries and keys stand, and which of them may meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from isoflop.model.relation import View

if TYPE_CHECKING:
    from isoflop.model.term import Scoring


class Part(NamedTuple):
    """A rectangle of pairs by index: queries [q0, q1) and keys [k0, k1)."""

    q0: int
    q1: int
    k0: int
    k1: int

    @property
    def queries(self) -> slice:
        return slice(self.q0, self.q1)

    @property
    def keys(self) -> slice:
        return slice(self.k0, self.k1)


@dataclass(frozen=True)
class Places:
    """Where queries and keys stand.

    Attributes:
        q_positions, k_positions: position ids, (B or 1, T) and (B or 1, S).
        q_documents, k_documents: document ids of the same shapes, or None when all is one document. A query sees only
            keys of its own document.
        consecutive: queries are the keys, and within a document their positions follow each other by one. Then indices
            tell who is in reach, and kernels leave out the rest. Said by whoever made the positions, never guessed from
            shapes.
    """

    q_positions: Tensor
    k_positions: Tensor
    q_documents: Tensor | None = None
    k_documents: Tensor | None = None
    consecutive: bool = False

    @property
    def aligned(self) -> bool:
        """Whether the causal mask is the plain triangle."""
        return self.consecutive and self.q_documents is None

    @property
    def whole(self) -> Part:
        """All pairs."""
        return Part(0, self.q_positions.shape[1], 0, self.k_positions.shape[1])

    def reach(self, scoring: Scoring, q0: int, q1: int) -> Part:
        """The pairs of some queries with all keys that one of them can see; no others can matter to them."""
        part = self.whole
        k0, k1 = part.k0, part.k1
        if self.consecutive:
            k1 = q1 if scoring.causal else k1
            if scoring.window is not None:
                k0, k1 = max(0, q0 - scoring.window + 1), min(k1, q1 + scoring.window - 1)
        return Part(q0, q1, k0, k1)

    def view(self, part: Part) -> View:
        """What relations are told of a part."""
        first = part.k0 - part.q0 if self.consecutive else None
        return View(self.q_positions[:, part.queries], self.k_positions[:, part.keys], first)

    def allowed(self, scoring: Scoring, part: Part | None = None) -> Tensor:
        """The mask of a part (None for all), True where a query may attend: (B or 1, 1, T, S)."""
        part = part or self.whole
        q, k = self.q_positions[:, None, part.queries, None], self.k_positions[:, None, None, part.keys]
        mask = k <= q if scoring.causal else torch.ones_like(k <= q)
        if scoring.window is not None:
            mask = mask & ((q - k).abs() < scoring.window)
        if self.q_documents is not None and self.k_documents is not None:
            same = self.q_documents[:, None, part.queries, None] == self.k_documents[:, None, None, part.keys]
            mask = mask & same
        return mask
