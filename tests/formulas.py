"""The formula of every kind, number by number in Python's own fp64, and a whole model put together from them.

A new kind adds its formula here; the equation tests then run it on every setting the kind has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from isoflop.model.activation import GELU, Identity, ReLU, Sigmoid, SiLU
from isoflop.model.attention import MultiHead
from isoflop.model.feedforward import GLU
from isoflop.model.feedforward import Plain as PlainFeedForward
from isoflop.model.init import GPT2, Normal, XavierNormal, XavierUniform
from isoflop.model.join import Post, Pre
from isoflop.model.norm import RMS, Layer
from isoflop.model.position import ALiBi, Learned, Nothing, RoPE, Sinusoidal
from isoflop.model.stack import Plain as PlainStack
from isoflop.spec import Slot

Vector = list[float]
Matrix = list[Vector]
Sublayer = Callable[[list[Vector]], list[Vector]]

FORMULAS: dict[type[Slot], Callable[..., Any]] = {}


def formula(kind: type[Slot]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the formula of a kind."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        FORMULAS[kind] = function
        return function

    return register


def of(spec: Slot) -> Callable[..., Any]:
    """The formula of a spec's kind, with the spec as its first argument."""
    found = FORMULAS.get(type(spec))
    assert found is not None, f"write the formula of {type(spec).__name__} in tests/formulas.py"
    return lambda *arguments: found(spec, *arguments)


@dataclass
class Weights:
    """Arrays of a model by the name of their part (`blocks.0.attention.q.weight`), as nested lists."""

    values: dict[str, Any]
    prefix: str = ""

    def under(self, name: str) -> Weights:
        """The weights whose names start with a further part."""
        return Weights(self.values, f"{self.prefix}{name}.")

    def get(self, name: str) -> Any:
        """An array, None where there is none."""
        return self.values.get(f"{self.prefix}{name}")


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def affine(x: Vector, rows: Matrix, bias: Vector | None) -> Vector:
    """y_i = sum_j W_ij x_j + b_i."""
    return [dot(row, x) + (bias[i] if bias else 0.0) for i, row in enumerate(rows)]


def softmax(scores: Vector) -> Vector:
    """exp(s_i) / sum_j exp(s_j)."""
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    return [power / sum(powers) for power in powers]


# ------------------------------------------------------------------------------------------------------ norms


@formula(Layer)
def layer_norm(spec: Layer, x: Vector, weights: Weights) -> Vector:
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    bias = weights.get("bias") or [0.0] * len(x)
    assert (weights.get("bias") is not None) == spec.bias
    root = math.sqrt(variance + spec.eps)
    return [g * (value - mean) / root + b for g, value, b in zip(weights.get("gain"), x, bias, strict=True)]


@formula(RMS)
def rms_norm(spec: RMS, x: Vector, weights: Weights) -> Vector:
    root = math.sqrt(sum(value**2 for value in x) / len(x) + spec.eps)
    return [g * value / root for g, value in zip(weights.get("gain"), x, strict=True)]


# ------------------------------------------------------------------------------------------------------ activations


@formula(ReLU)
def relu(spec: ReLU, x: float) -> float:
    return x if x > 0 else 0.0


@formula(SiLU)
def silu(spec: SiLU, x: float) -> float:
    return x / (1 + math.exp(-x))


@formula(GELU)
def gelu(spec: GELU, x: float) -> float:
    if spec.form == "exact":
        return x * (1 + math.erf(x / math.sqrt(2))) / 2
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@formula(Sigmoid)
def sigmoid(spec: Sigmoid, x: float) -> float:
    return 1 / (1 + math.exp(-x))


@formula(Identity)
def identity(spec: Identity, x: float) -> float:
    return x


# ------------------------------------------------------------------------------------------------------ feed-forward


