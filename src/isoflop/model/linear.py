"""The modules that own matrices, and the role each matrix plays.

Every parameter has a *role* (`q`, `ffn_out`, `gain`, ...). Initialisation, weight decay, growth and parallel plans go by
role, never by the name or the class of a module. A module declares the roles of its own parameters in `roles`, and in `initial`
the values that some of them start at, where the declaration says which (a number for all entries, or one for each); a matrix
that is several matrices stacked by rows (q, k and v, say) declares its parts, so that each part is initialised exactly as
if it stood alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import EllipsisType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

VECTOR_ROLES = frozenset({"gain", "bias", "head_bias", "prior", "position_bias", "value_share"})
"""Roles that weight decay leaves alone: decaying a gain or a bias pulls it to zero without making the net simpler."""

BLOCK = re.compile(r"(?P<encoder>encoder\.)?blocks\.(?P<number>\d+)(?=\.)")
"""How the name of a block's parameter begins."""

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
        return linear(x, self.weight, self.bias)

    def some(self, x: Tensor, rows: slice) -> Tensor:
        """The outputs of some of the stacked rows."""
        return linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x Wᵀ (+ b)`, computed in fp32 and rounded once where the machine has no matmul of this type."""
    if computes_wide(x.dtype, x.device.type):
        return _WideLinear.apply(x, weight, bias)
    return F.linear(x, weight, bias)


def computes_wide(dtype: torch.dtype, device: str) -> bool:
    """Whether products of this type should run in fp32: a CPU without 16-bit units emulates them many times slower."""
    return device == "cpu" and dtype in (torch.bfloat16, torch.float16) and not _has_units(dtype)


@torch.compiler.assume_constant_result  # torch.compile cannot trace a question about the machine, nor see past `cache`
def _has_units(dtype: torch.dtype) -> bool:
    return _ask_for_units(dtype)


@cache
def _ask_for_units(dtype: torch.dtype) -> bool:
    supported = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return supported[dtype]()


class _WideLinear(torch.autograd.Function):
    """A 16-bit linear map through fp32: what 16-bit units compute, which also sum in fp32. Saved tensors stay 16-bit."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        wide_bias = None if bias is None else bias.float()
        return F.linear(x.float(), weight.float(), wide_bias).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator hides the names of arguments
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        dy = grad_outputs[0].float()
        rows_dy, rows_x = dy.reshape(-1, dy.shape[-1]), x.reshape(-1, x.shape[-1])
        dx = (dy @ weight.float()).to(x.dtype) if ctx.needs_input_grad[0] else None
        dbias = rows_dy.sum(0).to(x.dtype) if ctx.needs_input_grad[2] else None
        return dx, (rows_dy.t() @ rows_x.float()).to(weight.dtype), dbias


class Embedding(nn.Module):
    """A table of vectors: `rows` by `width`, looked up by index."""

    def __init__(self, rows: int, width: int, role: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        self.roles: Roles = {"weight": role}

    def forward(self, index: Tensor) -> Tensor:
        return F.embedding(index, self.weight)


class Role(NamedTuple):
    """What a parameter is for: its role (parts joined by `+`), whether weight decay applies, and the number of its block, which
    an encoder and its decoder each count from 0."""

    role: str
    decay: bool
    block: int | None


@dataclass(frozen=True)
class Part:
    """One matrix or vector as initialisation sees it: a named, possibly partial view of a parameter.

    `initial`: the values it starts at where its module declares them (one for all or one for each row); else None.
    """

    name: str
    role: str
    block: int | None
    shape: tuple[int, ...]
    parameter: str
    rows: slice | EllipsisType
    initial: tuple[float, ...] | None = None

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
            initial = getattr(model.get_submodule(path), "initial", {}).get(own)
            yield Part(name, role, _block_of(name), shape, name, ..., initial)
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
    found = BLOCK.match(name)
    return int(found["number"]) if found else None
