"""Fault 079: clipping disappears for one precision."""

import pytest
import torch

from isoflop.data import Loader
from isoflop.model import build, parameter_roles
from isoflop.train import optimise
from isoflop.train.precision import PRECISIONS
from tiny_runs import tiny_architecture, tiny_corpus


@pytest.mark.parametrize("precision", sorted(PRECISIONS))
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("clip", [1e-3, None])
def test_the_update_is_bounded_and_the_logged_norm_is_the_one_before(
    precision: str, accumulate: int, clip: float | None
) -> None:
    model = build(tiny_architecture(dropout=0.0))
    assert parameter_roles(model)
    masters = PRECISIONS[precision](model)
    before = {name: weight.detach().clone() for name, weight in masters.weights.items()}
    descent = torch.optim.SGD(masters.weights.values(), lr=0.0)  # its update is rate times the gradient
    batch = Loader(tiny_corpus(), batch=4, length=16).batch(0)
    measured = optimise(model, masters, descent, batch, rate=0.5, clip=clip, accumulate=accumulate)
    assert measured is not None
    update = torch.cat([(weight - before[name]).flatten() for name, weight in masters.weights.items()]).norm().item()
    assert measured.norm.item() > 0.1
    assert update == pytest.approx(0.5 * (measured.norm.item() if clip is None else clip), rel=2e-3)
