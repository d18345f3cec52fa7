"""Weights keep framework defaults or uninitialised memory instead of the declared scheme."""

import math
from typing import Any

import pytest
import torch

from isoflop.model import Architecture, Transformer, build, parts
from isoflop.model.init import initialise
from isoflop.model.slots import Init

WIDTH, DEPTH, HIDDEN, VOCAB = 256, 3, 512, 300
MATRICES = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "o": (WIDTH, WIDTH)} | {
    "ffn_in": (WIDTH, HIDDEN),
    "ffn_gate": (WIDTH, HIDDEN),
    "ffn_out": (HIDDEN, WIDTH),
    "head": (WIDTH, VOCAB),
}


def declared(init: Any = "normal") -> Architecture:
    return Architecture(
        vocab=VOCAB,
        width=WIDTH,
        depth=DEPTH,
        init=init,
        position={"kind": "learned", "length": 200},
        attention={"heads": 4, "bias": True, "qk_norm": "layer"},
        ffn={"kind": "glu", "hidden": HIDDEN, "bias": True},
        tie_head=False,
    )


def expected_sd(role: str, init: str) -> float:
    """Written out from the papers' formulas."""
    if role in ("embed", "position"):
        return 0.02 if init in ("normal", "gpt2") else WIDTH**-0.5
    fan_in, fan_out = MATRICES[role]
    writes = 1 / math.sqrt(2 * DEPTH) if role in ("o", "ffn_out") else 1.0
    xavier = math.sqrt(2 / (fan_in + fan_out))
    return {"normal": 0.02, "gpt2": 0.02 * writes, "xavier_normal": xavier, "xavier_uniform": xavier}[init]


@pytest.mark.parametrize("init", list(Init.kinds))
def test_nothing_survives_and_every_matrix_has_its_declared_spread(init: str) -> None:
    architecture = declared(init)
    with torch.device("meta"):
        model = Transformer(architecture)
    model.to_empty(device="cpu")
    for parameter in model.parameters():
        parameter.data.fill_(777.0)
    initialise(model, architecture, seed=0)
    parameters, checked = dict(model.named_parameters()), set()
    for part in parts(model):
        values = parameters[part.parameter].detach()[part.rows]
        assert not (values == 777.0).any(), part.name
        checked.add(part.role)
        if part.role in ("gain", "bias"):
            assert (values == (1.0 if part.role == "gain" else 0.0)).all(), part.name
            continue
        assert float(values.std()) == pytest.approx(expected_sd(part.role, init), rel=0.05), part.name
        assert abs(float(values.mean())) < 0.05 * float(values.std()), part.name
    assert checked == {*MATRICES, "embed", "position", "gain", "bias"}


@pytest.mark.parametrize("init", list(Init.kinds))
def test_a_uniform_rule_stays_in_its_bounds_and_a_normal_one_does_not(init: str) -> None:
    weight = build(declared(init)).blocks[0].ffn.down.weight.detach()
    ratio = float(weight.abs().max() / weight.std())
    assert (ratio <= math.sqrt(3) * 1.01) == (init == "xavier_uniform")


def test_running_it_twice_changes_nothing() -> None:
    architecture = declared("gpt2")
    model = build(architecture, seed=4)
    first = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    initialise(model, architecture, seed=4)
    assert all(torch.equal(parameter, first[name]) for name, parameter in model.named_parameters())


def test_a_gain_of_the_rule_scales_exactly() -> None:
    one = build(declared("xavier_normal")).blocks[0].attention.o.weight
    two = build(declared({"kind": "xavier_normal", "gain": 2.0})).blocks[0].attention.o.weight
    assert torch.equal(two, 2 * one)


def test_16_bit_weights_are_the_rounded_ones() -> None:
    exact, rounded = build(declared()), build(declared(), dtype=torch.bfloat16)
    for (name, a), (_, b) in zip(exact.named_parameters(), rounded.named_parameters(), strict=True):
        assert torch.equal(a.bfloat16(), b), name
