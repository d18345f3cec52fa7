"""Which blocks use the same modules."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from isoflop.model.slots import Share
from isoflop.spec import SpecError


class Nothing(Share, kind="none"):
    """Every block has modules of its own.

    Paper: Vaswani et al. 2017, arXiv 1706.03762
    """

    def owners(self, depth: int) -> tuple[int, ...]:
        return tuple(range(depth))


class Groups(Share, kind="groups"):
    """Consecutive blocks in `count` groups as equal as can be; those of a group are one block, evaluated again and again.

    Formula: block i is in group floor(i count / depth)
    Paper: Lan et al. 2020 (ALBERT), arXiv 1909.11942
    """

    count: Annotated[int, Field(ge=1)] = 1

    def owners(self, depth: int) -> tuple[int, ...]:
        groups = [block * self.count // depth for block in range(depth)]
        return tuple(groups.index(group) for group in groups)

    def check(self, depth: int) -> None:
        if self.count > depth:
            raise SpecError.at("count", f"must be at most depth {depth}, came {self.count}")
