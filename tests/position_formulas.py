"""The formulas of relative positions, pair by pair, and of rotary scalings."""

from __future__ import annotations

import math
from typing import Any

from formulas import Pair, Placing, Vector, Weights, dot, formula, of
from isoflop.model.position import (
    T5,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    Relative,
    TransformerXL,
    Unscaled,
    YaRN,
)


def in_blocks(architecture: Any, weights: Weights) -> list[list[Placing]]:
    """What the positions of each block do, with their weights: their own, and those of the first block alike."""
    first: dict[Any, Weights] = {}
    found = []
    for number, block in enumerate(architecture.declarations):
        placings = [of(kind)(architecture.width) for kind in block.position]
        inside = [n for n, placing in enumerate(placings) if placing.embed is None]
        shape = block.attention.shape(architecture.width)
        for term, n in enumerate(inside):
            own = weights.under(f"blocks.{number}.attention.terms.{term}")
            # Biases of buckets are numbers of a head, whatever its width.
            width = None if isinstance(block.position[n], T5) else shape.width
            alike = (block.position[n], shape.query, width)
            shared = first.setdefault(alike, own) if getattr(block.position[n], "blocks_share", False) else own
            placings[n].own, placings[n].shared = own, shared
        found.append(placings)
    return found


# ------------------------------------------------------------------------------------------------ relative positions


@formula(T5)
def t5(spec: T5, width: int) -> Placing:
    def add(pair: Pair) -> float:
        sides, offset = (1 if pair.causal else 2), pair.j - pair.i
        count = spec.buckets // sides
        exact, distance = count // 2, abs(offset)
        bucket = distance
        if distance >= exact:
            grown = math.log(distance / exact) / math.log(spec.max_distance / exact) * (count - exact)
            bucket = min(exact + math.floor(grown + 1e-9), count - 1)
        if sides == 2 and offset > 0:
            bucket += count
        return pair.shared.get("table.weight")[bucket][pair.head]

    return Placing(add=add)


@formula(Relative)
def relative(spec: Relative, width: int) -> Placing:
    def vector(name: str, pair: Pair) -> Vector:
        table = pair.shared.get(f"{name}_table")
        table = table if spec.heads_share else table[pair.head]
        assert len(table) == (spec.reach + 1 if pair.causal else 2 * spec.reach + 1)
        return table[max(-spec.reach, min(pair.j - pair.i, spec.reach)) + spec.reach]

    def moved(x: Vector, name: str, pair: Pair) -> Vector:
        return [a + b for a, b in zip(x, vector(name, pair), strict=True)] if getattr(spec, name) else x

    def relate(pair: Pair) -> float:
        return dot(moved(pair.q, "query", pair), moved(pair.k, "key", pair)) - dot(pair.q, pair.k)

    return Placing(relate=relate, value=(lambda pair: vector("value", pair)) if spec.value else None)


@formula(TransformerXL)
def transformer_xl(spec: TransformerXL, width: int) -> Placing:
    def relate(pair: Pair) -> float:
        distance = pair.i - pair.j
        angles = [distance / spec.base ** (2 * f / width) for f in range(width // 2)]
        sinusoid = [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
        rows = pair.own.get("map")[pair.head * len(pair.q) : (pair.head + 1) * len(pair.q)]
        met = [dot(row, sinusoid) for row in rows]
        u, v = (pair.shared.get(f"biases.{name}")[pair.head] for name in "uv")
        return dot(u, pair.k) + dot([a + b for a, b in zip(pair.q, v, strict=True)], met)

    return Placing(relate=relate)


# ------------------------------------------------------------------------------------------------ rotary scalings

Turning = tuple[Vector, float]
"""How fast each pair turns, and what turned vectors are multiplied by."""


@formula(Unscaled)
def unscaled(spec: Unscaled, size: int, base: float) -> Turning:
    return [1 / base ** (2 * i / size) for i in range(size // 2)], 1.0


@formula(Linear)
def linear(spec: Linear, size: int, base: float) -> Turning:
    return [1 / (spec.factor * base ** (2 * i / size)) for i in range(size // 2)], 1.0


@formula(DynamicNTK)
def dynamic_ntk(spec: DynamicNTK, size: int, base: float) -> Turning:
    stretched = base * (spec.factor * spec.longest / spec.original_length - (spec.factor - 1)) ** (size / (size - 2))
    return [1 / stretched ** (2 * i / size) for i in range(size // 2)], 1.0


@formula(YaRN)
def yarn(spec: YaRN, size: int, base: float) -> Turning:
    """Pair i turns n(i) = L / (2 pi base^(2i/r)) times; low and high are where n is beta_fast and beta_slow."""

    def pair_that_turns(times: float) -> float:
        return size / 2 * math.log(spec.original_length / (2 * math.pi * times), base)

    low, high = pair_that_turns(spec.beta_fast), pair_that_turns(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    speeds = []
    for i in range(size // 2):
        plain = 1 / base ** (2 * i / size)
        if i <= low:
            speeds.append(plain)
        elif i >= high:
            speeds.append(plain / spec.factor)
        else:
            ramp = (i - low) / (high - low)
            speeds.append(ramp * plain / spec.factor + (1 - ramp) * plain)
    return speeds, spec.attention_factor or 1 + math.log(spec.factor) / 10


@formula(LongRoPE)
def longrope(spec: LongRoPE, size: int, base: float) -> Turning:
    factors = spec.short_factors if spec.longest <= spec.original_length else spec.long_factors
    speeds = [1 / (factors[i % len(factors)] * base ** (2 * i / size)) for i in range(size // 2)]
    return speeds, spec.attention_factor or math.sqrt(1 + math.log(spec.factor) / math.log(spec.original_length))


@formula(Llama3)
def llama3(spec: Llama3, size: int, base: float) -> Turning:
    speeds = []
    for i in range(size // 2):
        wavelength = 2 * math.pi * base ** (2 * i / size)
        if wavelength < spec.original_length / spec.high_frequency_factor:
            speeds.append(2 * math.pi / wavelength)
        elif wavelength > spec.original_length / spec.low_frequency_factor:
            speeds.append(2 * math.pi / wavelength / spec.factor)
        else:
            low, high = spec.low_frequency_factor, spec.high_frequency_factor
            smooth = (spec.original_length / wavelength - low) / (high - low)
            speeds.append(2 * math.pi / wavelength * ((1 - smooth) / spec.factor + smooth))
    return speeds, 1.0


@formula(Proportional)
def proportional(spec: Proportional, size: int, base: float) -> Turning:
    turning = int(spec.fraction * size // 2)
    return [1 / (spec.factor * base ** (2 * i / size)) if i < turning else 0.0 for i in range(size // 2)], 1.0
