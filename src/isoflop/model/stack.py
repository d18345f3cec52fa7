"""How the blocks follow each other in depth."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from isoflop.model.slots import Attend, Stack


class Plain(Stack, kind="plain"):
    """One block after the other.

    Formula: z^l = block^l(z^{l-1})
    Paper: Vaswani et al. 2017, arXiv 1706.03762
    """

    def build(self, depth: int) -> nn.Module:
        return PlainStack()


class PlainStack(nn.Module):
    """See `Plain`."""

    def forward(self, z_BTD: Tensor, blocks: Iterable[nn.Module], attend: Attend) -> Tensor:
        for block in blocks:
            z_BTD = block(z_BTD, attend)
        return z_BTD
