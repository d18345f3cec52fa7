"""Fault 001: each micro-batch is averaged over its own targets, and the averages are averaged again."""

import pytest
import torch
import torch.nn.functional as F

from isoflop.data import Batch, Loader
from isoflop.model import Transformer, build, parameter_roles
from isoflop.train import AdamW, linear_cross_entropy, optimise
from isoflop.train.precision import Masters
from tiny_runs import tiny_architecture, tiny_corpus


def uneven(rows: int = 4) -> Batch:
    """Rows with 1, 3, 0 and 7 targets."""
    batch = Loader(tiny_corpus(), batch=rows, length=8).batch(0)
    keep = torch.arange(8) < torch.tensor([1, 3, 0, 7])[:rows, None]
    return Batch(batch.tokens_BT, batch.targets_BT.masked_fill(~keep, -100))


def gradients(batch: Batch, accumulate: int) -> tuple[float, dict[str, torch.Tensor], Transformer]:
    model = build(tiny_architecture(dropout=0.0))
    masters = Masters(model)
    optimizer = AdamW().build(masters.weights, parameter_roles(model))
    measured = optimise(model, masters, optimizer, batch, rate=0.01, accumulate=accumulate)
    assert measured is not None
    assert measured.targets == 11
    return measured.loss.item(), masters.gradients(), model


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_gradients_equal_those_of_one_batch_by_plain_torch(accumulate: int) -> None:
    batch = uneven()
    loss, found, model = gradients(batch, accumulate)
    twin = build(tiny_architecture(dropout=0.0))
    expected = F.cross_entropy(twin(batch.tokens_BT).flatten(0, 1), batch.targets_BT.flatten())
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    assert found.keys() == {name for name, _ in model.named_parameters()}
    for name, weight in twin.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-5, atol=1e-7)


def test_loss_of_one_target_of_four_and_three_of_one_is_seven_quarters() -> None:
    # Logits (0, z): the loss of target 0 is ln(1 + e^z) = c for z = ln(e^c - 1).
    heights = torch.tensor([4.0, 1.0, 1.0, 1.0], dtype=torch.float64).expm1().log()
    weight = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    parts = [
        linear_cross_entropy(heights[part, None], weight, torch.zeros(len(heights[part]), dtype=torch.long))
        for part in (slice(1), slice(1, 4))
    ]
    total, count = (sum(values) for values in zip(*parts, strict=True))
    assert (total / count).item() == pytest.approx(1.75, abs=1e-12)


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_a_window_without_targets_changes_nothing(accumulate: int) -> None:
    model = build(tiny_architecture())
    masters = Masters(model)
    optimizer = AdamW().build(masters.weights, parameter_roles(model))
    before = {name: weight.detach().clone() for name, weight in masters.weights.items()}
    tokens = torch.zeros(4, 8, dtype=torch.long)
    assert optimise(model, masters, optimizer, Batch(tokens, tokens - 100), rate=0.1, accumulate=accumulate) is None
    assert all(torch.equal(weight, before[name]) for name, weight in masters.weights.items())
    assert not optimizer.state
