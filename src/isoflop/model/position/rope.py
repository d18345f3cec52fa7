"""Rotary positions."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from isoflop.model.position.frequencies import Base, turned
from isoflop.model.slots import Position, Scaling, Setting
from isoflop.model.term import Once, Term
from isoflop.spec import SpecError


class RoPE(Position, kind="rope"):
    """Rotary positions: each pair of query and key components is turned by an angle that grows with the position.

    `fraction` of the head is rotated (the first part). `layout` says which components make a pair: i and i + r/2
    (`half`, as in GPT-NeoX and Llama) or 2i and 2i + 1 (`interleaved`, as in the paper and GPT-J). `scaling` changes θ for
    long texts.

    Formula: (q_i, q_j) -> (q_i cos pθ - q_j sin pθ, q_j cos pθ + q_i sin pθ), θ = base^(-2i/r)
    Paper: Su et al. 2021, arXiv 2104.09864
    """

    stages: ClassVar[frozenset[str]] = frozenset({"rotate"})
    base: Base = 10000.0
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    layout: Literal["half", "interleaved"] = "half"
    scaling: Scaling = "none"  # type: ignore[assignment]  # names are parsed into kinds

    def rotated(self, head_width: int) -> int:
        """How many components of a head are rotated, of those that may be."""
        return round(self.fraction * head_width)

    def term(self, setting: Setting, heads: int, head_width: int) -> Term:
        frequencies = self.scaling.frequencies(self.rotated(head_width), self.base)
        return Rotary(frequencies, self.scaling.magnitude, self.layout == "interleaved")

    def check(self, setting: Setting) -> None:
        rotated = self.rotated(setting.heads.rotary)
        if rotated % 2 or rotated == 0:
            raise SpecError(
                "rope turns pairs: fraction x head width must be even and above 0, "
                f"came {self.fraction:g} x {setting.heads.rotary} = {rotated}"
            )
        try:
            self.scaling.check(rotated)
        except SpecError as error:
            raise error.under("scaling") from None


class Rotary(Term):
    """See `RoPE`.

    Angles are computed in fp32 from the positions in every pass: a table kept in the module would be cast with it,
    and 16-bit frequencies are wrong by whole turns at long range. The half layout uses `roll` and not two slices
    joined again: torch.compile on a CPU makes wrong bf16 gradients of the latter.
    """

    stages: frozenset[str] = frozenset({"rotate"})

    def __init__(self, frequencies: list[float], magnitude: float, interleaved: bool) -> None:
        super().__init__()
        self.frequencies, self.magnitude, self.interleaved = tuple(frequencies), magnitude, interleaved
        self.rotated = 2 * len(frequencies)

    @property
    def key(self) -> Hashable:
        return ("rope", self.frequencies, self.magnitude, self.interleaved)

    def rotate(self, x_BHTE: Tensor, positions_BT: Tensor, once: Once) -> Tensor:
        cos, sin = once((self.key, x_BHTE.dtype), lambda: self._tables(positions_BT, x_BHTE.dtype))
        if self.rotated == x_BHTE.shape[-1]:
            return self._turn(x_BHTE, cos, sin)
        turned = self._turn(x_BHTE[..., : self.rotated], cos, sin)
        return torch.cat([turned, x_BHTE[..., self.rotated :]], dim=-1)

    def _turn(self, x_BHTE: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        if self.interleaved:
            even, odd = x_BHTE[..., 0::2], x_BHTE[..., 1::2]
            return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)
        return x_BHTE * cos + x_BHTE.roll(self.rotated // 2, dims=-1) * sin

    def _tables(self, positions_BT: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        cos, sin = turned(positions_BT, self.frequencies)
        if self.magnitude != 1.0:
            cos, sin = cos * self.magnitude, sin * self.magnitude
        if not self.interleaved:
            # For the roll: component i < r/2 takes -sin of its partner i + r/2, and that one +sin of i.
            cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        return cos.to(dtype).unsqueeze(-3), sin.to(dtype).unsqueeze(-3)
