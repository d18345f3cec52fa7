"""The formulas of local priors, one row of one head at a time; `formulas.multi_head` puts them into attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from formulas import Vector, Weights, affine, dot, formula, of, softmax
from isoflop.model.prior import (
    Distance,
    Gaussian,
    GaussianTransformer,
    HardCoded,
    Mixing,
    Multiplicative,
    Penalty,
    Sink,
)


@dataclass(frozen=True)
class Row:
    """A query of one head: its content, its place, the keys that it may see, the number of tokens where keys stand."""

    query: Vector
    i: int
    keys: list[int]
    length: int


@dataclass
class Says:
    """What a prior does to a row, key by key: |s|, s f + b, and (1 - share) p + share d; a sink stands beside the keys."""

    absolute: bool = False
    factors: Vector = field(default_factory=list)
    biases: Vector = field(default_factory=list)
    share: float = 0.0
    mixed: Vector = field(default_factory=list)
    sink: float | None = None


def said(spec: object, head: int, heads: int, row: Row, weights: Weights) -> Says:
    """What a prior says to a head; nothing where the head is not chosen."""
    chosen = sorted(spec.heads) if spec.heads is not None else list(range(heads))
    if head not in chosen:
        return Says()
    return of(spec)(chosen.index(head), row, weights)


def softplus(x: float) -> float:
    return math.log(1 + math.exp(x))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def number(
    value: float, source: str, into: Callable[[float], float], turn: int, row: Row, weights: Weights, hidden: bool
) -> float:
    """As declared, learned for all or for each, or predicted from the query."""
    if source == "fixed":
        return value
    if source == "learned":
        [raw] = weights.get("raw")
        return into(raw)
    raw = weights.get("raw")[turn]
    if source == "per_head":
        return into(raw)
    width, x = len(row.query), row.query
    if hidden:
        x = [math.tanh(y) for y in affine(x, weights.get("inner")[turn * width : (turn + 1) * width], None)]
    return into(dot(weights.get("outer")[turn], x) + raw)


@formula(Distance)
def distance(spec: Distance, turn: int, row: Row, weights: Weights) -> Vector:
    return [abs(row.i - j) for j in row.keys]


@formula(Gaussian)
def gaussian(spec: Gaussian, turn: int, row: Row, weights: Weights) -> Vector:
    sigma = number(
        spec.sigma, spec.sigma_is, lambda x: softplus(x) + 1e-3, turn, row, weights.under("sigma"), hidden=True
    )
    inside = weights.under("centre")
    if spec.centre in ("self", "diagonal"):
        start, slope = spec.offset[turn % len(spec.offset)], spec.slope if spec.centre == "diagonal" else 1
        centre = slope * row.i + number(
            start, spec.offset_is, lambda x: x, turn, row, inside.under("offset"), hidden=True
        )
    else:
        last = row.i if spec.centre == "before" else row.length - 1
        centre = last * number(0.0, "predicted", sigmoid, turn, row, inside.under("share"), hidden=True)
    return [(j - centre) ** 2 / (2 * sigma**2) for j in row.keys]


@formula(GaussianTransformer)
def gaussian_transformer(spec: GaussianTransformer, turn: int, row: Row, weights: Weights) -> Vector:
    w = number(spec.w, spec.w_is, softplus, turn, row, weights.under("w"), hidden=False)
    b = number(spec.b, spec.b_is, lambda x: -softplus(x), turn, row, weights.under("b"), hidden=False)
    return [abs(w * (row.i - j) ** 2 + b) for j in row.keys]


def weighed(spec: Penalty | Mixing | Multiplicative, turn: int, row: Row, weights: Weights) -> Vector:
    """gamma G."""
    inside = weights.under("weighed")
    gamma = number(spec.gamma, spec.gamma_is, softplus, turn, row, inside.under("gamma"), hidden=False)
    return [gamma * held for held in of(spec.measure)(turn, row, inside.under("measure"))]


@formula(Penalty)
def penalty(spec: Penalty, turn: int, row: Row, weights: Weights) -> Says:
    return Says(biases=[-held for held in weighed(spec, turn, row, weights)])


@formula(Mixing)
def mixture(spec: Mixing, turn: int, row: Row, weights: Weights) -> Says:
    share = number(spec.beta, spec.beta_is, sigmoid, turn, row, weights.under("beta"), hidden=False)
    return Says(share=share, mixed=softmax([-held for held in weighed(spec, turn, row, weights)]))


@formula(Multiplicative)
def multiplicative(spec: Multiplicative, turn: int, row: Row, weights: Weights) -> Says:
    held = weighed(spec, turn, row, weights)
    factors = [math.exp(-value) for value in held] if spec.decay == "exp" else softmax([-value for value in held])
    if spec.on == "probabilities":
        return Says(biases=[math.log(factor) for factor in factors])
    return Says(absolute=spec.on == "absolute", factors=factors)


@formula(HardCoded)
def hard_coded(spec: HardCoded, turn: int, row: Row, weights: Weights) -> Says:
    centre = row.i + spec.offset[turn % len(spec.offset)]
    height = 1 / (spec.sigma * math.sqrt(2 * math.pi))
    return Says(share=1.0, mixed=[height * math.exp(-(((j - centre) / spec.sigma) ** 2) / 2) for j in row.keys])


@formula(Sink)
def sink(spec: Sink, turn: int, row: Row, weights: Weights) -> Says:
    return Says(sink=number(spec.logit, spec.logit_is, lambda x: x, turn, row, weights.under("logit"), hidden=False))


def beside_sinks(scores: Vector, says: list[Says]) -> Vector:
    """Weights of the keys beside those of the sinks, which are dropped."""
    sinks = [say.sink for say in says if say.sink is not None]
    return softmax([*scores, *sinks])[: len(scores)]


def scores_after(scores: Vector, says: list[Says]) -> Vector:
    """Absolute values, then factors, then biases, of all priors."""
    if any(say.absolute for say in says):
        scores = [abs(score) for score in scores]
    for say in says:
        scores = [s * f for s, f in zip(scores, say.factors, strict=True)] if say.factors else scores
    for say in says:
        scores = [s + b for s, b in zip(scores, say.biases, strict=True)] if say.biases else scores
    return scores


def weights_after(shares: Vector, says: list[Says]) -> Vector:
    """Mixtures, in their order."""
    for say in says:
        if say.mixed:
            shares = [(1 - say.share) * p + say.share * d for p, d in zip(shares, say.mixed, strict=True)]
    return shares
