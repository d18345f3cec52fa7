"""Fault 041: optimizer moments go to the wrong parameters after a reorder, because state is matched by position."""

import pytest
import torch
from torch import Tensor

from isoflop.model import Role
from isoflop.train import AdamW
from isoflop.train.optim import load_state, save_state

ROLES = {"a": Role("q", True, None), "b": Role("k", True, None)}


def stepped() -> dict[str, Tensor]:
    weights = {"a": torch.zeros(3), "b": torch.zeros(3)}
    optimizer = AdamW().build(weights, ROLES)
    weights["a"].grad, weights["b"].grad = torch.full((3,), 1.0), torch.full((3,), 100.0)
    optimizer.step()
    return save_state(optimizer, weights)


def test_the_other_order_gets_its_own_moments() -> None:
    weights = {"b": torch.zeros(3), "a": torch.zeros(3)}
    optimizer = AdamW().build(weights, ROLES)
    load_state(optimizer, weights, stepped())
    assert optimizer.state[weights["a"]]["exp_avg"].tolist() == pytest.approx([0.1] * 3)
    assert optimizer.state[weights["b"]]["exp_avg"].tolist() == pytest.approx([10.0] * 3)
    assert {state["step"].item() for state in optimizer.state.values()} == {1.0}


@pytest.mark.parametrize(
    ("names", "shape", "reason"),
    [
        (("a", "c"), 3, "state of 'b', which is no parameter here"),
        (("a", "b"), 4, r"'a' has shape \(4,\) but its exp_avg has \(3,\)"),
    ],
)
def test_other_names_or_shapes_are_refused(names: tuple[str, str], shape: int, reason: str) -> None:
    weights = {name: torch.zeros(shape) for name in names}
    optimizer = AdamW().build(weights, {name: Role("q", True, None) for name in names})
    with pytest.raises(ValueError, match=reason):
        load_state(optimizer, weights, stepped())
    assert not optimizer.state


def test_a_state_that_lacks_a_moment_is_refused() -> None:
    tensors = stepped()
    del tensors["b::exp_avg_sq"]
    weights = {"a": torch.zeros(3), "b": torch.zeros(3)}
    with pytest.raises(ValueError, match="'b' lacks exp_avg_sq"):
        load_state(AdamW().build(weights, ROLES), weights, tensors)
