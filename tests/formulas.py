"""The formula of every kind, number by number in Python's own fp64, and a whole model put together from them.

A new kind adds its formula here; the equation tests then run it on every setting the kind has.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from isoflop.model.activation import GELU, Identity, ReLU, Sigmoid, SiLU
from isoflop.model.arrangement import Parallel, Serial
from isoflop.model.attention import HardCodedAttention, Latent, MultiHead
from isoflop.model.attention.declared import Scored
from isoflop.model.embedding import Direct, Factorised
from isoflop.model.feedforward import GLU
from isoflop.model.feedforward import Plain as PlainFeedForward
from isoflop.model.head import LinearHead, TransformHead
from isoflop.model.init import GPT2, Normal, XavierNormal, XavierUniform
from isoflop.model.join import Post, Pre, ResPost, Sandwich
from isoflop.model.norm import RMS, Layer
from isoflop.model.norm import Nothing as NoNorm
from isoflop.model.position import ALiBi, Learned, Nothing, RoPE, Sinusoidal
from isoflop.model.share import Groups
from isoflop.model.share import Nothing as NothingShared
from isoflop.model.stack import Plain as PlainStack
from isoflop.model.value_residual import Fixed, Lerp
from isoflop.model.value_residual import Learned as LearnedResidual
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
    gains = [1 + w for w in weights.get("gain")] if spec.unit_offset else weights.get("gain")
    return [g * value / root for g, value in zip(gains, x, strict=True)]


@formula(NoNorm)
def no_norm(spec: NoNorm, x: Vector, weights: Weights) -> Vector:
    return x


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
    return 1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x))  # neither overflows


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
    spec: MultiHead,
    xs: list[Vector],
    weights: Weights,
    placings: list[Placing],
    causal: bool,
    first: list[Any],
    source: list[Vector] | None = None,
) -> list[Vector]:
    """Attention of a text to itself, or to a source."""
    heads, groups = spec.heads, spec.kv_heads or spec.heads
    size = spec.head_width or len(xs[0]) // heads
    scale = spec.scale or 1 / math.sqrt(size)
    seen = xs if source is None else source
    biases = _biases(weights, heads * size, groups * size, len(weights.get("gate.weight") or []))
    q, k, v = (
        _projected(texts, weights.get(f"{name}.weight"), biases.get(name), size, count)
        for name, texts, count in (("q", xs, heads), ("k", seen, groups), ("v", seen, groups))
    )
    assert bool(biases) == (spec.bias in (True, "qkv"))
    assert (weights.get("o.bias") is not None) == (spec.bias is True)
    if spec.qk_norm is not None:
        norm = of(spec.qk_norm)
        q = [[norm(head, weights.under("q_norm")) for head in token] for token in q]
        k = [[norm(head, weights.under("k_norm")) for head in token] for token in k]
    v = _with_first_values(spec.value_residual, v, first, weights.under("values.mix"))
    outputs = []
    for x, joined in zip(xs, _attended(spec, q, k, v, scale, weights, placings, causal), strict=True):
        gate = _gate(spec.gate, x, weights, biases.get("gate"), heads, size)
        outputs.append(
            affine([g * o for g, o in zip(gate, joined, strict=True)], weights.get("o.weight"), weights.get("o.bias"))
        )
    return outputs


Headed = list[list[Vector]]
"""A vector for each token and head."""


def _attended(
    spec: Scored,
    q: Headed,
    k: Headed,
    v: Headed,
    scale: float,
    weights: Weights,
    placings: list[Placing],
    causal: bool,
    rotary: int | None = None,
) -> list[Vector]:
    """What each query reads, its heads one after the other; `rotary`: of queries and keys that much is turned."""
    heads, groups, size, content = len(q[0]), len(k[0]), len(v[0][0]), q
    for placing in placings:
        q, k = (
            [
                [[*placing.rotate(head[:rotary], position), *head[rotary or len(head) :]] for head in token]
                for position, token in enumerate(texts)
            ]
            for texts in (q, k)
        )
    outputs = []
    for i in range(len(q)):
        reach = spec.window or len(q) + len(k)
        begin, last = max(0, i - reach + 1), i if causal else min(len(k) - 1, i + reach - 1)
        joined: Vector = []
        for head in range(heads):
            group = head // (heads // groups)
            scores, pairs = [], []
            for j in range(begin, last + 1):
                pair = [Pair(head, heads, i, j, q[i][head], k[j][group], causal, p.own, p.shared) for p in placings]
                pairs.append(pair)
                related = sum(p.relate(one) for p, one in zip(placings, pair, strict=True))
                score = scale * (dot(q[i][head], k[j][group]) + related)
                if spec.softcap is not None:
                    score = spec.softcap * math.tanh(score / spec.softcap)
                scores.append(score)
            row = prior_formulas.Row(content[i][head], i, list(range(begin, last + 1)), len(k))
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
            values = [v[begin + n][group] for n in range(len(pairs))]
            for number, placing in enumerate(placings):
                if placing.value is not None:
                    values = add(values, [placing.value(pair[number]) for pair in pairs])
            joined += [sum(p * values[n][e] for n, p in enumerate(shares)) for e in range(size)]
        outputs.append(joined)
    return outputs


@formula(Latent)
def latent_attention(
    spec: Latent,
    xs: list[Vector],
    weights: Weights,
    placings: list[Placing],
    causal: bool,
    first: list[Any],
    source: list[Vector] | None = None,
) -> list[Vector]:
    """Queries, keys and values of every head, out of latents; the first part of a key is one for all heads."""
    heads, shared = spec.heads, spec.rotary_width
    own = spec.head_width or len(xs[0]) // heads
    size = shared + own
    norm = of(spec.latent_norm)
    asking, seen = xs, xs if source is None else source
    if spec.query_latent is not None:
        asking = [
            norm(affine(x, weights.get("q_latent.q_latent.weight"), None), weights.under("q_latent.1")) for x in xs
        ]
    q = _projected(asking, weights.get("q.weight"), None, size, heads)
    latents = [norm(affine(x, weights.get("kv_latent.weight"), None), weights.under("norm")) for x in seen]
    parts = _projected(latents, weights.get("k.weight"), None, own, heads)
    keys = [affine(x, weights.get("k_shared.weight") or [], None) for x in seen]
    k = [[[*key, *part] for part in token] for key, token in zip(keys, parts, strict=True)]
    v = _projected(latents, weights.get("v.weight"), None, spec.value_width or own, heads)
    scale = spec.scale or 1 / math.sqrt(size)
    read = _attended(spec, q, k, v, scale, weights, placings, causal, rotary=shared)
    return [affine(one, weights.get("o.weight"), None) for one in read]


def _with_first_values(residual: Slot | None, v: Any, first: list[Any], weights: Weights) -> Any:
    """The values of a block; those of the first are kept in `first`."""
    first.append(v)
    if residual is None or len(first) == 1:
        return v
    mix = of(residual)
    return [
        [[mix(a, b, weights) for a, b in zip(*heads, strict=True)] for heads in zip(*tokens, strict=True)]
        for tokens in zip(first[0], v, strict=True)
    ]


@formula(Fixed)
def fixed_shares(spec: Fixed, first: float, own: float, weights: Weights) -> float:
    return spec.first * first + spec.own * own


@formula(LearnedResidual)
def learned_shares(spec: LearnedResidual, first: float, own: float, weights: Weights) -> float:
    shares = weights.get("shares")
    return shares[0] * first + shares[1] * own


@formula(Lerp)
def learned_share(spec: Lerp, first: float, own: float, weights: Weights) -> float:
    share = weights.get("share")
    return share * first + (1 - share) * own


@formula(HardCodedAttention)
def hard_coded_attention(
    spec: HardCodedAttention,
    xs: list[Vector],
    weights: Weights,
    placings: list[Placing],
    causal: bool,
    first: list[Any],
) -> list[Vector]:
    """Values of all allowed places by the density of their distance."""
    size, height = spec.head_width or len(xs[0]) // spec.heads, 1 / (spec.sigma * math.sqrt(2 * math.pi))
    assert (weights.get("v.bias") is not None) == (weights.get("o.bias") is not None) == spec.bias
    values, outputs = _projected(xs, weights.get("v.weight"), weights.get("v.bias"), size, spec.heads), []
    for i in range(len(xs)):
        joined = [0.0] * (spec.heads * size)
        for head, j in itertools.product(range(spec.heads), range(i + 1 if causal else len(xs))):
            away = j - i - spec.offset[head % len(spec.offset)]
            share = height * math.exp(-(away**2) / (2 * spec.sigma**2))
            for e in range(size):
                joined[head * size + e] += share * values[j][head][e]
        outputs.append(affine(joined, weights.get("o.weight"), weights.get("o.bias")))
    return outputs


def _gate(gate: str, x: Vector, weights: Weights, bias: Vector | None, heads: int, size: int) -> Vector:
    """A factor for each component that the heads put out, one after the other."""
    if gate == "none":
        assert weights.get("gate.weight") is None
        return [1.0] * (heads * size)
    numbers = [sigmoid(Sigmoid(), value) for value in affine(x, weights.get("gate.weight"), bias)]
    return [numbers[n // size] if gate == "head" else numbers[n] for n in range(heads * size)]


def _biases(weights: Weights, q: int, kv: int, gate: int) -> dict[str, Vector]:
    """The parts of the biases: of one stack to one's own text; of q and the gate, k and v to another."""
    whole, found = weights.get("qkv.bias"), {}
    stacks: list[tuple[Vector | None, dict[str, int]]] = [(whole, {"q": q, "k": kv, "v": kv, "gate": gate})]
    if weights.get("kv.bias") is not None:
        stacks = [(weights.get("q.bias"), {"q": q, "gate": gate}), (weights.get("kv.bias"), {"k": kv, "v": kv})]
    for stack, sizes in stacks:
        start = 0
        for name, count in sizes.items() if stack else ():
            found[name] = stack[start : start + count]
            start += count
    return found


