"""Learned biases by bucket of distance."""

from __future__ import annotations

from functools import partial
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from isoflop.model.linear import Embedding
from isoflop.model.relation import Relation, Tensors, View, by_offset
from isoflop.model.slots import Position, Setting
from isoflop.model.term import Meeting, Term
from isoflop.spec import SpecError


class T5(Position, kind="t5"):
    """A learned number for each head and bucket of distance is added to the scores.

    The first half of the buckets holds one distance each, the rest ever longer ranges, and the last one everything from
    `max_distance` on. Where all see all, half of the buckets is for keys before the query and half for those after.
    `blocks_share`: one table for all blocks, as in T5, or one for each. T5 itself does not scale q kᵀ: set
    `attention.scale = 1.0`.

    Formula: score_ij += b[h, bucket(i - j)], bucket(n) = n for n < m, else
        min(m + floor(ln(n / m) / ln(max_distance / m) (N - m)), N - 1), N buckets a side, m = N // 2
    Paper: Raffel et al. 2020, arXiv 1910.10683
    """

    stages: ClassVar[frozenset[str]] = frozenset({"add"})
    buckets: Annotated[int, Field(ge=2)] = 32
    max_distance: Annotated[int, Field(ge=2)] = 128
    blocks_share: bool = True

    def term(self, setting: Setting, heads: int, head_width: int) -> Term:
        def make() -> BucketBias:
            return BucketBias(self, heads, setting.causal)

        return setting.share((self, heads, setting.causal), make) if self.blocks_share else make()

    def check(self, setting: Setting) -> None:
        sides = 1 if setting.causal else 2
        if self.buckets % sides or self.buckets < 2 * sides:
            raise SpecError.at("buckets", f"must be even and at least 4 where all see all, came {self.buckets}")
        exact = self.buckets // sides // 2
        if self.max_distance <= exact:
            raise SpecError.at(
                "max_distance",
                f"must be above {exact}, up to which each distance has a bucket of its own, came {self.max_distance}",
            )


class BucketBias(Term):
    """See `T5`."""

    stages: frozenset[str] = frozenset({"add"})

    def __init__(self, spec: T5, heads: int, causal: bool) -> None:
        super().__init__()
        self.table = Embedding(spec.buckets, heads, "position")
        farthest = spec.max_distance
        self.lowest = -farthest
        self.index = [
            bucket(offset, spec.buckets, farthest, causal) for offset in range(-farthest, 1 if causal else farthest + 1)
        ]

    def add(self, meeting: Meeting) -> Relation:
        index_N = torch.tensor(self.index, device=meeting.q_BHTE.device)
        return Relation(partial(_biases, lowest=self.lowest), shared=(self.table(index_N).float().t(),), relative=True)


def _biases(rows: Tensors, columns: Tensors, shared: Tensors, view: View, *, lowest: int) -> Tensor:
    (table_HN,) = shared
    return by_offset(table_HN, view, lowest)


def bucket(offset: int, buckets: int, max_distance: int, causal: bool) -> int:
    """The bucket of a key at this offset from the query (position of the key minus that of the query)."""
    first = 0
    if not causal:
        buckets //= 2
        first = buckets if offset > 0 else 0
    distance, exact = max(-offset, 0) if causal else abs(offset), buckets // 2
    if distance < exact:
        return first + distance
    # In powers, not logarithms: a distance at the edge of a bucket must not fall to either side by rounding.
    coarse = buckets - exact
    passed = sum(distance**coarse * exact**step >= max_distance**step * exact**coarse for step in range(1, coarse))
    return first + exact + passed
