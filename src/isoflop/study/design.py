"""A study as a person declares it: a base architecture, a training recipe, arms as diffs, a match rule, seeds."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from isoflop.model import Architecture
from isoflop.recipes import load_file
from isoflop.spec import Spec, SpecError, merge_trees, read_toml
from isoflop.study.match import Match, Matched, solve
from isoflop.train import Training

BASE = "base"
"""The name of the arm that the others are compared with."""

NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
"""What a study or an arm may be called: a name is also a folder."""

Seeds = Annotated[
    tuple[int, ...],
    BeforeValidator(
        lambda value: tuple(range(value)) if isinstance(value, int) and not isinstance(value, bool) else _tuple(value)
    ),
]


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class Study(Spec):
    """What a study file holds.

    Fields:
        name: of the study; its folder is called so.
        base: a recipe or a file, relative to the study file.
        change: what differs from it in every arm, the base included.
        training: the recipe that all arms share.
        arms: by name, what changes: fields of the architecture, and a table `training` where the recipe changes.
        match: what is held equal.
        seeds: how many paired seeds (0, 1, ...), or a list of them.
        margin: a difference below this fraction of the base's loss is negligible (for the verdict `equivalent`).
        leave_one_out: for this arm, add arms that lack one of its changes each.
    """

    name: str = "study"
    base: str
    change: dict[str, Any] = {}
    training: Training
    arms: dict[str, dict[str, Any]] = {}
    match: Match = Match()
    seeds: Seeds = (0, 1, 2, 3, 4, 5)
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.01
    leave_one_out: str | None = None

    @model_validator(mode="after")
    def _names_and_seeds(self) -> Self:
        for path, name in [("name", self.name), *((f"arms.{arm}", arm) for arm in self.arms)]:
            if not NAME.fullmatch(name):
                raise SpecError.at(
                    path, f"{name!r} must start with a letter or digit and hold only letters, digits and . _ + -"
                )
        if BASE in self.arms:
            raise SpecError.at(f"arms.{BASE}", f"{BASE!r} is the base itself; give the arm another name")
        if len(set(self.seeds)) < len(self.seeds):
            twice = next(seed for seed in self.seeds if self.seeds.count(seed) > 1)
            raise SpecError.at("seeds", f"holds {twice} twice; a seed is one pair")
        if not self.seeds or min(self.seeds) < 0:
            raise SpecError.at("seeds", f"must hold at least one whole number of at least 0, came {list(self.seeds)}")
        for name in self.match.knobs:
            if name not in self.arms:
                raise SpecError.at(f"match.knobs.{name}", f"names no arm; there are {', '.join(self.arms)}")
        if self.leave_one_out is not None and len(self.arms.get(self.leave_one_out, {})) < 2:
            raise SpecError.at(
                "leave_one_out", f"must name an arm with at least two changes, came {self.leave_one_out!r}"
            )
        return self

    def with_left_out(self) -> dict[str, dict[str, Any]]:
        """All arms, those of `leave_one_out` included."""
        if self.leave_one_out is None:
            return self.arms
        whole = self.arms[self.leave_one_out]
        lacking = {f"{self.leave_one_out}-without-{key}": {k: v for k, v in whole.items() if k != key} for key in whole}
        return {**self.arms, **lacking}


@dataclass(frozen=True)
class Arm:
    """One arm, resolved: what it is called, how it differs, and all that a run needs."""

    name: str
    change: dict[str, Any]
    architecture: Architecture
    training: Training
    matched: Matched | None

    def dump(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "change": self.change,
            "architecture": self.architecture.dump(),
            "training": self.training.dump(),
            "knob": self.matched.dump() if self.matched else None,
        }


@dataclass(frozen=True)
class Design:
    """A study whose arms are solved: what is run."""

    study: Study
    arms: tuple[Arm, ...]

    @property
    def digest(self) -> str:
        content = json.dumps(self.dump_content(), sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]

    def dump_content(self) -> dict[str, Any]:
        return {
            "name": self.study.name,
            "base": self.arms[0].architecture.dump(),
            "training": self.study.training.dump(),
            "arms": [arm.dump() for arm in self.arms],
            "match": self.study.match.dump(),
            "seeds": list(self.study.seeds),
            "margin": self.study.margin,
        }

    def dump(self) -> dict[str, Any]:
        """The content of `study.json`."""
        return {"format": 1, **self.dump_content(), "digest": self.digest}


def load_study(path: str | Path, change: dict[str, Any] | None = None) -> Design:
    """A study file, with fields changed, every arm checked and matched. Nothing is trained.

    Raises:
        SpecError: the file or an arm cannot be used; the path says which.
        Infeasible: an arm cannot meet the budget.
    """
    path = Path(path)
    table = merge_trees(read_toml(path), change or {})
    if not isinstance(table.get("base"), str):
        raise SpecError.at("base", "must name a recipe or an architecture file")
    base = path.parent / table["base"]
    declared = load_file(base if base.suffix == ".toml" else table["base"], table.get("change") or {})
    training = merge_trees(declared.training, table.get("training") or {})
    return design(Study(**{**table, "training": training}), declared.architecture)


def design(study: Study, base: Architecture) -> Design:
    """The arms of a study against an architecture, checked and matched."""
    _check_lengths(base, study.training)
    arms = [Arm(BASE, {}, base, study.training, None)]
    for name, change in study.with_left_out().items():
        try:
            arms.append(_arm(study, base, name, change))
        except SpecError as error:
            raise error.under("arms", name) from None
    return Design(study, tuple(arms))


def _arm(study: Study, base: Architecture, name: str, change: dict[str, Any]) -> Arm:
    architecture = base.override({key: value for key, value in change.items() if key != "training"})
    training = study.training.override(change.get("training", {}))
    _check_lengths(architecture, training)
    matched = solve(base, architecture, name, study.match, training.length)
    return Arm(name, change, matched.architecture if matched else architecture, training, matched)


def _check_lengths(architecture: Architecture, training: Training) -> None:
    try:
        architecture.check_length(training.length)
    except SpecError as error:
        raise error.under("training", "length") from None
