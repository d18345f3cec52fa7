"""Fault 081: pure bf16 training stalls, because updates below half a unit in the last place round away."""

import pytest
import torch
from torch import nn

from isoflop.train.precision import PRECISIONS


def test_a_hundred_updates_of_a_thousandth_from_one_give_nine_tenths() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    masters = PRECISIONS["bf16"](model)
    optimizer = torch.optim.SGD(masters.weights.values(), lr=1e-3)
    for _ in range(100):
        masters.clear()
        model(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()  # the gradient is 1
        masters.collect()
        optimizer.step()
        masters.publish()
    assert masters.weights["weight"].item() == pytest.approx(0.9, abs=1e-5)
    assert model.weight.dtype == torch.bfloat16
    assert model.weight.item() == torch.tensor(0.9).bfloat16().item()


def test_plain_bf16_would_have_stayed_at_one() -> None:
    weight = torch.ones((), dtype=torch.bfloat16)
    for _ in range(100):
        weight -= 1e-3
    assert weight.item() == 1.0


def test_micro_batches_are_added_in_fp32() -> None:
    model = nn.Linear(1, 1, bias=False)
    masters = PRECISIONS["bf16"](model)
    masters.clear()
    for value in (256.0, 1.0, 1.0):  # bf16(256 + 1) is 256
        model(torch.full((1, 1), value, dtype=torch.bfloat16)).sum().backward()
        masters.collect()
    assert masters.gradients()["weight"].item() == 258.0
