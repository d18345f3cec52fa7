"""A study as a person declares it: a base architecture, a training recipe, arms as diffs, a match rule, seeds."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from isoflop.model import Architecture
from isoflop.recipes import Declared, load_file
from isoflop.spec import Spec, SpecError, did_you_mean, field_paths, merge, merge_trees, read_toml
from isoflop.study.match import Match, Matched, solve
from isoflop.study.sweep import FIRST_SEED, Sweep, at_rate
from isoflop.train import Training, batches, read_corpus, validation_sets

BASE = "base"
"""The name of the arm that the others are compared with."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
"""What a study or an arm may be called: a name is also a folder."""
SHARED = ("data", "batch", "length", "steps", "validation_windows", "evaluate_lengths")
"""Fields of the training that no arm may change: every arm sees the same tokens in the same order (rule R6)."""

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
        match: what is held equal; a bare word is its budget.
        seeds: how many paired seeds (0, 1, ...), or a list of them.
        margin: a difference below this fraction of the base's loss is negligible (for the verdict `equivalent`).
        leave_one_out: for this arm, add arms that lack one of its changes each.
        sweep: tune the rate of every arm first; absent = the rate is that of `training` for all.
    """

    name: str = "study"
    base: str
    change: dict[str, Any] = {}
    training: Training
    arms: dict[str, dict[str, Any]] = {}
    match: Annotated[Match, BeforeValidator(lambda value: {"budget": value} if isinstance(value, str) else value)] = (
        Match()
    )
    seeds: Seeds = (0, 1, 2, 3, 4, 5)
    margin: Annotated[float, Field(gt=0, lt=1)] = 0.01
    leave_one_out: str | None = None
    sweep: Sweep | None = None

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self._check_names()
        self._check_seeds()
        self._check_left_out()
        self._check_knobs()
        return self

    def _check_names(self) -> None:
        for path, name in [("name", self.name), *((f"arms.{arm}", arm) for arm in self.arms)]:
            if not NAME.fullmatch(name):
                raise SpecError.at(
                    path, f"{name!r} must start with a letter or digit and hold only letters, digits and . _ + -"
                )
        taken: dict[str, str] = {}
        for name in self.arms:
            if name.lower() == BASE:
                raise SpecError.at(f"arms.{name}", f"{BASE!r} is the base itself; give the arm another name")
            if name.lower() in taken:
                raise SpecError.at(
                    f"arms.{name}",
                    f"differs from {taken[name.lower()]!r} only in case, and some disks tell folders apart by more; rename one",
                )
            taken[name.lower()] = name

    def _check_seeds(self) -> None:
        if len(set(self.seeds)) < len(self.seeds):
            twice = next(seed for seed in self.seeds if self.seeds.count(seed) > 1)
            raise SpecError.at("seeds", f"holds {twice} twice; a seed is one pair")
        if not self.seeds or min(self.seeds) < 0:
            raise SpecError.at("seeds", f"must hold at least one whole number of at least 0, came {list(self.seeds)}")
        if self.sweep is not None and max(self.seeds) >= FIRST_SEED:
            raise SpecError.at("seeds", f"from {FIRST_SEED} on are for tuning the rate, came {max(self.seeds)}")

    def _check_left_out(self) -> None:
        if self.leave_one_out is None:
            return
        if len(self.arms.get(self.leave_one_out, {})) < 2:
            raise SpecError.at(
                "leave_one_out", f"must name an arm with at least two changes, came {self.leave_one_out!r}"
            )
        for name in self._lacking():
            if name in self.arms:
                raise SpecError.at(
                    f"arms.{name}", "is the name of an arm that leave_one_out adds; give it another name"
                )

    def _check_knobs(self) -> None:
        known = field_paths(Architecture)
        arms = self.with_left_out()
        for path, knob in [("knob", self.match.knob), *((f"knobs.{arm}", of) for arm, of in self.match.knobs.items())]:
            if knob not in known and not knob.startswith("blocks."):
                raise SpecError.at(
                    f"match.{path}", f"{knob!r} is no field of an architecture.{did_you_mean(knob, known)}"
                )
        for name in self.match.knobs:
            if name not in arms:
                raise SpecError.at(f"match.knobs.{name}", f"names no arm; there are {', '.join(arms)}")

    def with_left_out(self) -> dict[str, dict[str, Any]]:
        """All arms, those of `leave_one_out` included."""
        return {**self.arms, **self._lacking()}

    def _lacking(self) -> dict[str, dict[str, Any]]:
        if self.leave_one_out is None:
            return {}
        whole = self.arms[self.leave_one_out]
        return {f"{self.leave_one_out}-without-{key}": {k: v for k, v in whole.items() if k != key} for key in whole}


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
            "sweep": self.study.sweep.dump() if self.study.sweep else None,
        }

    def with_rates(self, rates: Mapping[str, float]) -> Design:
        """The same study with the rates of some arms set."""
        arms = (
            replace(arm, training=arm.training.override({"rate": rates[arm.name]})) if arm.name in rates else arm
            for arm in self.arms
        )
        return replace(self, arms=tuple(arms))

    def at_rates(self, pairs: Iterable[tuple[str, float]], seeds: tuple[int, ...]) -> Design:
        """The study that tunes: an arm for each pair of an arm and a rate, named `arm@rate`, on seeds of its own."""
        by_name = {arm.name: arm for arm in self.arms}
        arms = [
            replace(by_name[name], name=at_rate(name, rate), training=by_name[name].training.override({"rate": rate}))
            for name, rate in pairs
        ]
        return Design(self.study.model_copy(update={"seeds": seeds, "sweep": None}), tuple(arms))

    def check_data(self) -> None:
        """Load the data once, to be told here and not by every run what is wrong with it.

        Raises:
            SpecError: the source cannot be used, is too short, or has token ids that an arm has no row for; arms would see
                it in different orders.
        """
        training = self.study.training
        self._check_order()
        corpus = read_corpus(training)
        batches(self.arms[0].architecture, training, corpus, seed=0)
        for arm in self.arms:
            try:
                loader = batches(arm.architecture, training, corpus, seed=0)
                loader.corpus.check_vocab(arm.architecture.vocab)
                validation_sets(arm.architecture, training, corpus, loader)
            except SpecError as error:
                raise error.under("arms", arm.name) from None

    def _check_order(self) -> None:
        remembers = {arm.name: arm.architecture.remembered > 0 for arm in self.arms}
        if self.study.training.data.order is None and len(set(remembers.values())) > 1:
            names = ", ".join(name for name, does in remembers.items() if does)
            message = f"must be 'continuous', so that arms with a memory ({names}) and those without see the same order"
            raise SpecError.at("training.data.order", f"{message}; it is absent")

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
    declared = _load_base(path.parent, table.get("base"))
    study = Study(**{**table, "training": merge(declared.training, table.get("training", {}))})
    try:
        base = declared.architecture.override(study.change)
    except SpecError as error:
        raise error.under("change") from None
    return design(study, base)


def _load_base(folder: Path, name: Any) -> Declared:
    if not isinstance(name, str):
        raise SpecError.at("base", f"must name a recipe or an architecture file, came {name!r}")
    beside = folder / name
    try:
        return load_file(beside if beside.suffix == ".toml" or beside.is_file() else name)
    except SpecError as error:
        raise error.under("base") from None


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
    training = _training(study.training, change.get("training", {}))
    _check_lengths(architecture, training)
    matched = solve(base, architecture, name, study.match, training.length)
    return Arm(name, change, matched.architecture if matched else architecture, training, matched)


def _training(shared: Training, change: Any) -> Training:
    """The recipe of one arm: another rate or optimizer, the same tokens."""
    try:
        training = shared.override(change)
    except SpecError as error:
        raise error.under("training") from None
    for name in SHARED:
        if getattr(training, name) != getattr(shared, name):
            raise SpecError.at(
                f"training.{name}",
                "must be that of the base: every arm sees the same tokens in the same order. Make it a study of its own",
            )
    return training


def _check_lengths(architecture: Architecture, training: Training) -> None:
    lengths = {"length": (training.length,), "evaluate_lengths": training.evaluate_lengths or ()}
    for name, length in ((name, length) for name, declared in lengths.items() for length in declared):
        try:
            for side in architecture.sides:
                side.check_length(length)
        except SpecError as error:
            raise error.under("training", name) from None
