"""Attention of a batch to itself: what stands between the sublayers and the kernels in training and evaluation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from isoflop.model.kernel import choose
from isoflop.model.memory import Memory
from isoflop.model.past import NOTHING, Past, longest
from isoflop.model.places import Places
from isoflop.model.slots import Attend, Expand, KeysValues, as_kept
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
        memory: what an encoder made of the source, where there is one.
        past: what the segments before this one left to it; None for nothing.
    """

    places: Places
    kernel: str | None = None
    training: bool = False
    memory: Memory | None = None
    past: Past | None = None
    left: list[Tensor] = field(default_factory=list, init=False)

    def once_for_keys(self, key: Any, make: Callable[[], Any]) -> Any:
        """What is remembered of rotations holds for one set of positions."""
        same = self.places.q_positions is self.places.k_positions
        return self.once(key if same else ("keys", key), make)

    def __call__(
        self, q_BHTE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor, scoring: Scoring, expand: Expand = as_kept
    ) -> Tensor:
        content_BHTE = q_BHTE
        for term in scoring.acting("rotate"):
            q_BHTE = term.rotate(q_BHTE, self.places.q_positions, self.once)
            k_BGTE = term.rotate(k_BGTE, self.places.k_positions, self.once_for_keys)
        dropout = scoring.dropout if self.training else 0.0
        meeting = Meeting(content_BHTE, q_BHTE, *expand(k_BGTE, v_BGTE), scoring, self.places, self.once, dropout)
        return choose(meeting, self.kernel).run(meeting)

    @property
    def _before(self) -> Past:
        # No default of the field: torch.compile cannot make one in a graph.
        return NOTHING if self.past is None else self.past

    def recall(self, x_BTD: Tensor, memory: int) -> tuple[Tensor, Attend]:
        past_BMD = self._before.stream(len(self.left), x_BTD, memory)
        self.left.append(torch.cat([past_BMD, x_BTD.detach()], dim=1)[:, -memory:])
        return past_BMD, self._after(past_BMD.shape[1])

    def leaves(self) -> Past:
        """What this pass leaves to the segment after it, once it is done."""
        if not self.left:
            return NOTHING
        seen = self._after(longest(self._before.streams)).places.k_documents
        return Past(tuple(self.left), None if seen is None else seen[:, -longest(self.left) :])

    def _after(self, count: int) -> Dense:
        """Other places, and so other things to remember, where keys of so many positions come before."""
        if not count:
            return self

        def make() -> Dense:
            return Dense(self.places.after(count, self._before.documents_BM), self.kernel, self.training)

        return self.once(("after", count), make)

    def across(self, q_BHTE: Tensor, keys_values: KeysValues, scoring: Scoring, expand: Expand = as_kept) -> Tensor:
        assert self.memory is not None, "a model with cross-attention checks that it has a source"
        return self._to_source()(q_BHTE, *keys_values(self.memory.states_BSD), scoring, expand)

    def _to_source(self) -> Dense:
        """Other places, and so other things to remember."""
        memory = self.memory
        assert memory is not None
        return self.once("to source", lambda: Dense(memory.seen_from(self.places), self.kernel, self.training))
