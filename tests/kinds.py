"""Every kind, every value of its fields and every pair of them, read from the registry.

A kind enters the property tests by being registered. Values come from the type of a field; numbers that a type cannot
tell come from `NUMBERS`.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import numpy as np

from isoflop.model import Architecture, Block
from isoflop.model.slots import Attention
from isoflop.spec import Slot, Spec, SpecError, merge, slots

NUMBERS: dict[str, float] = {
    "b": -0.3,
    "Embed.width": 10,
    "Prior.heads": 1,
    "Share.count": 2,
    "Position.buckets": 8,
    "Position.reach": 3,
    "Scaling.attention_factor": 1.3,
    "Scaling.factor": 3.0,
    "Scaling.fraction": 1.0,
    "Scaling.long_factors": 5.0,
    "Scaling.original_length": 64,
    "Scaling.short_factors": 2.0,
    "base": 50.0,
    "beta": 0.3,
    "depth": 3,
    "dropout": 0.25,
    "eps": 0.05,
    "fraction": 0.5,
    "gain": 0.5,
    "gamma": 0.5,
    "head_width": 8,
    "heads": 2,
    "hidden": 20,
    "kv_heads": 2,
    "latent": 12,
    "query_latent": 10,
    "rotary_width": 4,
    "value_width": 6,
    "logit": 0.7,
    "length": 12,
    "memory": 2,
    "multiple": 8,
    "offset": -1.0,
    "scale": 0.9,
    "share": 0.3,
    "slope": 1.5,
    "sigma": 3.0,
    "softcap": 0.7,
    "std": 0.1,
    "types": 2,
    "vocab": 29,
    "w": 0.2,
    "width": 48,
    "window": 3,
}
"""A legal value, other than the default, of every field that holds a number, by its name or its slot and name."""

ACROSS: dict[str, Any] = {"form": "encoder_decoder"}
NEEDS: dict[tuple[str, str, Any], dict[str, Any]] = {
    ("gaussian", "centre", "anywhere"): {"form": "encoder"},
    ("", "cross", "multi_head"): ACROSS,
    ("", "cross", "latent"): ACROSS,
    ("", "attention", "hard_coded"): {"position": {"kind": "none"}},
}
"""What must be declared beside a value of a kind's field, or beside a kind."""

NOT_ALONE = frozenset(
    {
        ("cross", "window"),
        ("cross", "value_residual"),
        ("cross", "memory"),
        ("centre", "diagonal"),
        ("measure", "slope"),
    }
)
"""Two names of a path (or a field and its value) that are refused where the walk meets them: a window and values of the first
block are of one's own text; the diagonal stands in attention to an encoder, see `_diagonal`."""

TINY: dict[str, Any] = {
    "vocab": 13,
    "width": 24,
    "depth": 2,
    "position": [{"kind": "rope"}],
    "norm": {"kind": "layer"},
    "join": {"kind": "pre"},
    "attention": {"kind": "multi_head", "heads": 6},
    "ffn": {"kind": "plain", "activation": {"kind": "gelu"}, "hidden": 24},
}
"""The architecture that settings are laid over. Six heads, since two ALiBi rules agree for powers of two; GELU, since the
kink of ReLU is no friend of comparisons."""

UNPAIRED = frozenset(
    {
        ("position", "scaling"),
        ("cross", "priors"),
        ("cross", "qk_norm"),
        ("attention_norm",),
        ("embed_norm",),
        ("head", "norm"),
    }
)
"""Where kinds stand whose fields meet no others in pairs: a scaling makes a list of frequencies, whatever is beside it; priors
and norms do here what they do where their pairs are met, in attention to one's own text and in the blocks."""

ELSEWHERE = frozenset({"blocks", "encoder", "plugins"})
"""Fields of an architecture that hold no setting of their own: per-block changes are `block_settings`, those of an encoder
`encoder_settings`."""


@dataclass(frozen=True)
class Setting:
    """One value of one field.

    Attributes:
        path: where, from the architecture, e.g. ("ffn", "activation", "form").
        value: plain data.
        owner: the change that puts the kind which has this field in place.
    """

    path: tuple[str, ...]
    value: Any
    owner: Mapping[str, Any]

    @property
    def change(self) -> dict[str, Any]:
        """What is laid over an architecture to make this setting."""
        return combine(self.owner, put(self.path, self.value))

    def __str__(self) -> str:
        kind = self.value.get("kind", self.value) if isinstance(self.value, Mapping) else self.value
        owners = [owner for owner in _kinds_in(self.owner) if owner not in {self.path[0], "multi_head"}]
        return f"{'.'.join(self.path)}={kind}" + (f"({','.join(owners)})" if owners else "")


