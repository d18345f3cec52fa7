"""Fault 077: clipping acts on scaled gradients."""

import pytest
import torch

from isoflop.data import Loader
from isoflop.model import build, parameter_roles
from isoflop.train import AdamW, optimise
from isoflop.train.precision import PRECISIONS
from isoflop.train.step import clip_gradients
from tiny_runs import tiny_architecture, tiny_corpus


def test_a_norm_of_a_half_under_a_limit_of_one_stays() -> None:
    gradients = [torch.tensor([0.3]), torch.tensor([-0.4])]
    norm, _ = clip_gradients(gradients, 1.0)
    assert norm.item() == pytest.approx(0.5)
    assert torch.equal(torch.cat(gradients), torch.tensor([0.3, -0.4]))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_norm_does_not_depend_on_accumulation_or_precision(precision: str, accumulate: int) -> None:
    loader = Loader(tiny_corpus(), batch=4, length=16)
    twin = build(tiny_architecture(dropout=0.0))
    batch = loader.batch(0)
    torch.nn.functional.cross_entropy(twin(batch.tokens_BT).flatten(0, 1), batch.targets_BT.flatten()).backward()
    true = torch.cat([weight.grad.flatten() for weight in twin.parameters() if weight.grad is not None]).norm().item()
    model = build(tiny_architecture(dropout=0.0))
    roles = parameter_roles(model)
    masters = PRECISIONS[precision](model)
    measured = optimise(
        model, masters, AdamW().build(masters.weights, roles), batch, rate=0.1, clip=2 * true, accumulate=accumulate
    )
    assert measured is not None
    assert measured.norm.item() == pytest.approx(true, rel=1e-5 if precision == "fp32" else 0.02)
    after = torch.cat([gradient.flatten() for gradient in masters.gradients().values()]).norm().item()
    assert after == pytest.approx(measured.norm.item(), rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_non_finite_gradient_shows_in_the_norm(bad: float) -> None:
    norm, _ = clip_gradients([torch.tensor([1.0, bad]), torch.tensor([2.0])], 1.0)
    assert not norm.isfinite()
