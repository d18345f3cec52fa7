"""Temperature 0 gives NaN or silently low ids: logits were divided by it."""

import math

import pytest
import torch

from isoflop.generate import Sampling


def stream() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_zero_takes_the_most_likely() -> None:
    assert Sampling(0.0).pick(torch.tensor([1.0, 2.0]), stream()) == 1


@pytest.mark.parametrize("size", [3, 64, 1000, 50_257])
def test_zero_takes_the_lowest_id_among_equals(size: int) -> None:
    for first in (0, 1, size // 2):
        logits_V = torch.zeros(size)
        logits_V[first::7] = 3.0
        assert Sampling(0.0).pick(logits_V, stream()) == first


@pytest.mark.parametrize("temperature", [1e-8, 1e-300, 5e-324])
def test_next_to_zero_is_finite(temperature: float) -> None:
    sampling = Sampling(temperature)
    assert sampling.probabilities(torch.tensor([1.0, 2.0])).tolist() == [0.0, 1.0]
    assert sampling.probabilities(torch.tensor([2.0, 1.0, 2.0])).tolist() == [0.5, 0.0, 0.5]
    assert sampling.pick(torch.tensor([1.0, 2.0]), stream()) == 1


def test_large_is_uniform() -> None:
    assert Sampling(1e12).probabilities(torch.tensor([1.0, 2.0])).tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("temperature", [math.nan, -1.0, -1e-9, math.inf])
def test_no_number_of_at_least_zero_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be a number of at least 0"):
        Sampling(temperature)
