"""Where queries and keys stand, and which of them may meet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from isoflop.model.relation import View, in_batch

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
        consecutive: queries are the keys, but for the first `before` of these, and within a document positions follow
            each other by one. Then indices tell who is in reach, and kernels leave out the rest. Said by whoever made the
            positions, never guessed from shapes.
        before: keys of a memory, which stand in front of the first query.
    """

    q_positions: Tensor
    k_positions: Tensor
    q_documents: Tensor | None = None
    k_documents: Tensor | None = None
    consecutive: bool = False
    before: int = 0

    @property
    def aligned(self) -> bool:
        """Whether indices alone tell who may meet."""
        return self.consecutive and self.q_documents is None

    def after(self, count: int, documents: Tensor | None) -> Places:
        """The same queries, and before their keys the last `count` positions of a text that goes on in them.

        Args:
            documents: of those positions, (B or 1, M) with M at least `count`; None where all is one document.
        """
        past_M = torch.arange(-count, 0, device=self.q_positions.device)
        k_positions = torch.cat([self.q_positions[:, :1] + past_M, self.k_positions], dim=1)
        if documents is None and self.k_documents is None:
            return replace(self, k_positions=k_positions, before=count)
        here = torch.zeros_like(self.k_positions) if self.k_documents is None else self.k_documents
        past = here.new_zeros(len(here), count) if documents is None else documents[:, documents.shape[1] - count :]
        rows = max(len(past), len(here))
        k_documents = torch.cat([past.expand(rows, -1), here.expand(rows, -1)], dim=1)
        return Places(self.q_positions, k_positions, here, k_documents, self.consecutive, count)

    def split(self, count: int, batch: int) -> list[Places]:
        """Those of so many sequences of a batch at a time."""
        q_documents, k_documents = (
            [None] * -(-batch // count) if documents is None else in_batch(documents, count, batch)
            for documents in (self.q_documents, self.k_documents)
        )
        q_positions, k_positions = (in_batch(x, count, batch) for x in (self.q_positions, self.k_positions))
        pieces = zip(q_positions, k_positions, q_documents, k_documents, strict=True)
        return [Places(*piece, self.consecutive, self.before) for piece in pieces]

    @property
    def whole(self) -> Part:
        """All pairs."""
        return Part(0, self.q_positions.shape[1], 0, self.k_positions.shape[1])

    def reach(self, scoring: Scoring, q0: int, q1: int) -> Part:
        """The pairs of some queries with all keys that one of them can see; no others can matter to them."""
        part = self.whole
        k0, k1 = part.k0, part.k1
        if self.consecutive:
            first, last = q0 + self.before, q1 + self.before
            k1 = last if scoring.causal else k1
            if scoring.window is not None:
                k0, k1 = max(0, first - scoring.window + 1), min(k1, last + scoring.window - 1)
        return Part(q0, q1, k0, k1)

    def span(self, scoring: Scoring) -> tuple[int, int]:
        """The lowest and the highest offset of a key that a query may see; where positions are free, of any key."""
        q, k = self.q_positions, self.k_positions
        lowest, highest = 1 - k.shape[1], k.shape[1] - 1
        if not self.consecutive:
            lowest, highest = int(k.min() - q.max()), int(k.max() - q.min())
        if scoring.window is not None:
            lowest, highest = max(lowest, 1 - scoring.window), min(highest, scoring.window - 1)
        highest = min(highest, 0) if scoring.causal else highest
        return min(lowest, highest), highest

    def view(self, part: Part) -> View:
        """What relations are told of a part."""
        first = part.k0 - part.q0 - self.before if self.consecutive else None
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
