"""Fault 010: evaluation is random although eval() was called."""

import pytest
import torch

from isoflop.data import Loader
from isoflop.model import KERNELS, build
from isoflop.train import evaluate
from tiny_runs import tiny_architecture, tiny_corpus


@pytest.mark.parametrize("kernel", [None, "eager"])
def test_two_evaluations_are_bit_equal_and_those_of_a_model_without_dropout(kernel: str | None) -> None:
    assert kernel is None or kernel in KERNELS
    loader = Loader(tiny_corpus(), batch=4, length=16)
    dropping = build(tiny_architecture(dropout=0.5, attention={"heads": 2, "dropout": 0.5}), kernel=kernel)
    plain = build(tiny_architecture(dropout=0.0), kernel=kernel)
    first = evaluate(dropping, loader, 4)
    assert evaluate(dropping, loader, 4) == first
    assert evaluate(plain, loader, 4) == first


def test_training_does_drop() -> None:
    tokens = torch.arange(16)[None]
    model = build(tiny_architecture(dropout=0.5)).train()
    assert not torch.equal(model(tokens), model(tokens))
