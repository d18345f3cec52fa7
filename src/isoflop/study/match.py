"""Equal budgets: one declared knob of an arm is turned until the arm costs what the base costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field

from isoflop.model import Architecture
from isoflop.plan.cost import count_parameters, price
from isoflop.spec import DEFAULT, Spec, SpecError, nest

TOLERANCE = {"params": 0.005, "flops": 0.02}
"""The largest residual that passes for equal, as a fraction, by budget."""
LARGEST = 1 << 20
"""No knob is turned beyond this."""


class Match(Spec):
    """What is held equal between arms, and the knob that is turned for it.

    Fields:
        budget: `params`, `flops` (training FLOPs per token), `tokens` or `none`. All arms see the same tokens in any
            case; the last two turn no knob, `none` says that a difference in size is meant.
        knob: dotted path of the whole number that is turned.
        knobs: another knob for some arms, by name.
        tolerance: largest residual as a fraction; absent = 0.005 for params, 0.02 for flops.
    """

    budget: Literal["params", "flops", "tokens", "none"] = "params"
    knob: str = "ffn.hidden"
    knobs: dict[str, str] = {}
    tolerance: Annotated[float, Field(gt=0, lt=1)] | None = None


class Infeasible(ValueError):  # noqa: N818  # the name of the outcome, as the exit code's
    """No value of the knob meets the budget; the message names the nearest one."""


@dataclass(frozen=True)
class Matched:
    """An arm at equal budget.

    Attributes:
        architecture: the arm, with its knob turned.
        field, value: the knob, and what it was turned to; None where it was left alone.
        base, arm: what both cost, in units of the budget.
    """

    architecture: Architecture
    budget: str
    field: str | None
    value: int | None
    base: float
    arm: float

    @property
    def residual(self) -> float:
        """(arm - base) / base."""
        return self.arm / self.base - 1

    def dump(self) -> dict[str, Any]:
        row = {key: value for key, value in asdict(self).items() if key != "architecture"}
        return {**row, "residual": self.residual}


def solve(base: Architecture, arm: Architecture, name: str, match: Match, length: int) -> Matched | None:
    """`arm` at the budget of `base`, or None where nothing is matched.

    An arm that is within the tolerance as it stands is left alone: every field that need not change keeps the two
    models comparable (and their seeds paired).

    Raises:
        SpecError: the knob is no whole-number field of this arm.
        Infeasible: no value comes within the tolerance.
    """
    if match.budget not in TOLERANCE:
        return None
    tolerance = match.tolerance or TOLERANCE[match.budget]
    target = _cost(base, match.budget, length)
    knob = match.knobs.get(name, match.knob)
    as_it_stands = Matched(arm, match.budget, None, None, target, _cost(arm, match.budget, length))
    if abs(as_it_stands.residual) <= tolerance:
        return as_it_stands
    try:
        best = _turn(_make_way(arm, knob), knob, target, lambda a: _cost(a, match.budget, length), match.budget)
    except SpecError as error:
        raise SpecError(f"the knob {knob!r} cannot be turned here: {error}") from None
    if abs(best.residual) > tolerance:
        raise Infeasible(
            f"arm {name!r}: no value of {knob} meets the {match.budget} of the base within {tolerance:.2%}; nearest is "
            f"{knob}={best.value}, {best.arm:,.0f} against {best.base:,.0f} ({best.residual:+.2%}). Choose another knob, or raise match.tolerance"
        )
    return best


def _make_way(arm: Architecture, knob: str) -> Architecture:
    """The arm without what means nothing once the knob is given, such as the `multiple` that an absent `hidden` is rounded to."""
    table = knob.rpartition(".")[0]
    try:
        arm.override(nest({knob: 1}))
    except SpecError as error:
        paths = [".".join(map(str, problem.path)) for problem in error.problems]
        return arm.override(
            nest({path: DEFAULT for path in paths if table and path.rpartition(".")[0] == table and path != knob})
        )
    return arm


def _turn(arm: Architecture, knob: str, target: float, cost: Callable[[Architecture], float], budget: str) -> Matched:
    """The legal value of the knob whose cost is nearest to the target, by bisection (costs grow with the knob)."""

    @cache
    def at(value: int) -> Matched | None:
        try:
            architecture = arm.override(nest({knob: value}))
        except SpecError:
            return None
        return Matched(architecture, budget, knob, value, target, cost(architecture))

    def legal(value: int) -> Matched | None:
        """At the nearest legal value: a width must suit its heads, for instance."""
        tries = (v for distance in range(257) for v in (value + distance, value - distance) if v >= 1)
        return next((found for v in tries if (found := at(v)) is not None), None)

    if legal(1) is None:
        arm.override(nest({knob: 1}))  # raises what is wrong with the knob itself
    low, high = 1, 2
    while high < LARGEST and (found := legal(high)) is not None and found.arm < target:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        found = legal(middle)
        low, high = (middle, high) if found is not None and found.arm < target else (low, middle)
    near = [found for value in (low, high) if (found := legal(value)) is not None]
    return min(near, key=lambda found: abs(found.residual))


def _cost(architecture: Architecture, budget: str, length: int) -> float:
    if budget == "params":
        return count_parameters(architecture)
    return price(architecture, length).training_flops_per_token
