"""The distribution that tokens are drawn from."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from isoflop.generate import Sampling
from isoflop.model import Architecture, build

logits_strategy = st.lists(st.floats(-8, 8, width=32), min_size=1, max_size=12)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def kept(sampling: Sampling, logits: list[float]) -> set[int]:
    return set(sampling.probabilities(torch.tensor(logits)).nonzero()[:, 0].tolist())


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), Sampling(0.6), Sampling(1.7, top_k=5), Sampling(0.9, top_p=0.7)], ids=str
)
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    logits_V = torch.randn(9, generator=generator(4)) * 1.5
    weights = [math.exp(float(logit) / sampling.temperature) for logit in logits_V]
    allowed = kept(sampling, logits_V.tolist())
    expected = [weight / sum(weights[i] for i in allowed) for weight in weights]
    stream, draws = generator(1), 6_000
    counts = torch.bincount(torch.tensor([sampling.pick(logits_V, stream) for _ in range(draws)]), minlength=9)
    assert counts.sum() == counts[sorted(allowed)].sum()
    observed = [int(counts[i]) for i in sorted(allowed)]
    assert chisquare(observed, [draws * expected[i] for i in sorted(allowed)]).pvalue > 0.01


@settings(max_examples=60, deadline=None, derandomize=True)
@given(logits_strategy, st.floats(0.1, 5))
def test_without_filters_it_is_the_softmax(logits: list[float], temperature: float) -> None:
    weights = [math.exp((logit - max(logits)) / temperature) for logit in logits]
    mine = Sampling(temperature).probabilities(torch.tensor(logits)).tolist()
    assert mine == pytest.approx([weight / sum(weights) for weight in weights], rel=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(logits_strategy, st.integers(1, 15))
def test_top_k_keeps_the_k_largest(logits: list[float], k: int) -> None:
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    assert kept(Sampling(1.0, top_k=k), logits) == set(ranked[:k])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=7), st.integers(1, 100))
def test_top_p_keeps_the_smallest_set_that_reaches_p(weights: list[int], percent: int) -> None:
    """By definition: of all sets of tokens that reach p the smallest, and of those the most likely. In whole numbers."""
    total = sum(weights)
    if any(
        100 * sum(s) == percent * total for r in range(len(weights)) for s in itertools.combinations(weights, r + 1)
    ):
        return  # p is hit exactly: rounding of the logarithms decides
    size = next(
        r
        for r in range(1, len(weights) + 1)
        if any(100 * sum(s) >= percent * total for s in itertools.combinations(weights, r))
    )
    ranked = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    assert kept(Sampling(1.0, top_p=percent / 100), [math.log(w) for w in weights]) == set(ranked[:size])


def test_top_p_that_is_hit_exactly_keeps_no_more() -> None:
    assert kept(Sampling(1.0, top_p=0.5), [0.0, 0.0, 0.0, 0.0]) == {0, 1}
    assert kept(Sampling(1.0, top_p=0.25), [0.0, 0.0, 0.0, 0.0]) == {0}


def test_top_k_goes_by_logits_that_the_softmax_cannot_tell_apart() -> None:
    assert kept(Sampling(1e12, top_k=1), [0.0, 1.0, 2.0, 1.0]) == {2}


def test_top_p_of_one_keeps_everything() -> None:
    assert kept(Sampling(1.0, top_p=1.0), [0.0, 1.0, -9.0]) == {0, 1, 2}


def test_top_p_counts_what_top_k_left() -> None:
    """Of 0.4, 0.3, 0.2, 0.1 top-k leaves 4/7 and 3/7; p = 0.5 is reached by the first alone."""
    logits = [math.log(w) for w in (4, 3, 2, 1)]
    assert kept(Sampling(1.0, top_k=2, top_p=0.5), logits) == {0}
    assert kept(Sampling(1.0, top_p=0.5), logits) == {0, 1}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("temperature", "k", "p"), [(1.0, 7, None), (0.5, None, 0.6), (1.8, 20, 0.9), (1.0, None, 0.2)]
)
def test_equals_the_warpers_of_transformers(seed: int, temperature: float, k: int | None, p: float | None) -> None:
    logits_V = torch.randn(50, generator=generator(seed), dtype=torch.float64) * 3
    scores: Tensor = TemperatureLogitsWarper(temperature)(None, logits_V[None])
    scores = TopKLogitsWarper(k)(None, scores) if k is not None else scores
    scores = TopPLogitsWarper(p)(None, scores) if p is not None else scores
    mine = Sampling(temperature, k, p).probabilities(logits_V)
    torch.testing.assert_close(mine, scores[0].softmax(-1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_of_any_precision(dtype: torch.dtype) -> None:
    probabilities = Sampling(1.0, top_k=2).probabilities(torch.tensor([1.0, 2.0, 3.0], dtype=dtype))
    assert probabilities.tolist() == pytest.approx([0, 1 / (1 + math.e), math.e / (1 + math.e)])


def test_a_token_ruled_out_by_its_logit_is_never_drawn() -> None:
    logits_V, stream = torch.tensor([0.0, float("-inf"), 0.0]), generator()
    assert {Sampling(1.0).pick(logits_V, stream) for _ in range(200)} == {0, 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature must be a number of at least 0, came -1"),
        ({"temperature": math.nan}, "temperature must be a number of at least 0, came nan"),
        ({"temperature": math.inf}, "temperature must be a number of at least 0, came inf"),
        ({"temperature": 1.0, "top_k": 0}, "top_k must be at least 1, came 0"),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p must be above 0 and at most 1, came 0"),
        ({"temperature": 1.0, "top_p": 1.5}, "top_p must be above 0 and at most 1, came 1.5"),
        ({"temperature": 1.0, "top_p": math.nan}, "top_p must be above 0 and at most 1, came nan"),
        ({"top_k": 5}, "top_k and top_p do nothing"),
        ({"top_p": 0.5}, "top_k and top_p do nothing"),
    ],
)
def test_values_out_of_range_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**options)


def test_ids_behind_the_tokenizers_last_are_never_chosen() -> None:
    model = build(Architecture(vocab=64, width=16, depth=1, attention={"heads": 2}))
    with torch.no_grad():
        model.embed.weight[5:] *= 100  # tied: what is behind is what the model would say
    free, kept = (model.generate([[1]], 40, temperature=2.0, ids=ids)[0] for ids in (None, 5))
    assert max(free) >= 5
    assert set(kept) <= set(range(5))
    assert model.generate([[1]], 8, ids=5)[0] == model.generate([[1]], 8, ids=5, temperature=1e-9)[0]
    assert model.generate([[1]], 8, ids=64) == model.generate([[1]], 8)
    with pytest.raises(ValueError, match="ids must be at least 1, came 0"):
        model.generate([[1]], 8, ids=0)
