"""Attention of a batch to itself: what stands between the sublayers and the kernels in training and evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from isoflop.model.kernel import choose
from isoflop.model.places import Places
from isoflop.model.term import Meeting, Scoring


@dataclass
class ForwardPass:
    """What one forward pass has computed already: the `Once` of an `Attend`."""

    memo: dict[Any, Any] = field(default_factory=dict, kw_only=True)

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]


@dataclass
class Dense(ForwardPass):
    """Attention of a batch to itself, without a cache: the `Attend` of training and evaluation.

    Args:
        places: positions and documents of the batch.
        kernel: a kernel's name to force it; None for the fastest.
        training: dropout is on.
    """

    places: Places
    kernel: str | None = None
    training: bool = False

    def once_for_keys(self, key: Any, make: Callable[[], Any]) -> Any:
        """What is remembered of rotations holds for one set of positions."""
        same = self.places.q_positions is self.places.k_positions
        return self.once(key if same else ("keys", key), make)

    def __call__(self, q_BHTE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor, scoring: Scoring) -> Tensor:
        content_BHTE = q_BHTE
        for term in scoring.acting("rotate"):
            q_BHTE = term.rotate(q_BHTE, self.places.q_positions, self.once)
            k_BGTE = term.rotate(k_BGTE, self.places.k_positions, self.once_for_keys)
        dropout = scoring.dropout if self.training else 0.0
        meeting = Meeting(content_BHTE, q_BHTE, k_BGTE, v_BGTE, scoring, self.places, self.once, dropout)
        return choose(meeting, self.kernel).run(meeting)