@formula(PlainFeedForward)
def plain_feed_forward(spec: PlainFeedForward, x: Vector, weights: Weights) -> Vector:
    act = of(spec.activation)
    hidden = [act(value) for value in affine(x, weights.get("ffn_in.weight"), weights.get("up.bias"))]
    assert len(hidden) == (spec.hidden or 4 * len(x))
    return affine(hidden, weights.get("ffn_out.weight"), weights.get("down.bias"))


@formula(GLU)
def gated_feed_forward(spec: GLU, x: Vector, weights: Weights) -> Vector:
    act, bias = of(spec.activation), weights.get("up.bias")
    size = spec.hidden or math.ceil(8 * len(x) / 3 / spec.multiple) * spec.multiple
    gate = affine(x, weights.get("ffn_gate.weight"), bias and bias[:size])
    value = affine(x, weights.get("ffn_in.weight"), bias and bias[size:])
    assert len(gate) == len(value) == size
    hidden = [act(g) * v for g, v in zip(gate, value, strict=True)]
    return affine(hidden, weights.get("ffn_out.weight"), weights.get("down.bias"))


# ------------------------------------------------------------------------------------------------------ positions


@dataclass(frozen=True)
class Pair:
    """A query and a key (turned) of one head, where they stand, and the weights of a position kind."""

    head: int
    heads: int
    i: int
    j: int
    q: Vector
    k: Vector
    causal: bool
    own: Weights
    shared: Weights


@dataclass
class Placing:
    """What a position kind does: adds to the embedding, turns q and k, adds to q k, to the scores, to the value of a pair.

    Its weights are those of its own block and, where blocks share them, of the first block that has the same kind.
    """

    embed: Callable[[int, Weights], Vector] | None = None
    rotate: Callable[[Vector, int], Vector] = lambda x, position: x
    relate: Callable[[Pair], float] = lambda pair: 0.0
    add: Callable[[Pair], float] = lambda pair: 0.0
    value: Callable[[Pair], Vector] | None = None
    own: Weights = field(default_factory=lambda: Weights({}))
    shared: Weights = field(default_factory=lambda: Weights({}))


@formula(Nothing)
def nothing(spec: Nothing, width: int) -> Placing:
    return Placing()