def _projected(xs: list[Vector], rows: Matrix, bias: Vector | None, size: int, heads: int) -> list[list[Vector]]:
    """Each token's vector as heads."""
    assert len(rows) == heads * size
    whole = [affine(x, rows, bias) for x in xs]
    return [[token[h * size : (h + 1) * size] for h in range(heads)] for token in whole]


# ------------------------------------------------------------------------------------------------------ joins, depth


@formula(Pre)
def pre(spec: Pre, zs: list[Vector], sublayer: Sublayer, norm: Callable[..., Vector], weights: Weights) -> list[Vector]:
    return add(zs, sublayer([norm(z, weights.under("norm_in")) for z in zs]))


@formula(Post)
def post(
    spec: Post, zs: list[Vector], sublayer: Sublayer, norm: Callable[..., Vector], weights: Weights
) -> list[Vector]:
    return [norm(z, weights.under("norm_out")) for z in add(zs, sublayer(zs))]


@formula(Sandwich)
def sandwich(
    spec: Sandwich, zs: list[Vector], sublayer: Sublayer, norm: Callable[..., Vector], weights: Weights
) -> list[Vector]:
    ys = sublayer([norm(z, weights.under("norm_in")) for z in zs])
    return add(zs, [norm(y, weights.under("norm_branch")) for y in ys])


