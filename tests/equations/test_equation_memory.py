"""Transformer-XL as its paper writes it, segment after segment, number by number (Dai et al. 2019, section 3)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import formulas
import kinds
import models
from formulas import Vector, Weights, add, affine, dot
from isoflop.model import Architecture, Past, parts

HEADS, SIZE = 2, 4
PAPER = {
    "width": HEADS * SIZE,
    "position": "transformer_xl",
    "join": "post",
    "attention": {"heads": HEADS},
    "ffn": {"kind": "plain", "activation": "relu", "hidden": 6},
}


def attention(
    h: list[Vector], past: list[Vector], weights: Weights, biases: Weights, window: int | None
) -> list[Vector]:
    """h~ = [past, h]; q = W_q h, k = W_k h~, v = W_v h~; position i of the segment is i + M of h~."""
    longer, outputs = past + h, []
    matrices = {name: weights.get(f"{name}.weight") for name in "qkv"}
    relative = weights.get("terms.0.map")
    q, k, v = ([affine(x, matrices[name], None) for x in longer] for name in "qkv")
    for i in range(len(past), len(longer)):
        joined: Vector = []
        for head in range(HEADS):
            own = slice(head * SIZE, (head + 1) * SIZE)
            u, v_bias = (biases.get(f"terms.0.biases.{name}")[head] for name in "uv")
            seen = [j for j in range(i + 1) if window is None or i - j < window]
            scores = []
            for j in seen:
                r = affine(sinusoid(i - j, len(h[0])), relative, None)[own]
                content = dot([a + b for a, b in zip(q[i][own], u, strict=True)], k[j][own])
                place = dot([a + b for a, b in zip(q[i][own], v_bias, strict=True)], r)
                scores.append((content + place) / math.sqrt(SIZE))
            powers = [math.exp(score - max(scores)) for score in scores]
            shares = [power / sum(powers) for power in powers]
            joined += [sum(p * v[j][own][e] for p, j in zip(shares, seen, strict=True)) for e in range(SIZE)]
        outputs.append(affine(joined, weights.get("o.weight"), None))
    return outputs


def sinusoid(distance: int, width: int) -> Vector:
    angles = [distance / 10000 ** (2 * f / width) for f in range(width // 2)]
    return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]


def walk(architecture: Architecture, weights: Weights, segments: list[list[int]], memory: int) -> list[list[Vector]]:
    """Logits of every segment; each block remembers the last `memory` of what it has read."""
    spec: Any = architecture.declarations[0].attention
    norm, table = formulas.of(architecture.norm), weights.get("embed.weight")
    remembered: list[list[Vector]] = [[] for _ in range(architecture.depth)]
    found = []
    for tokens in segments:
        h = [table[token] for token in tokens]
        for n in range(architecture.depth):
            own = weights.under(f"blocks.{n}")
            past, remembered[n] = remembered[n], (remembered[n] + h)[-memory:]
            told = attention(h, past, own.under("attention"), weights.under("blocks.0.attention"), spec.window)
            h = [norm(x, own.under("attention_join.norm_out")) for x in add(h, told)]
            fed = [formulas.of(architecture.ffn)(x, own.under("ffn")) for x in h]
            h = [norm(x, own.under("ffn_join.norm_out")) for x in add(h, fed)]
        found.append([affine(x, table, None) for x in h])
    return found


@pytest.mark.parametrize(("memory", "window"), [(1, None), (3, None), (4, None), (6, None), (20, None), (2, 3), (2, 5)])
def test_segments(memory: int, window: int | None) -> None:
    """Memories shorter than a segment, as long as one, over two, and longer than all; and in a window."""
    architecture = kinds.tiny(PAPER, {"attention": {"memory": memory, "window": window}})
    model = models.lively(architecture)
    parameters = dict(model.named_parameters())
    weights = Weights({part.name: parameters[part.parameter][part.rows].tolist() for part in parts(model)})
    tokens = models.some_tokens(architecture, 1, 11)
    past, cut = Past(), tokens.split([4, 4, 3], dim=1)
    expected = walk(architecture, weights, [part[0].tolist() for part in cut], memory)
    for segment, told in zip(cut, expected, strict=True):
        with torch.no_grad():
            features, past = model.segment(segment, past)
            found = model.logits(features)[0].double()
        torch.testing.assert_close(found, torch.tensor(told, dtype=torch.float64), atol=2e-5, rtol=1e-5)
