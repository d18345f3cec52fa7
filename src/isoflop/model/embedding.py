"""How wide the table of tokens is, and how its vectors come to the width of the stream and back.

Legend: D width of the stream, E width of the table.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from isoflop.model.linear import Linear
from isoflop.model.slots import Embed


class Direct(Embed, kind="direct"):
    """A token's vector is as wide as the stream.

    Formula: x = E[token]
    Paper: Vaswani et al. 2017, arXiv 1706.03762
    """

    def table_width(self, width: int) -> int:
        return width

    def sum_width(self, width: int) -> int:
        return width

    def build_token_map(self, width: int) -> nn.Module:
        return nn.Identity()

    def build_sum_map(self, width: int) -> nn.Module:
        return nn.Identity()

    def build_reader(self, width: int) -> nn.Module:
        return nn.Identity()


class Factorised(Embed, kind="factorised"):
    """A narrow table and a map to the stream. The head's matrix is as narrow, tied or not, and the head maps to it.

    `width` of the table. `maps`: the `token`'s vector alone, so that positions are as wide as the stream (OPT), or the `sum`
    of token, position and type after its norm, all as narrow as the table (ALBERT). `bias`: the map has one.

    Formula: x = M E[token], or x = M N(E[token] + P[position] + ...)
    Paper: Lan et al. 2020 (ALBERT), arXiv 1909.11942
    """

    width: Annotated[int, Field(ge=1)] = 128
    maps: Literal["token", "sum"] = "token"
    bias: bool = False

    def table_width(self, width: int) -> int:
        return self.width

    def sum_width(self, width: int) -> int:
        return self.width if self.maps == "sum" else width

    def build_token_map(self, width: int) -> nn.Module:
        return self._build_map(width) if self.maps == "token" else nn.Identity()

    def build_sum_map(self, width: int) -> nn.Module:
        return self._build_map(width) if self.maps == "sum" else nn.Identity()

    def _build_map(self, width: int) -> nn.Module:
        return Linear(self.width, {"embed_map": width}, self.bias)

    def build_reader(self, width: int) -> nn.Module:
        return Linear(width, {"head_map": self.width})
