"""What attentions that score queries against keys declare alike, and what is made of it."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from isoflop.model.slots import Attention, Heads, Position, Prior, Setting
from isoflop.model.term import Scoring, Term
from isoflop.spec import OneOrMany, SpecError

Size = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class Scored(Attention):
    """Fields that say how scores become weights, whatever queries and keys are made of."""

    heads: Size = 4
    window: Size | None = None
    softcap: Positive | None = None
    scale: Positive | None = None
    dropout: Probability = 0.0
    priors: OneOrMany[Prior] = ()

    def scoring(self, setting: Setting) -> tuple[Scoring, Terms]:
        """How scores are made in a block, and the modules that take part in it."""
        shape = self.shape(setting.architecture.width)
        inside = [position for position in setting.block.position if position.stages - {"embed"}]
        positions = [position.term(setting, shape.query, _met_by(position, shape)) for position in inside]
        priors = [prior.term(setting, shape.query, shape.width) for prior in self.priors]
        scoring = Scoring(
            scale=self.scale or shape.width**-0.5,
            causal=setting.causal,
            window=self.window,
            softcap=self.softcap,
            dropout=self.dropout,
            terms=(*positions, *priors),
        )
        return scoring, (positions, priors)

    def check(self, setting: Setting) -> None:
        if setting.across and self.window is not None:
            raise SpecError.at(
                "window", f"is about places in one text, and this attention looks at another; came {self.window}"
            )
        for index, prior in enumerate(self.priors):
            try:
                prior.check(setting)
            except SpecError as error:
                raise error.under("priors", *([index] if len(self.priors) > 1 else [])) from None


def _met_by(position: Position, shape: Heads) -> int:
    """Width of what a position meets of a head: all of it, unless it is there to rotate."""
    return shape.rotary if position.stages == {"rotate"} else shape.width


Terms = tuple[list[Term], list[Term]]
"""Those of positions and those of priors. They stand apart in a module, so that the name of a prior's parameter does not depend
on how many positions there are."""


def check_divides(field: str, count: int, what: str, whole: int) -> None:
    """Refuse a field that leaves a rest.

    Raises:
        SpecError: names the nearest values that do not.
    """
    if whole % count:
        near = divisors_near(whole, count)
        raise SpecError.at(field, f"must divide {what} {whole}, came {count}; nearest that do: {near}")


def divisors_near(whole: int, wanted: int) -> str:
    """The divisors of a number next to a wanted one."""
    small = [n for n in range(1, math.isqrt(whole) + 1) if whole % n == 0]
    divisors = sorted({*small, *(whole // n for n in small)})
    below = [n for n in divisors if n < wanted][-1:]
    above = [n for n in divisors if n > wanted][:1]
    return " and ".join(map(str, below + above))
