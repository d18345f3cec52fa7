"""Initial weights: a rule for every role, and draws that depend on nothing but a seed and a name."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from isoflop.model.architecture import Architecture
from isoflop.model.linear import Part, parts
from isoflop.model.slots import Init, Rule
from isoflop.seeds import seed_for

Positive = Annotated[float, Field(gt=0)]


@dataclass(frozen=True)
class NormalRule:
    """N(0, std²)."""

    std: float

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randn(shape, generator=generator) * self.std

    def __str__(self) -> str:
        return f"normal(std={self.std:.6g})"


@dataclass(frozen=True)
class UniformRule:
    """U(-bound, bound)."""

    bound: float

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return (torch.rand(shape, generator=generator) * 2 - 1) * self.bound

    def __str__(self) -> str:
        return f"uniform(bound={self.bound:.6g})"


@dataclass(frozen=True)
class ConstantRule:
    """The same value everywhere."""

    value: float

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.full(shape, self.value)

    def __str__(self) -> str:
        return f"constant({self.value:g})"


@dataclass(frozen=True)
class ValuesRule:
    """A declared value for each row."""

    values: tuple[float, ...]

    def draw(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.tensor(self.values).view(-1, *[1] * (len(shape) - 1)).expand(shape)

    def __str__(self) -> str:
        return f"values({', '.join(f'{value:g}' for value in self.values)})"


TABLES = frozenset({"embed", "position", "token_type"})
"""Roles that are looked up, not multiplied: Glorot's argument about fans says nothing of them."""


class Normal(Init, kind="normal"):
    """One standard deviation for every matrix and table.

    Formula: W ~ N(0, std²)
    Paper: Radford et al. 2018 (GPT)
    """

    std: Positive = 0.02

    def rule(self, part: Part, architecture: Architecture) -> Rule:
        return NormalRule(self.std)


class XavierUniform(Init, kind="xavier_uniform"):
    """Glorot's uniform rule for matrices; tables are N(0, 1/width) (eq. 18-19).

    Formula: W ~ U(-η, η), η = gain sqrt(6 / (d_in + d_out))
    Paper: Glorot & Bengio 2010
    """

    gain: Positive = 1.0

    def rule(self, part: Part, architecture: Architecture) -> Rule:
        if part.role in TABLES:
            return NormalRule(architecture.width**-0.5)
        return UniformRule(self.gain * math.sqrt(6 / (part.fan_in + part.fan_out)))


class XavierNormal(Init, kind="xavier_normal"):
    """Glorot's normal rule for matrices; tables are N(0, 1/width).

    Formula: W ~ N(0, η²), η = gain sqrt(2 / (d_in + d_out))
    Paper: Glorot & Bengio 2010
    """

    gain: Positive = 1.0

    def rule(self, part: Part, architecture: Architecture) -> Rule:
        if part.role in TABLES:
            return NormalRule(architecture.width**-0.5)
        return NormalRule(self.gain * math.sqrt(2 / (part.fan_in + part.fan_out)))


class GPT2(Init, kind="gpt2"):
    """One standard deviation, divided by sqrt(2 depth) where a sublayer writes to the stream.

    Formula: W ~ N(0, std²), and N(0, std² / (2 L)) for o and ffn_out
    Paper: Radford et al. 2019 (GPT-2)
    """

    std: Positive = 0.02

    def rule(self, part: Part, architecture: Architecture) -> Rule:
        writes_to_stream = part.role in {"o", "ffn_out"}
        return NormalRule(self.std / math.sqrt(2 * architecture.depth) if writes_to_stream else self.std)


CONSTANTS = {"gain": ConstantRule(1.0), "bias": ConstantRule(0.0), "head_bias": ConstantRule(0.0)}


def rule_for(part: Part, architecture: Architecture) -> Rule:
    """The distribution of one part: what its module declares, gains 1, biases 0, the rest is the architecture's rule."""
    if part.initial is not None:
        alike = len(set(part.initial)) == 1
        return ConstantRule(part.initial[0]) if alike else ValuesRule(part.initial)
    return CONSTANTS.get(part.role) or architecture.init.rule(part, architecture.side_of(part.name))


def initialise(model: nn.Module, architecture: Architecture, seed: int) -> None:
    """Draw every parameter of `model`, in place.

    Each part has its own generator, seeded by (seed, name): two architectures start with the same values wherever
    they have the same part, whatever else they have, and on any device or number of processes.

    Raises:
        TypeError: a parameter has no role, or the model has a buffer.
    """
    for name, _ in model.named_buffers():
        raise TypeError(f"{name!r} is a buffer, which no rule initialises: compute it in the forward pass")
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for part in parts(model):
            values = rule_for(part, architecture).draw(part.shape, generator_for(seed, part.name))
            parameters[part.parameter][part.rows].copy_(values)


def generator_for(seed: int, name: str) -> torch.Generator:
    """A generator that depends on the seed and the name alone."""
    return torch.Generator().manual_seed(seed_for(seed, name))
