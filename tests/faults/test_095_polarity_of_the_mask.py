"""A mask is inverted in one backend, or never applied: True means "may attend" everywhere here."""

import pytest
import torch

from isoflop.generate.cache import Cached, ContiguousCache
from isoflop.model import Architecture, build
from isoflop.model.attend import Dense
from isoflop.model.places import Places
from isoflop.model.term import Scoring
from models import TRAINING_KERNELS

LENGTH = 6
FREE = Scoring(scale=1.0, causal=False, window=None, softcap=None, dropout=0.0, terms=())
VALUES = torch.arange(LENGTH).float().view(1, 1, LENGTH, 1).expand(2, 1, LENGTH, 4)
POSITIONS = torch.arange(LENGTH)[None]
ONLY_FIRST = torch.tensor([[0, 1, 1, 1, 1, 1]])  # documents of the keys; every query is of document 0


@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@pytest.mark.parametrize("queries", ["one_row_for_all", "a_row_each"])
def test_only_key_zero_is_allowed(kernel: str, queries: str) -> None:
    batch = 1 if queries == "one_row_for_all" else 2
    own, other = torch.zeros(batch, LENGTH, dtype=torch.long), ONLY_FIRST.expand(batch, -1)
    places = Places(POSITIONS, POSITIONS, own, other)
    assert places.allowed(FREE).tolist() == [[[[True] + [False] * (LENGTH - 1)] * LENGTH]] * batch
    out = Dense(places, kernel)(torch.randn(2, 1, LENGTH, 4), torch.randn(2, 1, LENGTH, 4), VALUES, FREE)
    assert (out == 0).all()


@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
def test_through_the_cache(kernel: str) -> None:
    cache = ContiguousCache(2, LENGTH, torch.device("cpu"))
    places = cache.place(POSITIONS.expand(2, -1), ONLY_FIRST.expand(2, -1))
    seen = Places(places.q_positions, places.k_positions, torch.zeros(2, LENGTH, dtype=torch.long), places.k_documents)
    out = Cached(cache, seen, kernel)(torch.randn(2, 1, LENGTH, 4), torch.randn(2, 1, LENGTH, 4), VALUES, FREE)
    assert (out == 0).all()


@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@torch.no_grad()
def test_through_the_model(kernel: str) -> None:
    """Each token its own document: no token reads any other."""
    model = build(Architecture(vocab=LENGTH, width=16, depth=2, attention={"heads": 2}), kernel=kernel)
    tokens_BT, alone = torch.arange(LENGTH)[None], torch.arange(LENGTH)[:, None]
    apart = model(tokens_BT, torch.zeros_like(tokens_BT), torch.arange(LENGTH)[None])
    torch.testing.assert_close(apart[0], model(alone)[:, 0], rtol=0, atol=1e-6)
    assert not torch.allclose(model(tokens_BT)[0, 1:], model(alone)[1:, 0], atol=1e-5)
