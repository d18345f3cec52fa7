"""The modules that own matrices, and the role each matrix plays.

Every parameter has a *role* (`q`, `ffn_out`, `gain`, ...). Initialisation, weight decay, growth and parallel plans go by
role, never by the name or the class of a module. A module declares the roles of its own parameters in `roles`; a matrix
that is several matrices stacked by rows (q, k and v, say) declares its parts, so that each part is initialised exactly as
if it stood alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import EllipsisType
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VECTOR_ROLES = frozenset({"gain", "bias"})
"""Roles that weight decay leaves alone: decaying a gain or a bias pulls it to zero without making the net simpler."""

Roles = Mapping[str, str | Mapping[str, int]]
"""Of a module's own parameters: a role, or the rows of each role for a matrix that is stacked."""


class Linear(nn.Module):
    """`y = x Wᵀ (+ b)`, where W may be several matrices of one input stacked by rows (one matmul instead of three).

    Args:
        width_in: size of the last axis of x.
        parts: rows of each part by role, in order, e.g. `{"q": 64, "k": 32, "v": 32}`.
        bias: add a bias over all rows.
    """

    def __init__(self, width_in: int, parts: Mapping[str, int], bias: bool = False) -> None:
        super().__init__()
        rows = sum(parts.values())
        self.weight = nn.Parameter(torch.empty(rows, width_in))
        self.bias = nn.Parameter(torch.empty(rows)) if bias else None
        self.roles: Roles = {"weight": dict(parts), "bias": "bias"}

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """A table of vectors: `rows` by `width`, looked up by index."""

    def __init__(self, rows: int, width: int, role: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        self.roles: Roles = {"weight": role}

    def forward(self, index: Tensor) -> Tensor:
        return F.embedding(index, self.weight)


class Role(NamedTuple):
    """What a parameter is for: its role (parts joined by `+`), whether weight decay applies, and its block."""

    role: str
    decay: bool
    block: int | None


@dataclass(frozen=True)
class Part:
    """One matrix or vector as initialisation sees it: a named, possibly partial view of a parameter."""

    name: str
    role: str
    block: int | None
    shape: tuple[int, ...]
    parameter: str
    rows: slice | EllipsisType

    @property
    def fan_in(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def fan_out(self) -> int:
        return self.shape[0] if self.shape else 1


def parameter_roles(model: nn.Module) -> dict[str, Role]:
    """The role of every parameter by name; a tied parameter appears once, under its first name.

    Raises:
        TypeError: a module owns a parameter and declares no role for it.
    """
    found: dict[str, Role] = {}
    for name, role, _ in _declared(model):
        roles = [role] if isinstance(role, str) else list(role)
        found[name] = Role("+".join(roles), not VECTOR_ROLES.issuperset(roles), _block_of(name))
    return found


def parts(model: nn.Module) -> Iterator[Part]:
    """Every part of every parameter, in the order of the modules."""
    for name, role, parameter in _declared(model):
        path, _, own = name.rpartition(".")
        shape = tuple(parameter.shape)
        if isinstance(role, str):
            yield Part(name, role, _block_of(name), shape, name, ...)
            continue
        start = 0
        stem = path.rpartition(".")[0]
        for part, rows in role.items():
            # A stacked matrix's part is named by what it is, so that a variant which stacks differently shares it.
            part_name = f"{stem}.{part}.{own}".lstrip(".")
            yield Part(part_name, part, _block_of(name), (rows, *shape[1:]), name, slice(start, start + rows))
            start += rows


def _declared(model: nn.Module) -> Iterator[tuple[str, str | Mapping[str, int], nn.Parameter]]:
    seen: set[int] = set()
    for path, module in model.named_modules():
        roles: Roles = getattr(module, "roles", {})
        for own, parameter in module.named_parameters(recurse=False):
            if id(parameter) in seen:
                continue
            seen.add(id(parameter))
            name = f"{path}.{own}" if path else own
            if own not in roles:
                raise TypeError(
                    f"{type(module).__name__} owns {name!r} and declares no role for it: set self.roles[{own!r}]"
                )
            yield name, roles[own], parameter


def _block_of(name: str) -> int | None:
    head, _, rest = name.partition(".")
    return int(rest.split(".")[0]) if head == "blocks" else None
