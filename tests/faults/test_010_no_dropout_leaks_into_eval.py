"""A model in eval mode is random: the functional attention call drops weights whatever the mode."""

import pytest
import torch

import isoflop
from isoflop.model import build
from models import TRAINING_KERNELS

DROPS = {"dropout": 0.5, "attention.dropout": 0.5, "ffn.dropout": 0.5}
SIZES = {"vocab": 31, "width": 24, "depth": 2, "attention.heads": 2}


@pytest.mark.parametrize("recipe", ["modern", "gpt2"])
@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@torch.no_grad()
def test_eval_is_deterministic_and_equal_to_no_dropout(kernel: str, recipe: str) -> None:
    model = build(isoflop.load(recipe, **SIZES, **DROPS), kernel=kernel).eval()
    still = build(isoflop.load(recipe, **SIZES, **dict.fromkeys(DROPS, 0.0)), kernel=kernel).eval()
    tokens_BT = torch.arange(20)[None]
    first = model(tokens_BT)
    assert torch.equal(model(tokens_BT), first)
    assert torch.equal(still(tokens_BT), first)


@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
def test_generation_is_deterministic_even_in_training_mode(kernel: str) -> None:
    model = build(isoflop.load("modern", **SIZES, **DROPS), kernel=kernel).train()
    assert model.generate([[1, 2, 3]], 12) == model.generate([[1, 2, 3]], 12)


@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@pytest.mark.parametrize("drop", list(DROPS))
@torch.no_grad()
def test_each_rate_acts_in_training(drop: str, kernel: str) -> None:
    model = build(isoflop.load("modern", **SIZES, **{drop: 0.5}), kernel=kernel).train()
    tokens_BT = torch.arange(20)[None]
    torch.manual_seed(0)
    first = model(tokens_BT)
    assert not torch.equal(model(tokens_BT), first)
    torch.manual_seed(0)
    assert torch.equal(model(tokens_BT), first)
