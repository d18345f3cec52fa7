"""Sines and cosines of positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

Base = Annotated[float, Field(gt=1)]


def geometric(width: int, base: float) -> list[float]:
    """base^(-2i/width), i = 0..width/2-1: radians by which a position turns each pair."""
    return [base ** (-2 * pair / width) for pair in range(width // 2)]


def turned(positions_BT: Tensor, frequencies: Sequence[float]) -> tuple[Tensor, Tensor]:
    """cos and sin of position times frequency, (B, T, number of frequencies), in fp32."""
    frequencies_F = torch.tensor(frequencies, device=positions_BT.device, dtype=torch.float32)
    angles_BTF = positions_BT[..., None].to(torch.float32) * frequencies_F
    return angles_BTF.cos(), angles_BTF.sin()


def angles(positions_BT: Tensor, width: int, base: float) -> tuple[Tensor, Tensor]:
    """cos and sin of position / base^(2i/width), i = 0..width/2-1: (B, T, width/2), in fp32."""
    return turned(positions_BT, geometric(width, base))
