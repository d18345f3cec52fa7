"""A gated feed-forward activates the wrong half."""

import math

import pytest
import torch

from isoflop.model.feedforward import GLU


def out_of(activation: str, gate: float, value: float) -> float:
    module = GLU(activation=activation, hidden=1).build(1)
    with torch.no_grad():
        module.up.weight.copy_(torch.tensor([[gate], [value]]))  # the gate stands first
        module.down.weight.fill_(1.0)
        return float(module(torch.ones(1, 1, 1)))


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("silu", -1.7616),
        ("sigmoid", -1 / (1 + math.exp(-2))),
        ("relu", -2.0),
        ("gelu", -(1 + math.erf(2 / math.sqrt(2)))),
        ("identity", -2.0),
    ],
)
def test_gate_two_and_value_minus_one(activation: str, expected: float) -> None:
    assert out_of(activation, 2.0, -1.0) == pytest.approx(expected, abs=1e-4)


def test_relu_of_a_negative_gate_closes_it() -> None:
    assert out_of("relu", -1.0, 2.0) == 0.0


def test_the_stacked_matrix_is_declared_in_that_order() -> None:
    assert list(GLU(hidden=4).build(8).up.roles["weight"].items()) == [("ffn_gate", 4), ("ffn_in", 4)]
