"""What stands between queries and keys: terms, the scoring they are part of, and one evaluation of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from isoflop.model.places import Part, Places
from isoflop.model.relation import Addition, Mixture, Relation

Once = Callable[[Any, Callable[[], Any]], Any]
"""`once(key, make)`: `make()` the first time a key comes up in a forward pass, its value after that."""


class Term(nn.Module):
    """What a position kind (or a prior) does in attention, in the stages it names; `kernel.eager` is the order of stages.

    `rotate`: turns queries and keys before they meet (and before keys are cached). `relate`: is added to q k^T.
    `absolute`: the scores of some heads become their absolute values. `scale`: multiplies the scores. `add`: is added to them. `sink`: a
    logit beside the keys, which takes weight and gives nothing. `mix`: another distribution is mixed into the weights.
    `values`: adds to the output from the weights.
    """

    stages: frozenset[str] = frozenset()

    @property
    def key(self) -> Hashable:
        """Terms of equal key are alike wherever their relations are `fixed`, so that blocks share what one has computed."""
        return self

    def rotate(self, x_BHTE: Tensor, positions_BT: Tensor, once: Once) -> Tensor:
        """Queries or keys at these positions, rotated. `once` remembers for these positions alone."""
        raise self._missing("rotate")

    def relate(self, meeting: Meeting) -> Relation:
        """A number for every pair, multiplied by the scale as q k^T is, before the softcap."""
        raise self._missing("relate")

    def absolute(self, meeting: Meeting) -> Tensor:
        """Whether the scores of a head become their absolute values, (H,) of booleans."""
        raise self._missing("absolute")

    def scale(self, meeting: Meeting) -> Relation:
        """A factor for every pair, after the softcap and before the mask."""
        raise self._missing("scale")

    def add(self, meeting: Meeting) -> Relation:
        """A bias for every pair."""
        raise self._missing("add")

    def sink(self, meeting: Meeting) -> Tensor:
        """A logit for each head, (H,)."""
        raise self._missing("sink")

    def mix(self, meeting: Meeting) -> Mixture:
        """A distribution over the keys and its share of the weights."""
        raise self._missing("mix")

    def values(self, meeting: Meeting) -> Addition:
        """What the weights add to the output besides p v."""
        raise self._missing("values")

    def _missing(self, stage: str) -> TypeError:
        return TypeError(f"{type(self).__name__} has no {stage} stage")


@dataclass(frozen=True)
class Scoring:
    """How one attention layer turns queries and keys into weights; see `kernel.eager` for the formula.

    Attributes:
        scale: factor on q k^T.
        causal: a query sees no later position.
        window: keys a query sees, itself included; None for all.
        softcap: bound c of `c tanh(score / c)`; None for none.
        dropout: probability, on the weights, in training mode.
        terms: what positions (and priors) do.
    """

    scale: float
    causal: bool
    window: int | None
    softcap: float | None
    dropout: float
    terms: tuple[Term, ...]

    def acting(self, stage: str) -> tuple[Term, ...]:
        """The terms that act in a stage."""
        return tuple(term for term in self.terms if stage in term.stages)

    @property
    def stages(self) -> frozenset[str]:
        """The stages that a kernel must be able to run (`rotate` is done before it)."""
        own = {"cap": self.softcap is not None, "dropout": self.dropout > 0}
        return frozenset().union(*(term.stages for term in self.terms), {s for s in own if own[s]}) - {"rotate"}


@dataclass(frozen=True)
class Told:
    """What the terms of an evaluation say, by stage."""

    relate: tuple[Relation, ...]
    scale: tuple[Relation, ...]
    add: tuple[Relation, ...]
    mix: tuple[Mixture, ...] = ()
    values: tuple[Addition, ...] = ()
    sink_H: Tensor | None = None
    absolute_H: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """What relations and additions are made of, in order."""
        return [tensor for said in self._said for tensor in said.tensors]

    def of(self, tensors: Sequence[Tensor]) -> Told:
        """The same made of other tensors, in the order of `tensors`."""
        left = iter(tensors)
        remade = iter([said.of(list(islice(left, len(said.tensors)))) for said in self._said])
        relate, scale, add, values = (
            tuple(islice(remade, len(said))) for said in (self.relate, self.scale, self.add, self.values)
        )
        return replace(self, relate=relate, scale=scale, add=add, values=values)

    def part(self, part: Part) -> Told:
        """What is said of a part of the pairs."""

        def cut(said: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(each.part(part.queries, part.keys) for each in said)

        return replace(self, relate=cut(self.relate), scale=cut(self.scale), add=cut(self.add), mix=cut(self.mix))

    def split(self, count: int, batch: int) -> list[Told]:
        """What is said of so many sequences of the batch at a time. Mixtures are not split."""
        stages = {
            name: [said.split(count, batch) for said in getattr(self, name)] for name in ("relate", "scale", "add")
        }
        return [
            replace(self, **{name: tuple(said[number] for said in stage) for name, stage in stages.items()})
            for number in range(-(-batch // count))
        ]

    @property
    def _said(self) -> tuple[Relation | Addition, ...]:
        return (*self.relate, *self.scale, *self.add, *self.values)


@dataclass(frozen=True)
class Meeting:
    """One evaluation of attention, as it enters a kernel.

    Attributes:
        content_BHTE: the queries before any rotation, for what is predicted from them.
        q_BHTE, k_BGSE, v_BGSE: queries, keys and values, rotated.
        scoring: how scores are made.
        places: where queries and keys stand.
        once: it remembers for all blocks of one forward pass.
        dropout: probability on the weights; 0 outside training.
    """

    content_BHTE: Tensor
    q_BHTE: Tensor
    k_BGSE: Tensor
    v_BGSE: Tensor
    scoring: Scoring
    places: Places
    once: Once
    dropout: float = 0.0
    _told: list[Told] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def told(self) -> Told:
        """Every term's say, once for an evaluation, however many parts it is computed in."""
        # No `cached_property`: torch.compile cannot trace its lock.
        if not len(self._told):
            self._told.append(self._ask())
        return self._told[0]

    def _ask(self) -> Told:
        acting = self.scoring.acting
        sinks = [term.sink(self) for term in acting("sink")]
        absolute = [term.absolute(self) for term in acting("absolute")]
        return Told(
            tuple(term.relate(self) for term in acting("relate")),
            tuple(term.scale(self) for term in acting("scale")),
            tuple(term.add(self) for term in acting("add")),
            tuple(term.mix(self) for term in acting("mix")),
            tuple(term.values(self) for term in acting("values")),
            torch.stack(sinks).logsumexp(0) if len(sinks) else None,
            torch.stack(absolute).any(0) if len(absolute) else None,
        )
