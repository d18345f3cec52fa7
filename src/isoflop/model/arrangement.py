"""How the sublayers of a block stand to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

from torch import Tensor, nn

from isoflop.model.slots import Adding, Arrangement, Join, Sublayer
from isoflop.spec import SpecError


class Serial(Arrangement, kind="serial"):
    """One sublayer after the other, each joined to the stream before the next one reads it.

    Formula: z' = J_n(... J_1(z, F_1) ..., F_n)
    Paper: Vaswani et al. 2017, arXiv 1706.03762
    """

    def build(self) -> nn.Module:
        return InSeries()


class Parallel(Arrangement, kind="parallel"):
    """All sublayers read the same stream, and what they make of it is added up.

    `norms`: `shared` joins the sum of the sublayers as one sublayer, so that all read it through one norm (GPT-J,
    Falcon 7B); `own` gives each its own (GPT-NeoX), which needs a join that leaves the sum alone.

    Formula: z' = J(z, F_1 + ... + F_n), or z' = z + sum_i (J_i(z, F_i) - z)
    Paper: Wang & Komatsuzaki 2021 (GPT-J); Black et al. 2022 (GPT-NeoX), arXiv 2204.06745
    """

    norms: Literal["shared", "own"] = "shared"

    def joins(self, sublayers: Sequence[str]) -> dict[str, str]:
        return dict.fromkeys(sublayers, "join") if self.norms == "shared" else super().joins(sublayers)

    def build(self) -> nn.Module:
        return InOne() if self.norms == "shared" else SideBySide()

    def check(self, join: Join) -> None:
        if self.norms == "own" and not join.adds:
            raise SpecError.at(
                "norms",
                f"'own' adds up what each join adds to the stream, and join {join.kind!r} is no addition; use 'shared'",
            )


class InSeries(nn.Module):
    """See `Serial`."""

    def forward(self, z_BTD: Tensor, joins: Sequence[nn.Module], sublayers: Sequence[Sublayer]) -> Tensor:
        for join, sublayer in zip(joins, sublayers, strict=True):
            z_BTD = join(z_BTD, sublayer)
        return z_BTD


class InOne(nn.Module):
    """See `Parallel`, one join for all."""

    def forward(self, z_BTD: Tensor, joins: Sequence[nn.Module], sublayers: Sequence[Sublayer]) -> Tensor:
        (join,) = joins
        return join(z_BTD, lambda x_BTD: _total([sublayer(x_BTD) for sublayer in sublayers]))


class SideBySide(nn.Module):
    """See `Parallel`, a join for each."""

    def forward(self, z_BTD: Tensor, joins: Sequence[nn.Module], sublayers: Sequence[Sublayer]) -> Tensor:
        branches = [cast("Adding", join).branch for join in joins]
        return z_BTD + _total([branch(z_BTD, sublayer) for branch, sublayer in zip(branches, sublayers, strict=True)])


def _total(tensors: Sequence[Tensor]) -> Tensor:
    first, *rest = tensors
    for tensor in rest:
        first = first + tensor
    return first