@formula(ResPost)
def respost(
    spec: ResPost, zs: list[Vector], sublayer: Sublayer, norm: Callable[..., Vector], weights: Weights
) -> list[Vector]:
    return add(zs, [norm(y, weights.under("norm_branch")) for y in sublayer(zs)])


Joined = Callable[[str, list[Vector], Sublayer], list[Vector]]
"""A stream and a sublayer through the join of a name."""


@formula(Serial)
def serial(spec: Serial, zs: list[Vector], joined: Joined, sublayers: dict[str, Sublayer]) -> list[Vector]:
    for name, sublayer in sublayers.items():
        zs = joined(f"{name}_join", zs, sublayer)
    return zs


@formula(Parallel)
def parallel(spec: Parallel, zs: list[Vector], joined: Joined, sublayers: dict[str, Sublayer]) -> list[Vector]:
    def total(xs: list[Vector]) -> list[Vector]:
        each = [sublayer(xs) for sublayer in sublayers.values()]
        return [[sum(values) for values in zip(*rows, strict=True)] for rows in zip(*each, strict=True)]

    if spec.norms == "shared":
        return joined("join", zs, total)
    moved = [joined(f"{name}_join", zs, sublayer) for name, sublayer in sublayers.items()]
    changes = [[[m - a for m, a in zip(y, z, strict=True)] for y, z in zip(ys, zs, strict=True)] for ys in moved]
    for change in changes:
        zs = add(zs, change)
    return zs


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