def put(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    """A nested table with one value in it."""
    for name in reversed(path):
        value = {name: value}
    return value


class ConflictError(Exception):
    """Two changes want the same field to be different things."""


def combine(left: Any, right: Any) -> Any:
    """Two changes as one. Two kinds of position make a list; any other field can have one value only."""
    if left == right:
        return left
    if not isinstance(left, Mapping) or not isinstance(right, Mapping) or _kinds_differ(left, right):
        raise ConflictError
    ways = {"position": _kinds_together}
    both = {key: ways.get(key, combine)(left[key], right[key]) for key in left if key in right}
    return {**left, **right, **both}


def _kinds_differ(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    return "kind" in left and "kind" in right and left["kind"] != right["kind"]


def _kinds_together(left: Any, right: Any) -> Any:
    if isinstance(left, list) or isinstance(right, list):
        raise ConflictError
    return [left, right] if _kinds_differ(left, right) else combine(left, right)


def tiny(*changes: Mapping[str, Any]) -> Architecture:
    """The tiny architecture with changes applied."""
    table: Any = TINY
    for change in changes:
        table = merge(table, change)
    return Architecture.parse(table)


@cache
def settings() -> tuple[Setting, ...]:
    """Every value of every field of an architecture, one at a time."""
    return (*(setting for setting in _walk(Architecture, (), {}, (), set()) if _stands(setting)), *_diagonal())


def _stands(setting: Setting) -> bool:
    cross = setting.change.get("cross")
    crosses = cross is None or Attention.kinds[cross["kind"]].crosses
    steps = pairwise((*setting.path, str(setting.value)))
    return crosses and NOT_ALONE.isdisjoint(steps)


def _diagonal() -> Iterator[Setting]:
    """What leads from one text to another."""
    path = ("cross", "priors", "measure")
    gaussian = {"cross": {"kind": "multi_head", "priors": {"kind": "penalty", "measure": {"kind": "gaussian"}}}}
    owner = combine(ACROSS, gaussian)
    yield Setting((*path, "centre"), "diagonal", owner)
    yield Setting((*path, "slope"), NUMBERS["slope"], combine(owner, put((*path, "centre"), "diagonal")))


def paired_settings() -> tuple[Setting, ...]:
    """The settings that are met in pairs."""
    return tuple(setting for setting in settings() if setting.path[:-1] not in UNPAIRED)


@cache
def block_settings() -> tuple[dict[str, Any], ...]:
    """Every setting that one block may have alone and that differs from its neighbours, in block 1."""
    alone = [setting.change for setting in settings() if setting.path[0] in Block.model_fields]
    changes = [change for change in ({"blocks": [{"at": "1", **change}]} for change in alone) if legal(change)]
    return tuple(change for change in changes if tiny(change).declarations != tiny().declarations)


@cache
def encoder_settings() -> tuple[dict[str, Any], ...]:
    """Every other kind, and every field of attention once, in the encoder of an encoder-decoder alone."""
    changes = [{"depth": 3}, {"blocks": [{"at": "1", "attention": {"window": 3}}]}]
    changes += [setting.change for setting in _representatives().values()]
    found = [{**ACROSS, "encoder": change} for change in changes]
    return tuple(change for change in found if legal(change) and tiny(change).reader != tiny(ACROSS).reader)


def legal(*changes: Mapping[str, Any]) -> bool:
    """An architecture may have these changes at once."""
    try:
        tiny(*changes)
    except SpecError:
        return False
    return True


def model_slots() -> dict[str, type[Slot]]:
    """The slots whose kinds belong to a model."""
    return {name: slot for name, slot in slots().items() if slot.__module__ == "isoflop.model.slots"}


def _walk(
    cls: type[Spec], path: tuple[str, ...], owner: Mapping[str, Any], above: tuple[type, ...], deep: set[type]
) -> Iterator[Setting]:
    """The fields of a kind that stands three steps down are walked where it is first met."""
    for name, field in cls.model_fields.items():
        if not path and name in ELSEWHERE:
            continue
        here = (*path, name)
        for choice in _choices(cls, name, field.annotation, field.default):
            if isinstance(choice, type):
                if choice in above:
                    continue
                table = {"kind": choice.kind, **required(choice)}
                beside = combine(owner, NEEDS.get((getattr(cls, "kind", ""), name, choice.kind), {}))
                yield Setting(here, table, beside)
                if choice not in deep:
                    deep.update({choice} if len(here) > 2 else ())
                    yield from _walk(choice, here, combine(beside, put(here, table)), (*above, choice), deep)
            else:
                yield Setting(here, choice, combine(owner, NEEDS.get((getattr(cls, "kind", ""), name, choice), {})))


def _choices(cls: type[Spec], name: str, annotation: Any, default: Any) -> Iterator[Any]:
    """The values of a field, the default left out; a kind stands for all its values."""
    for choice in _alternatives(annotation):
        if get_origin(choice) is Literal:
            yield from (value for value in get_args(choice) if value != default)
        elif choice is bool:
            yield from (value for value in (False, True) if value is not default)
        elif choice in (int, float):
            yield choice(_number(cls, name))
        elif isinstance(choice, type) and issubclass(choice, Slot):
            yield from choice.kinds.values()
        elif choice is not type(None):
            raise AssertionError(f"{cls.__name__}.{name}: tests/kinds.py knows no values of type {choice}; add them")


def _alternatives(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for argument in get_args(annotation):
            yield from _alternatives(argument)
    elif origin is tuple:
        yield from _alternatives(get_args(annotation)[0])
    else:
        yield annotation


def _number(cls: type[Spec], name: str) -> float:
    default = cls.model_fields[name].default
    key = f"{cls.slot().__name__}.{name}" if issubclass(cls, Slot) else name
    key = key if key in NUMBERS else name
    if key in NUMBERS and NUMBERS[key] != default:
        return NUMBERS[key]
    if isinstance(default, int | float) and default:
        return default * 2 if isinstance(default, int) else default / 2
    raise AssertionError(f"{cls.__name__}.{name}: add a value that is not {default!r} to NUMBERS in tests/kinds.py")


def required(kind: type[Slot]) -> dict[str, Any]:
    """Values for the fields of a kind that have no default."""
    needed = {name: field for name, field in kind.model_fields.items() if field.is_required()}
    found = {name: next(_choices(kind, name, field.annotation, ...), None) for name, field in needed.items()}
    return {name: {"kind": value.kind} if isinstance(value, type) else value for name, value in found.items()}


def _kinds_in(change: Any) -> list[str]:
    if not isinstance(change, Mapping):
        return []
    own = [change["kind"]] if "kind" in change else []
    return own + [kind for item in change.values() for kind in _kinds_in(item)]


# ------------------------------------------------------------------------------------------------------------- pairs


@dataclass(frozen=True)
class Cover:
    """Architectures that together hold every legal pair of settings, and the pairs that are refused."""

    architectures: tuple[tuple[str, Architecture], ...]
    refused: frozenset[tuple[str, str]]


@cache
def cover() -> Cover:
    """Greedy pairwise cover: each architecture takes as many pairs not met before as it can hold."""
    named = [(str(setting), setting.change) for setting in paired_settings()]
    named += [(f"block 1: {block_name(change)}", change) for change in _block_representatives()]
    named += [(f"encoder: {encoder_name(change)}", change) for change in encoder_settings()]
    changes = [change for _, change in named]
    open_pairs = np.triu(np.array([[_compatible(a, b) for b in changes] for a in changes]), 1)
    open_pairs |= open_pairs.T
    refused: set[tuple[str, str]] = set()
    found: list[tuple[str, Architecture]] = []
    while open_pairs.any():
        first, second = (int(i) for i in np.argwhere(open_pairs)[0])
        if not legal(combine(changes[first], changes[second])):
            refused.add((named[first][0], named[second][0]))
            open_pairs[first, second] = open_pairs[second, first] = False
            continue
        chosen = _extend([first, second], changes, open_pairs)
        open_pairs[np.ix_(chosen, chosen)] = False
        whole: Any = {}
        for index in chosen:
            whole = combine(whole, changes[index])
        found.append((" + ".join(named[index][0] for index in chosen), tiny(whole)))
    return Cover(tuple(found), frozenset(refused))


def block_name(change: Mapping[str, Any]) -> str:
    """A short name of a change of one block."""
    return " ".join(f"{key}={item}" for key, item in change["blocks"][0].items() if key != "at")


def encoder_name(change: Mapping[str, Any]) -> str:
    """A short name of a change of the encoder."""
    return " ".join(f"{key}={item}" for key, item in change["encoder"].items())


def _extend(chosen: list[int], changes: list[dict[str, Any]], open_pairs: np.ndarray) -> list[int]:
    whole = combine(changes[chosen[0]], changes[chosen[1]])
    tried = set(chosen)
    while True:
        gain = open_pairs[chosen].sum(0)
        gain[list(tried)] = 0
        best = int(gain.argmax())
        if not gain[best]:
            return chosen
        tried.add(best)
        try:
            wider = combine(whole, changes[best])
        except ConflictError:
            continue
        if legal(wider):
            whole, chosen = wider, [*chosen, best]


def _compatible(left: dict[str, Any], right: dict[str, Any]) -> bool:
    if left is right:
        return False
    try:
        return combine(left, right) not in (left, right)
    except ConflictError:
        return False


def _block_representatives() -> list[dict[str, Any]]:
    """Every other kind, and every field of attention once, in block 1 alone."""
    changes = [{"blocks": [{"at": "1", **setting.change}]} for setting in _representatives().values()]
    return [change for change in changes if legal(change) and tiny(change).declarations != tiny().declarations]


def _representatives() -> dict[str, Setting]:
    """Every kind that a block names, and every field of attention once."""
    found: dict[str, Setting] = {}
    for setting in settings():
        whole_kind = len(setting.path) == 1 and setting.path[0] in Block.model_fields
        field_of_attention = len(setting.path) == 2 and setting.path[0] == "attention"
        if whole_kind or field_of_attention:
            found.setdefault(str(setting) if whole_kind else ".".join(setting.path), setting)
    return found


@contextmanager
def registry_restored() -> Iterator[None]:
    """Kinds that are registered inside are forgotten after, so that no other test meets them."""
    before = {slot: dict(slot.kinds) for slot in slots().values()}
    try:
        yield
    finally:
        for slot, kinds in before.items():
            slot.kinds.clear()
            slot.kinds.update(kinds)
