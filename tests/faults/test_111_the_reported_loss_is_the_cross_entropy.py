"""Fault 111: the reported loss includes other terms, or the metric shifts labels differently from the loss."""

import math
from pathlib import Path

import pytest
import torch.nn.functional as F

from isoflop.data import Loader
from isoflop.model import build
from isoflop.train import load_model
from isoflop.train.run import data_order
from tiny_runs import metrics, tiny_architecture, tiny_corpus, tiny_run


def test_training_and_validation_equal_an_independent_computation(tmp_path: Path) -> None:
    architecture = tiny_architecture(dropout=0.0)
    record = tiny_run(
        tmp_path, architecture=architecture, steps=1, validation_windows=None, optimizer={"weight_decay": 0.5}
    )
    loader = Loader(tiny_corpus(), batch=4, length=16, seed=data_order(0, 0))
    batch = loader.batch(0)
    logits = build(architecture)(batch.tokens_BT)
    expected = F.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten()).item()
    assert metrics(tmp_path)[0]["loss"] == pytest.approx(expected, abs=1e-6)

    model, _, _ = load_model(tmp_path)
    nats = sum(
        F.cross_entropy(model(part.tokens_BT).double().flatten(0, 1), part.targets_BT.flatten(), reduction="sum").item()
        for part in loader.validation(1)
    )
    targets = len(tiny_corpus().validation) - 1
    assert record["result"]["loss"] == pytest.approx(nats / targets, abs=1e-6)
    text_bytes = int(tiny_corpus().token_bytes[tiny_corpus().validation[1:]].sum())
    assert record["result"]["bits_per_byte"] == pytest.approx(nats / math.log(2) / text_bytes, abs=1e-6)