# ------------------------------------------------------------------------------------------------------ around the blocks


@formula(NothingShared)
def nothing_shared(spec: NothingShared, depth: int) -> list[int]:
    return list(range(depth))


@formula(Groups)
def groups(spec: Groups, depth: int) -> list[int]:
    return [next(j for j in range(depth) if j * spec.count // depth == i * spec.count // depth) for i in range(depth)]


Map = Callable[[Vector], Vector]


@formula(Direct)
def direct(spec: Direct, weights: Weights) -> tuple[Map, Map]:
    return (lambda x: x), (lambda x: x)


@formula(Factorised)
def factorised(spec: Factorised, weights: Weights) -> tuple[Map, Map]:
    bias = weights.get("sum_map.bias" if spec.maps == "sum" else "token_map.bias")
    assert (bias is not None) == spec.bias

    def stretch(x: Vector) -> Vector:
        assert len(x) == spec.width
        return affine(x, weights.get("embed_map.weight"), bias)

    return ((lambda x: x), stretch) if spec.maps == "sum" else (stretch, (lambda x: x))


@formula(LinearHead)
def linear_head(spec: LinearHead, z: Vector, matrix: Matrix, weights: Weights) -> Vector:
    reader = weights.get("head_map.weight")
    hidden = affine(z, reader, None) if reader else z
    bias = weights.get("bias")
    assert (bias is not None) == spec.bias
    return affine([(spec.scale or 1.0) * value for value in hidden], matrix, bias)


@formula(TransformHead)
def transform_head(spec: TransformHead, z: Vector, matrix: Matrix, weights: Weights) -> Vector:
    dense_bias, act = weights.get("before.dense.bias"), of(spec.activation)
    assert (dense_bias is not None) == spec.dense_bias
    hidden = [act(value) for value in affine(z, weights.get("before.head_map.weight"), dense_bias)]
    hidden = of(spec.norm)(hidden, weights.under("before.norm"))
    bias = weights.get("bias")
    assert (bias is not None) == spec.bias
    return affine([(spec.scale or 1.0) * value for value in hidden], matrix, bias)


# ------------------------------------------------------------------------------------------------------ whole model


def logits(architecture: Any, weights: Weights, tokens: list[int], source: list[int] | None = None) -> list[Vector]:
    """The whole model: embed, blocks, final norm where the last join asks for one, head; an encoder first, where there is one."""
    memory = None if source is None else _stream(architecture.reader, _of_encoder(weights), source)
    zs = _stream(architecture, weights, tokens, memory)
    own = weights.under("head")
    matrix = weights.get("embed.weight") if architecture.tie_head else own.get("weight")
    return [_capped(of(architecture.head)(z, matrix, own), architecture.head.softcap) for z in zs]


def _of_encoder(weights: Weights) -> Weights:
    """Weights by the names that they would have in an encoder alone; the table of tokens is that of the decoder."""
    shared = {n: value for n, value in weights.values.items() if n.startswith(("embed.", "embed_map.", "token_map."))}
    own = {n.removeprefix("encoder."): value for n, value in weights.values.items() if n.startswith("encoder.")}
    return Weights({**shared, **own})


def _stream(architecture: Any, weights: Weights, tokens: list[int], memory: list[Vector] | None = None) -> list[Vector]:
    """What the head reads, or a decoder of its encoder."""
    zs = _embedded(architecture, weights, tokens)
    placings = position_formulas.in_blocks(architecture, weights)
    owners = of(architecture.share)(architecture.depth)
    first: list[Any] = []
    blocks = [
        _block(setting, weights.under(f"blocks.{owner}"), placings[owner], first, memory)
        for setting, owner in zip(architecture.settings, owners, strict=True)
    ]
    zs = of(architecture.stack)(zs, blocks)
    if not isinstance(architecture.declarations[-1].join, Post):
        zs = [of(architecture.norm)(z, weights.under("final_norm")) for z in zs]
    return zs


def _embedded(architecture: Any, weights: Weights, tokens: list[int]) -> list[Vector]:
    table, width = weights.get("embed.weight"), architecture.width
    factor = math.sqrt(width) if architecture.scale_embedding else 1.0
    stretch_token, stretch_sum = of(architecture.embed)(weights)
    zs = [stretch_token([factor * value for value in table[token]]) for token in tokens]
    embedders = [p.embed for kind in architecture.position if (p := of(kind)(len(zs[0]))).embed is not None]
    for number, embed in enumerate(embedders):
        zs = add(zs, [embed(i, weights.under(f"positions.{number}")) for i in range(len(zs))])
    if architecture.types:
        zs = add(zs, [weights.get("types.weight")[0]] * len(zs))
    if architecture.embed_norm is not None:
        zs = [of(architecture.embed_norm)(z, weights.under("embed_norm")) for z in zs]
    zs = [stretch_sum(z) for z in zs]
    assert all(len(z) == width for z in zs)
    return zs


def _capped(z: Vector, softcap: float | None) -> Vector:
    return z if softcap is None else [softcap * math.tanh(value / softcap) for value in z]


def _block(
    setting: Any, weights: Weights, placings: list[Placing], first: list[Any], memory: list[Vector] | None
) -> Sublayer:
    declaration, crossing = setting.block, setting.crossing
    attention, ffn = of(declaration.attention), of(declaration.ffn)
    join, norm = of(declaration.join), declaration.norm
    norms = {"attention_join": declaration.attention_norm or norm}
    assert (memory is None) == (crossing is None)

    def run(zs: list[Vector]) -> list[Vector]:
        def attend(xs: list[Vector]) -> list[Vector]:
            return attention(xs, weights.under("attention"), placings, setting.causal, first)

        def cross(xs: list[Vector]) -> list[Vector]:
            return of(crossing.block.attention)(xs, weights.under("cross"), [], False, [], memory)

        def feed(xs: list[Vector]) -> list[Vector]:
            return [ffn(x, weights.under("ffn")) for x in xs]

        def joined(name: str, zs: list[Vector], sublayer: Sublayer) -> list[Vector]:
            return join(zs, sublayer, of(norms.get(name, norm)), weights.under(name))

        across = {} if crossing is None else {"cross": cross}
        return of(declaration.arrangement)(zs, joined, {"attention": attend, **across, "ffn": feed})

    return run


import position_formulas  # noqa: E402  # they stand on what is above, and register formulas of their own
import prior_formulas  # noqa: E402
