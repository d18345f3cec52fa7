"""Value residuals: values of the first block that later blocks mix into their own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isoflop.model.linear import Roles
from isoflop.model.slots import Attend, Setting, ValueResidual
from isoflop.spec import SpecError


class Fixed(ValueResidual, kind="fixed"):
    """Both shares stay as declared.

    Formula: v = first v_1 + own v_l
    Paper: Zhou et al. 2024, arXiv 2410.17897
    """

    first: float = 0.5
    own: float = 0.5

    def build(self) -> nn.Module:
        return FixedShares(self.first, self.own)

    def check(self) -> None:
        for name, lost in (("first", "values of the first block"), ("own", "own values of the block")):
            if getattr(self, name) == 0:
                raise SpecError.at(name, f"must not be 0, which leaves the {lost} without use; came 0")


class Learned(ValueResidual, kind="learned"):
    """Both shares are learned, two numbers for each block; they start as declared.

    Formula: v = first v_1 + own v_l
    Paper: Zhou et al. 2024, arXiv 2410.17897
    """

    first: float = 0.5
    own: float = 0.5

    def build(self) -> nn.Module:
        return LearnedShares(self.first, self.own)


class Lerp(ValueResidual, kind="lerp"):
    """One share is learned for each block and what it leaves is the block's own; it starts as declared and is free.

    Formula: v = share v_1 + (1 - share) v_l
    Paper: Jordan et al. 2024, modded-nanogpt, after Zhou et al. 2024, arXiv 2410.17897
    """

    share: float = 0.5

    def build(self) -> nn.Module:
        return LearnedShare(self.share)


def check_values(residual: ValueResidual | None, setting: Setting) -> None:
    """Refuse a residual that does nothing, or that has no values of its block's shape to take.

    Raises:
        SpecError: paths are relative to the residual.
    """
    if residual is None:
        return
    residual.check()
    if setting.across:
        raise SpecError("mixes in values of the same text, and this attention looks at another; remove it")
    if setting.number == 0 and not _asked_for(setting):
        raise SpecError("does nothing: the first block has no block before it, and no later one has a value residual")
    width, blocks = setting.architecture.width, setting.architecture.declarations
    if setting.number and setting.architecture.share.owners(len(blocks))[setting.number] == 0:
        raise SpecError(
            f"does nothing: block {setting.number} uses the modules of the first, which keeps its own values"
        )
    first, own = (block.attention.value_shape(width) for block in (blocks[0], setting.block))
    if first is None or own is None:
        raise SpecError(f"needs values of the first block, and its attention {blocks[0].attention.kind!r} keeps none")
    here, there = (block.attention.remembered for block in (setting.block, blocks[0]))
    if here != there:
        raise SpecError(
            f"needs as long a memory here as in the first block, whose values it takes: {here}, there {there}"
        )
    if first != own:
        raise SpecError(
            "adds values of the first block to its own, so key/value heads and their width must be the same: "
            f"{own[0]} of {own[1]} here, {first[0]} of {first[1]} in the first block"
        )


def build_values(residual: ValueResidual | None, setting: Setting) -> nn.Module:
    """(v_BGTE, attend) -> v_BGTE: what becomes of the values of a block."""
    if setting.number == 0:
        return Remembered() if _asked_for(setting) else Untouched()
    return Untouched() if residual is None else Mixed(residual.build())


def _asked_for(setting: Setting) -> bool:
    """Whether a block after the first mixes in the first one's values."""
    return any(block.attention.mixes_values for block in setting.architecture.declarations[1:])


class FixedShares(nn.Module):
    """See `Fixed`."""

    def __init__(self, first: float, own: float) -> None:
        super().__init__()
        self.first, self.own = first, own

    def forward(self, first_BGTE: Tensor, own_BGTE: Tensor) -> Tensor:
        return self.first * first_BGTE + self.own * own_BGTE


class LearnedShares(nn.Module):
    """See `Learned`."""

    def __init__(self, first: float, own: float) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.empty(2))
        self.roles: Roles = {"shares": "value_share"}
        self.initial = {"shares": (first, own)}

    def forward(self, first_BGTE: Tensor, own_BGTE: Tensor) -> Tensor:
        first, own = self.shares.unbind()
        return first * first_BGTE + own * own_BGTE


class LearnedShare(nn.Module):
    """See `Lerp`."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = nn.Parameter(torch.empty(()))
        self.roles: Roles = {"share": "value_share"}
        self.initial = {"share": (share,)}

    def forward(self, first_BGTE: Tensor, own_BGTE: Tensor) -> Tensor:
        return torch.lerp(own_BGTE, first_BGTE, self.share)


FIRST = "values of the first block"


class Untouched(nn.Module):
    """Values that no other block asks for: (v_BGTE, attend) -> v_BGTE."""

    def forward(self, v_BGTE: Tensor, attend: Attend) -> Tensor:
        return v_BGTE


class Remembered(nn.Module):
    """Values of the first block, which later ones ask for in the same forward pass."""

    def forward(self, v_BGTE: Tensor, attend: Attend) -> Tensor:
        attend.once(FIRST, lambda: v_BGTE)
        return v_BGTE


class Mixed(nn.Module):
    """Values of a later block, mixed with those of the first by `mix`."""

    def __init__(self, mix: nn.Module) -> None:
        super().__init__()
        self.mix = mix

    def forward(self, v_BGTE: Tensor, attend: Attend) -> Tensor:
        return self.mix(attend.once(FIRST, lambda: v_BGTE), v_BGTE)
