"""Positions that are added to the embeddings, and none at all."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from isoflop.model.linear import Embedding
from isoflop.model.position.frequencies import Base, angles
from isoflop.model.slots import Position, Setting
from isoflop.spec import SpecError


class Nothing(Position, kind="none"):
    """No positions; a causal model can still count.

    Paper: Haviv et al. 2022, arXiv 2203.16634; Kazemnejad et al. 2023 (NoPE), arXiv 2305.19466
    """

    stages: ClassVar[frozenset[str]] = frozenset()


class Sinusoidal(Position, kind="sinusoidal"):
    """Fixed sines and cosines added to the embeddings; `layout` says how they are ordered in the vector.

    Formula: PE(p, 2i) = sin(p / base^(2i/D)), PE(p, 2i+1) = cos(p / base^(2i/D))
    Paper: Vaswani et al. 2017, arXiv 1706.03762
    """

    stages: ClassVar[frozenset[str]] = frozenset({"embed"})
    base: Base = 10000.0
    layout: Literal["interleaved", "half"] = "interleaved"

    def embedding(self, width: int) -> nn.Module:
        return SinusoidalEmbedding(width, self.base, self.layout == "interleaved")

    def check(self, setting: Setting) -> None:
        width = setting.architecture.embed.sum_width(setting.architecture.width)
        if width % 2:
            raise SpecError(f"sinusoidal positions come in pairs: width must be even, came {width}")


class Learned(Position, kind="learned"):
    """A learned vector for each of `length` positions, added to the embeddings.

    Formula: x_p = E[token] + P[p]
    Paper: Gehring et al. 2017, arXiv 1705.03122
    """

    stages: ClassVar[frozenset[str]] = frozenset({"embed"})
    length: Annotated[int, Field(ge=1)] = 1024

    @property
    def limit(self) -> int | None:
        return self.length

    def embedding(self, width: int) -> nn.Module:
        return LearnedEmbedding(self.length, width)


class SinusoidalEmbedding(nn.Module):
    """See `Sinusoidal`."""

    def __init__(self, width: int, base: float, interleaved: bool) -> None:
        super().__init__()
        self.width, self.base, self.interleaved = width, base, interleaved

    def forward(self, positions_BT: Tensor) -> Tensor:
        cos, sin = angles(positions_BT, self.width, self.base)
        if self.interleaved:
            return torch.stack([sin, cos], dim=-1).flatten(-2)
        return torch.cat([sin, cos], dim=-1)


class LearnedEmbedding(nn.Module):
    """See `Learned`."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = Embedding(length, width, "position")
        self.length = length

    def forward(self, positions_BT: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and positions_BT.device.type != "meta" and positions_BT.numel():
            last = int(positions_BT.max())
            if last >= self.length:
                raise ValueError(
                    f"position {last} is beyond the {self.length} learned positions (0 to {self.length - 1})"
                )
        return self.table(positions_BT)