@formula(Sinusoidal)
def sinusoidal(spec: Sinusoidal, width: int) -> Placing:
    def embed(position: int, weights: Weights) -> Vector:
        angles = [position / spec.base ** (2 * i / width) for i in range(width // 2)]
        if spec.layout == "half":
            return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]
        return [turn(angle) for angle in angles for turn in (math.sin, math.cos)]

    return Placing(embed=embed)


@formula(Learned)
def learned(spec: Learned, width: int) -> Placing:
    def embed(position: int, weights: Weights) -> Vector:
        assert len(weights.get("table.weight")) == spec.length
        return weights.get("table.weight")[position]

    return Placing(embed=embed)


@formula(RoPE)
def rope(spec: RoPE, width: int) -> Placing:
    def rotate(x: Vector, position: int) -> Vector:
        size, y = round(spec.fraction * len(x)), list(x)
        speeds, factor = of(spec.scaling)(size, spec.base)
        for pair, speed in enumerate(speeds):
            angle = position * speed
            i, j = (pair, pair + size // 2) if spec.layout == "half" else (2 * pair, 2 * pair + 1)
            y[i] = factor * (x[i] * math.cos(angle) - x[j] * math.sin(angle))
            y[j] = factor * (x[j] * math.cos(angle) + x[i] * math.sin(angle))
        return y

    return Placing(rotate=rotate)


@formula(ALiBi)
def alibi(spec: ALiBi, width: int) -> Placing:
    return Placing(add=lambda pair: -alibi_slope(spec, pair.head, pair.heads) * abs(pair.i - pair.j))


def alibi_slope(spec: ALiBi, head: int, heads: int) -> float:
    """The authors: a power of two H gives 2^(-8h/H); another H takes those of the power below, then every second of the
    power above."""
    if spec.slopes == "geometric" or heads & (heads - 1) == 0:
        return 2 ** (-8 * (head + 1) / heads)
    below = 1
    while 2 * below < heads:
        below *= 2
    if head < below:
        return 2 ** (-8 * (head + 1) / below)
    return 2 ** (-8 * (2 * (head - below) + 1) / (2 * below))


# ------------------------------------------------------------------------------------------------------ attention


@formula(MultiHead)
def multi_head(
    spec: MultiHead, xs: list[Vector], weights: Weights, placings: list[Placing], causal: bool
) -> list[Vector]:
    heads, groups = spec.heads, spec.kv_heads or spec.heads
    size = spec.head_width or len(xs[0]) // heads
    scale = spec.scale or 1 / math.sqrt(size)
    q, k, v = _projected(xs, weights, size, heads, groups)
    if spec.qk_norm is not None:
        norm = of(spec.qk_norm)
        q = [[norm(head, weights.under("q_norm")) for head in token] for token in q]
        k = [[norm(head, weights.under("k_norm")) for head in token] for token in k]
    content = q
    for placing in placings:
        q = [[placing.rotate(head, position) for head in token] for position, token in enumerate(q)]
        k = [[placing.rotate(head, position) for head in token] for position, token in enumerate(k)]
    outputs = []
    for i in range(len(xs)):
        reach = spec.window or len(xs)
        first, last = max(0, i - reach + 1), i if causal else min(len(xs) - 1, i + reach - 1)
        joined: Vector = []
        for head in range(heads):
            group = head // (heads // groups)
            scores, pairs = [], []
            for j in range(first, last + 1):
                pair = [Pair(head, heads, i, j, q[i][head], k[j][group], causal, p.own, p.shared) for p in placings]
                pairs.append(pair)
                related = sum(p.relate(one) for p, one in zip(placings, pair, strict=True))
                score = scale * (dot(q[i][head], k[j][group]) + related)
                if spec.softcap is not None:
                    score = spec.softcap * math.tanh(score / spec.softcap)
                scores.append(score)
            row = prior_formulas.Row(content[i][head], i, list(range(first, last + 1)), len(xs))
            says = [
                prior_formulas.said(prior, head, heads, row, weights.under(f"priors.{n}"))
                for n, prior in enumerate(spec.priors)
            ]
            scores = prior_formulas.scores_after(scores, says)
            scores = [
                s + sum(p.add(one) for p, one in zip(placings, pair, strict=True))
                for s, pair in zip(scores, pairs, strict=True)
            ]
            shares = prior_formulas.weights_after(prior_formulas.beside_sinks(scores, says), says)
            values = [v[first + n][group] for n in range(len(pairs))]
            for number, placing in enumerate(placings):
                if placing.value is not None:
                    values = add(values, [placing.value(pair[number]) for pair in pairs])
            joined += [sum(p * values[n][e] for n, p in enumerate(shares)) for e in range(size)]
        outputs.append(affine(joined, weights.get("o.weight"), weights.under("o").get("bias")))
    return outputs


def _projected(xs: list[Vector], weights: Weights, size: int, heads: int, groups: int) -> tuple[Any, Any, Any]:
    bias, found, start = weights.get("qkv.bias"), [], 0
    for name, count in (("q", heads), ("k", groups), ("v", groups)):
        rows = weights.get(f"{name}.weight")
        assert len(rows) == count * size
        own = bias and bias[start : start + len(rows)]
        start += len(rows)
        whole = [affine(x, rows, own) for x in xs]
        found.append([[token[h * size : (h + 1) * size] for h in range(count)] for token in whole])
    return found[0], found[1], found[2]


# ------------------------------------------------------------------------------------------------------ joins, depth


@formula(Pre)
def pre(spec: Pre, zs: list[Vector], sublayer: Sublayer, norm: Callable[..., Vector], weights: Weights) -> list[Vector]:
    return add(zs, sublayer([norm(z, weights.under("norm_in")) for z in zs]))


@formula(Post)
def post(
    spec: Post, zs: list[Vector], sublayer: Sublayer, norm: Callable[..., Vector], weights: Weights
) -> list[Vector]:
    return [norm(z, weights.under("norm_out")) for z in add(zs, sublayer(zs))]


def add(left: list[Vector], right: list[Vector]) -> list[Vector]:
    return [[a + b for a, b in zip(x, y, strict=True)] for x, y in zip(left, right, strict=True)]


@formula(PlainStack)
def plain_stack(spec: PlainStack, zs: list[Vector], blocks: list[Sublayer]) -> list[Vector]:
    for block in blocks:
        zs = block(zs)
    return zs


# ------------------------------------------------------------------------------------------------------ init


@formula(Normal)
def normal(spec: Normal, role: str, shape: tuple[int, int], width: int, depth: int) -> tuple[str, float]:
    return "normal", spec.std


@formula(GPT2)
def gpt2(spec: GPT2, role: str, shape: tuple[int, int], width: int, depth: int) -> tuple[str, float]:
    return "normal", spec.std / math.sqrt(2 * depth) if role in ("o", "ffn_out") else spec.std


@formula(XavierNormal)
def xavier_normal(spec: XavierNormal, role: str, shape: tuple[int, int], width: int, depth: int) -> tuple[str, float]:
    if role in ("embed", "position"):
        return "normal", 1 / math.sqrt(width)
    return "normal", spec.gain * math.sqrt(2 / (shape[0] + shape[1]))


@formula(XavierUniform)
def xavier_uniform(spec: XavierUniform, role: str, shape: tuple[int, int], width: int, depth: int) -> tuple[str, float]:
    if role in ("embed", "position"):
        return "normal", 1 / math.sqrt(width)
    return "uniform", spec.gain * math.sqrt(6 / (shape[0] + shape[1])) / math.sqrt(3)


# ------------------------------------------------------------------------------------------------------ whole model


def logits(architecture: Any, weights: Weights, tokens: list[int]) -> list[Vector]:
    """The whole decoder or encoder: embed, blocks, final norm where the last join asks for one, head."""
    width, table = architecture.width, weights.get("embed.weight")
    factor = math.sqrt(width) if architecture.scale_embedding else 1.0
    zs = [[factor * value for value in table[token]] for token in tokens]
    embedders = [p.embed for kind in architecture.position if (p := of(kind)(width)).embed is not None]
    for number, embed in enumerate(embedders):
        zs = add(zs, [embed(i, weights.under(f"positions.{number}")) for i in range(len(zs))])
    placings = position_formulas.in_blocks(architecture, weights)
    blocks = [
        _block(b, weights.under(f"blocks.{n}"), placings[n], architecture.form != "encoder")
        for n, b in enumerate(architecture.declarations)
    ]
    zs = of(architecture.stack)(zs, blocks)
    if isinstance(architecture.declarations[-1].join, Pre):
        zs = [of(architecture.norm)(z, weights.under("final_norm")) for z in zs]
    head = table if architecture.tie_head else weights.get("head.weight")
    return [affine(z, head, None) for z in zs]


def _block(declaration: Any, weights: Weights, placings: list[Placing], causal: bool) -> Sublayer:
    attention, ffn = of(declaration.attention), of(declaration.ffn)
    join, norm = of(declaration.join), of(declaration.norm)

    def run(zs: list[Vector]) -> list[Vector]:
        def attend(xs: list[Vector]) -> list[Vector]:
            return attention(xs, weights.under("attention"), placings, causal)

        def feed(xs: list[Vector]) -> list[Vector]:
            return [ffn(x, weights.under("ffn")) for x in xs]

        zs = join(zs, attend, norm, weights.under("attention_join"))
        return join(zs, feed, norm, weights.under("ffn_join"))

    return run


import position_formulas  # noqa: E402  # they stand on what is above, and register formulas of their own
import prior_formulas  # noqa: E402
