"""Which tensor of theirs is which parameter of ours, said once for both directions.

A `Key` names a parameter of ours and the tensors that it is made of; `{n}` is the number of a block. Its `Form` says how the
numbers lie in their tensor and in ours. `to_ours` and `to_theirs` go through the same keys, and neither leaves a tensor out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from isoflop.model import Transformer
from isoflop.model.slots import Heads
from isoflop.spec import Problem, SpecError, did_you_mean

ALIASES = {
    "head.weight": "embed.weight",
    "encoder.embed.weight": "embed.weight",
    "decoder.embed.weight": "embed.weight",
}
"""Parameters of ours that a tied model does not have, by what stands for them."""


class Form:
    """How the numbers of one tensor lie: here as in ours."""

    def ours(self, theirs: Tensor, heads: Heads) -> Tensor:
        """Their tensor as ours."""
        return theirs

    def theirs(self, ours: Tensor, heads: Heads) -> Tensor:
        """Our tensor as theirs."""
        return ours


class Transposed(Form):
    """A matrix that is held as (in, out)."""

    def ours(self, theirs: Tensor, heads: Heads) -> Tensor:
        return theirs.t()

    def theirs(self, ours: Tensor, heads: Heads) -> Tensor:
        return ours.t()


class Grouped(Form):
    """Rows of q, k and v by key/value head: its queries, its key, its value, then those of the next. Ours: all q, all k, all v."""

    def ours(self, theirs: Tensor, heads: Heads) -> Tensor:
        queries, groups = heads.query // heads.key_value, heads.key_value
        grouped = theirs.unflatten(0, (groups, queries + 2, heads.width))
        return torch.cat([part.flatten(0, 2) for part in grouped.split([queries, 1, 1], dim=1)])

    def theirs(self, ours: Tensor, heads: Heads) -> Tensor:
        rows = [heads.query * heads.width, *[heads.key_value * heads.width] * 2]
        parts = [part.unflatten(0, (heads.key_value, -1, heads.width)) for part in ours.split(rows)]
        return torch.cat(parts, dim=1).flatten(0, 2)


@dataclass(frozen=True)
class Offset(Form):
    """A table whose first rows stand for no position of ours; exported, they are zeros."""

    rows: int

    def ours(self, theirs: Tensor, heads: Heads) -> Tensor:
        return theirs[self.rows :]

    def theirs(self, ours: Tensor, heads: Heads) -> Tensor:
        return torch.cat([ours.new_zeros(self.rows, *ours.shape[1:]), ours])


class Row(Form):
    """A vector that is held as a matrix of one row."""

    def ours(self, theirs: Tensor, heads: Heads) -> Tensor:
        return theirs.squeeze(0)

    def theirs(self, ours: Tensor, heads: Heads) -> Tensor:
        return ours.unsqueeze(0)


AS_IS, TRANSPOSED, GROUPED, ROW = Form(), Transposed(), Grouped(), Row()


@dataclass(frozen=True)
class Key:
    """One parameter of ours, and the tensors of theirs that stand in it one above the other."""

    ours: str
    theirs: tuple[str, ...]
    form: Form = AS_IS

    def at(self, number: int) -> Key:
        """The key of one block."""
        return Key(self.ours.format(n=number), tuple(name.format(n=number) for name in self.theirs), self.form)


def key(ours: str, *theirs: str, form: Form = AS_IS) -> Key:
    """A key; several tensors are the parts of a stacked matrix, in the order of its parts."""
    return Key(ours, theirs, form)


def module(ours: str, *theirs: str, form: Form = AS_IS) -> list[Key]:
    """The keys of a linear map: its matrix in a form, and its bias. Biases are never transposed."""
    of_bias = AS_IS if isinstance(form, Transposed) else form
    weight = key(f"{ours}.weight", *(f"{name}.weight" for name in theirs), form=form)
    return [weight, key(f"{ours}.bias", *(f"{name}.bias" for name in theirs), form=of_bias)]


def norm(ours: str, theirs: str) -> list[Key]:
    """The keys of a normalisation."""
    return [key(f"{ours}.gain", f"{theirs}.weight"), key(f"{ours}.bias", f"{theirs}.bias")]


@dataclass(frozen=True)
class Bound:
    """A key that a model has a parameter for."""

    key: Key
    parameter: nn.Parameter
    rows: list[int]
    heads: Heads


def bind(keys: Iterable[Key], model: Transformer) -> list[Bound]:
    """The keys whose parameter the model has, block by block.

    Raises:
        SpecError: a parameter of the model has no key.
    """
    found: dict[str, Bound] = {}
    parameters = dict(model.named_parameters())
    for number, one in _each(keys, model.architecture.depth):
        if one.ours in parameters:
            heads = model.architecture.declarations[number].attention.shape(model.architecture.width)
            rows = _rows(model, one.ours) if len(one.theirs) > 1 else [parameters[one.ours].shape[0]]
            found[one.ours] = Bound(one, parameters[one.ours], rows, heads)
    homeless = [Problem((), f"{name} has no place in this family") for name in parameters if name not in found]
    if homeless:
        raise SpecError(homeless)
    return list(found.values())


def to_ours(
    keys: Sequence[Key], theirs: Mapping[str, Tensor], model: Transformer, unused: Iterable[str] = ()
) -> dict[str, Tensor]:
    """The parameters of our model out of their tensors.

    Args:
        keys: of the family.
        theirs: tensors by name.
        model: what the tensors are for; its own values are not looked at.
        unused: patterns of tensors that hold no weights, such as masks and frequencies.

    Raises:
        SpecError: lists every tensor that is missing, left over or of another shape, with the nearest name.
    """
    bound = bind(keys, model)
    wanted = [name for one in bound for name in one.key.theirs]
    problems = [_missing(name, theirs, wanted) for name in wanted if name not in theirs]
    tied = _tied(keys, theirs, bound)
    left = theirs.keys() - set(wanted) - set(tied)
    left = sorted(name for name in left if not any(fnmatchcase(name, pattern) for pattern in unused))
    problems += [Problem((name,), f"is no tensor of this model.{did_you_mean(name, wanted)}") for name in left]
    problems += [problem for name, source in tied.items() for problem in _untied(name, source, theirs)]
    if problems:
        raise SpecError(problems)
    made = {one.key.ours: _joined(one, [theirs[name] for name in one.key.theirs], problems) for one in bound}
    if problems:
        raise SpecError(problems)
    return made


def to_theirs(keys: Sequence[Key], model: Transformer) -> dict[str, Tensor]:
    """Their tensors out of the parameters of our model; a tied matrix once."""
    made: dict[str, Tensor] = {}
    for one in bind(keys, model):
        whole = one.key.form.theirs(one.parameter.detach(), one.heads)
        split = whole.split(one.rows) if len(one.key.theirs) > 1 else [whole]
        made |= {name: part.contiguous().clone() for name, part in zip(one.key.theirs, split, strict=True)}
    return made


def _each(keys: Iterable[Key], depth: int) -> Iterator[tuple[int, Key]]:
    for one in keys:
        numbers = range(depth) if "{n}" in one.ours else [0]
        yield from ((number, one.at(number)) for number in numbers)


def _rows(model: Transformer, name: str) -> list[int]:
    """The rows of each part of a stacked matrix, or of its bias."""
    owner, _, _ = name.rpartition(".")
    roles = model.get_submodule(owner).roles["weight"]  # type: ignore[index, union-attr]
    assert isinstance(roles, Mapping), f"{name} is no stack of parts"
    return list(roles.values())


def _joined(one: Bound, parts: list[Tensor], problems: list[Problem]) -> Tensor:
    for name, part, rows in zip(one.key.theirs, parts, one.rows, strict=True):
        if len(parts) > 1 and len(part) != rows:
            problems.append(Problem((name,), f"must have {rows} rows, came {len(part)}"))
    made = parts[0] if len(parts) == 1 else torch.cat(parts)
    with contextlib.suppress(RuntimeError):  # sizes that do not divide: the shape below says it
        made = one.key.form.ours(made, one.heads)
    if made.shape != one.parameter.shape:
        shapes = " and ".join(str(tuple(part.shape)) for part in parts)
        wanted = tuple(one.parameter.shape)
        problems.append(Problem((one.key.theirs[0],), f"has shape {shapes}, which makes no {one.key.ours} of {wanted}"))
    return made.contiguous()


def _missing(name: str, theirs: Mapping[str, Tensor], wanted: Sequence[str]) -> Problem:
    return Problem((name,), f"is missing.{did_you_mean(name, theirs.keys() - set(wanted))}")


def _tied(keys: Iterable[Key], theirs: Mapping[str, Tensor], bound: Sequence[Bound]) -> dict[str, str]:
    """Tensors in the file that a tied model does not hold, by the tensor that they must equal."""
    held = {one.key.ours: one.key.theirs[0] for one in bound}
    return {
        one.theirs[0]: held[ALIASES[one.ours]]
        for one in keys
        if one.ours in ALIASES and one.ours not in held and one.theirs[0] in theirs
    }


def _untied(name: str, source: str, theirs: Mapping[str, Tensor]) -> list[Problem]:
    if source not in theirs or torch.equal(theirs[name], theirs[source]):
        return []
    return [Problem((name,), f"must equal {source}, since the two are tied; if they are not, say so in config.json")]
