"""How a model knows where a token stands: sinusoidal, learned, RoPE, ALiBi, nothing."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from isoflop.model.architecture import Architecture, Block
from isoflop.model.linear import Embedding
from isoflop.model.slots import Once, Position, Term
from isoflop.spec import SpecError

Base = Annotated[float, Field(gt=1)]


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

    def check(self, architecture: Architecture, block: Block) -> None:
        if architecture.width % 2:
            raise SpecError(f"sinusoidal positions come in pairs: width must be even, came {architecture.width}")


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


class RoPE(Position, kind="rope"):
    """Rotary positions: each pair of query and key components is turned by an angle that grows with the position.

    `fraction` of the head is rotated (the first part). `layout` says which components make a pair: i and i + r/2
    (`half`, as in GPT-NeoX and Llama) or 2i and 2i + 1 (`interleaved`, as in the paper and GPT-J).

    Formula: (q_i, q_j) -> (q_i cos pθ - q_j sin pθ, q_j cos pθ + q_i sin pθ), θ = base^(-2i/r)
    Paper: Su et al. 2021, arXiv 2104.09864
    """

    stages: ClassVar[frozenset[str]] = frozenset({"rotate"})
    base: Base = 10000.0
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    layout: Literal["half", "interleaved"] = "half"

    def rotated(self, head_width: int) -> int:
        """How many components of a head are rotated."""
        return round(self.fraction * head_width)

    def term(self, heads: int, head_width: int) -> Term:
        return Rotary(self.rotated(head_width), self.base, self.layout == "interleaved")

    def check(self, architecture: Architecture, block: Block) -> None:
        head_width = block.attention.shape(architecture.width).width
        rotated = self.rotated(head_width)
        if rotated % 2 or rotated == 0:
            raise SpecError(
                f"rope turns pairs: fraction x head width must be even and above 0, came {self.fraction:g} x {head_width} = {rotated}"
            )


class ALiBi(Position, kind="alibi"):
    """A penalty on the scores that grows linearly with the distance, with another slope for each head.

    `slopes`: `paper` interpolates where the number of heads is no power of two, as the authors do; `geometric` is
    2^(-8h/H) for any H. They agree for powers of two.

    Formula: score_ij -= m_h |i - j|, m_h = 2^(-8h/H), h = 1..H
    Paper: Press, Smith & Lewis 2022, arXiv 2108.12409
    """

    stages: ClassVar[frozenset[str]] = frozenset({"add"})
    slopes: Literal["paper", "geometric"] = "paper"

    def term(self, heads: int, head_width: int) -> Term:
        return LinearBias(paper_slopes(heads) if self.slopes == "paper" else geometric_slopes(heads))


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


class Rotary(Term):
    """See `RoPE`.

    Angles are computed in fp32 from the positions in every pass: a table kept in the module would be cast with it,
    and 16-bit frequencies are wrong by whole turns at long range. The half layout uses `roll` and not two slices
    joined again: torch.compile on a CPU makes wrong bf16 gradients of the latter.
    """

    stages: frozenset[str] = frozenset({"rotate"})

    def __init__(self, rotated: int, base: float, interleaved: bool) -> None:
        super().__init__()
        self.rotated, self.base, self.interleaved = rotated, base, interleaved

    @property
    def key(self) -> Hashable:
        return ("rope", self.rotated, self.base, self.interleaved)

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
        cos, sin = angles(positions_BT, self.rotated, self.base)
        if not self.interleaved:
            # For the roll: component i < r/2 takes -sin of its partner i + r/2, and that one +sin of i.
            cos, sin = torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
        return cos.to(dtype).unsqueeze(-3), sin.to(dtype).unsqueeze(-3)


class LinearBias(Term):
    """See `ALiBi`."""

    stages: frozenset[str] = frozenset({"add"})

    def __init__(self, slopes: list[float]) -> None:
        super().__init__()
        self.slopes = tuple(slopes)

    @property
    def key(self) -> Hashable:
        return ("alibi", self.slopes)

    def add(self, q_positions_BT: Tensor, k_positions_BS: Tensor, once: Once) -> Tensor:
        distance = (q_positions_BT[:, None, :, None] - k_positions_BS[:, None, None, :]).abs()
        slopes = torch.tensor(self.slopes, device=distance.device).view(1, -1, 1, 1)
        return -slopes * distance


def angles(positions_BT: Tensor, width: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin of position / base^(2i/width), i = 0..width/2-1: (B, T, width/2), in fp32."""
    exponents = torch.arange(0, width, 2, device=positions_BT.device, dtype=torch.float32) / width
    turned = positions_BT[..., None].to(torch.float32) * base**-exponents
    return turned.cos(), turned.sin()


def geometric_slopes(heads: int) -> list[float]:
    """2^(-8h/H) for h = 1..H."""
    return [2 ** (-8 * (head + 1) / heads) for head in range(heads)]


def paper_slopes(heads: int) -> list[float]:
    """The authors' rule: geometric for the next lower power of two, the rest from every other slope of the next higher one."""
    lower = 2 ** math.floor(math.log2(heads))
    return geometric_slopes(lower) + geometric_slopes(2 * lower)[0::2][: heads - lower]
