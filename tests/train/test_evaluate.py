"""Validation loss against logits and F.cross_entropy, whatever the batch size."""

import math

import pytest
import torch
import torch.nn.functional as F

from isoflop.data import Loader, Packing
from isoflop.model import build
from isoflop.train import evaluate
from tiny_runs import tiny_architecture, tiny_corpus


def by_hand(packing: Packing, windows: int | None) -> tuple[float, int, int]:
    """Nats, targets and bytes, one window after the other, in fp64."""
    loader = Loader(tiny_corpus(), batch=1, length=16, packing=packing)
    model = build(tiny_architecture()).double().eval()
    nats, targets, count = 0.0, 0, 0
    for number, batch in enumerate(loader.validation(1)):
        if number == windows:
            break
        with torch.no_grad():
            logits = model(batch.tokens_BT, batch.positions_BT, batch.documents_BT)
        keep = batch.targets_BT != -100
        nats += F.cross_entropy(logits[keep], batch.targets_BT[keep], reduction="sum").item()
        targets += int(keep.sum())
        count += sum(int(tiny_corpus().token_bytes[token]) for token in batch.targets_BT[keep])
    return nats, targets, count


@pytest.mark.parametrize("packing", ["stream", "documents"])
@pytest.mark.parametrize("windows", [None, 7])
def test_equals_the_sum_over_single_windows_at_any_batch_size(packing: Packing, windows: int | None) -> None:
    nats, targets, count = by_hand(packing, windows)
    model = build(tiny_architecture())
    loader = Loader(tiny_corpus(), batch=4, length=16, packing=packing)
    for batch in (1, 2, 5, 1000):
        found = evaluate(model, loader, batch, windows)
        assert (found.targets, found.bytes) == (targets, count)
        assert found.loss == pytest.approx(nats / targets, rel=1e-6)
        assert found.bits_per_byte == pytest.approx(nats / math.log(2) / count, rel=1e-6)


def test_the_whole_split_is_every_token_but_the_first() -> None:
    found = evaluate(build(tiny_architecture()), Loader(tiny_corpus(), length=16), 8)
    assert found.targets == len(tiny_corpus().validation) - 1
    assert found.bytes == sum(int(tiny_corpus().token_bytes[token]) for token in tiny_corpus().validation[1:])


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_put_back(training: bool) -> None:
    model = build(tiny_architecture()).train(training)
    evaluate(model, Loader(tiny_corpus(), length=16), 8, 2)
    assert model.training is training
