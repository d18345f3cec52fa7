"""Optimizers: which parameters decay, and state that is kept under the parameters' names."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from isoflop.spec import Slot

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from isoflop.model import Role

Beta = Annotated[float, Field(ge=0, lt=1)]
SEPARATOR = "::"
"""Between a parameter's name and the name of one of its states; neither holds it."""


class Optimizer(Slot, default="adamw"):
    """How a gradient becomes an update."""

    @abstractmethod
    def build(self, weights: Mapping[str, Tensor], roles: Mapping[str, Role]) -> torch.optim.Optimizer:
        """An optimizer of named weights; the rate is set before each step."""


class AdamW(Optimizer, kind="adamw"):
    """Adam with decoupled weight decay, on matrices and tables only (see `Role.decay`).

    Formula: m = β1 m + (1-β1) g, v = β2 v + (1-β2) g², w = w - rate (m̂ / (sqrt(v̂) + eps) + weight_decay w)
    Paper: Loshchilov & Hutter 2019, arXiv 1711.05101
    """

    beta1: Beta = 0.9
    beta2: Beta = 0.95
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.1, ge=0)

    def build(self, weights: Mapping[str, Tensor], roles: Mapping[str, Role]) -> torch.optim.Optimizer:
        import torch

        groups = decay_groups(weights, roles, self.weight_decay)
        # Each group says its own rate; torch's default must only be there.
        return torch.optim.AdamW(groups, lr=0.0, betas=(self.beta1, self.beta2), eps=self.eps, fused=True)


def decay_groups(weights: Mapping[str, Tensor], roles: Mapping[str, Role], decay: float) -> list[dict[str, Any]]:
    """Two groups, decayed and not, by the role that each parameter's module has declared; an empty one is left out.

    Raises:
        ValueError: a weight has no role, or a role has no weight.
    """
    check_same_names(weights, roles, "the model's weights", "its declared roles")
    groups = []
    for decays, weight_decay in ((True, decay), (False, 0.0)):
        names = [name for name in weights if roles[name].decay is decays]
        if names:
            groups.append({"params": [weights[name] for name in names], "weight_decay": weight_decay})
    return groups


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """The rate of the next step, in every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def save_state(optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every tensor of the optimizer's state by `parameter::state`; a weight that was never updated has none."""
    return {
        f"{name}{SEPARATOR}{key}": value
        for name, weight in weights.items()
        for key, value in optimizer.state.get(weight, {}).items()
    }


def load_state(optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Put saved state back under the names it was saved by, whatever the order of the weights is now.

    Raises:
        ValueError: a saved state belongs to no weight, weights disagree on which states there are, or a shape differs;
            each name is listed.
    """
    states: dict[str, dict[str, Tensor]] = {}
    for full, tensor in tensors.items():
        name, _, key = full.rpartition(SEPARATOR)
        states.setdefault(name, {})[key] = tensor
    problems = [f"state of {name!r}, which is no parameter here" for name in states if name not in weights]
    problems += [
        f"{name!r} has shape {tuple(weights[name].shape)} but its {key} has {tuple(tensor.shape)}"
        for name, state in states.items()
        if name in weights
        for key, tensor in state.items()
        if tensor.shape not in (weights[name].shape, ())
    ]
    expected = set().union(*states.values())
    problems += [
        f"{name!r} lacks {', '.join(sorted(expected - set(state)))}"
        for name, state in states.items()
        if set(state) != expected
    ]
    if problems:
        raise ValueError(f"the optimizer's state does not fit the parameters: {'; '.join(problems)}")
    for name, state in states.items():
        weight = weights[name]
        optimizer.state[weight] = {key: tensor.to(weight.device, copy=True) for key, tensor in state.items()}


def check_same_names(left: Mapping[str, Any], right: Mapping[str, Any], left_is: str, right_is: str) -> None:
    """Raise a ValueError that lists every name on one side only."""
    only_left, only_right = sorted(set(left) - set(right)), sorted(set(right) - set(left))
    sides = [(only_left, left_is), (only_right, right_is)]
    found = [f"only in {side}: {', '.join(names)}" for names, side in sides if names]
    if found:
        raise ValueError(f"{left_is} and {right_is} must have the same names; {'; '.join(found)}")
