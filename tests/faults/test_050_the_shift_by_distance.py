"""The shift that lines up distances mixes rows, or brings numbers of other rows above the diagonal."""

import itertools

import pytest
import torch

from isoflop.generate.cache import Cached, ContiguousCache
from isoflop.model import Architecture
from isoflop.model.attend import Dense
from isoflop.model.places import Places
from isoflop.model.position.band import by_query
from isoflop.model.relation import View
from models import lively


def test_three_queries_and_three_keys() -> None:
    """Rows hold distances 2, 1, 0; on and below the diagonal each pair has the number of its own row and distance."""
    view = View(torch.arange(3)[None], torch.arange(3)[None], 0)
    moved = by_query(torch.arange(1.0, 10).view(1, 1, 3, 3), view, -2)[0, 0]
    assert moved.tril().tolist() == [[3.0, 0.0, 0.0], [5.0, 6.0, 0.0], [7.0, 8.0, 9.0]]


@pytest.mark.parametrize("known", [True, False])
def test_three_queries_after_two_keys_in_both_directions(known: bool) -> None:
    """q + k - 1 = 7 distances, each taken where it belongs, whether indices tell the distance or positions do."""
    q, k, lowest = torch.arange(2, 5)[None], torch.arange(5)[None], -4
    table = torch.arange(21.0).view(1, 1, 3, 7)
    found = by_query(table, View(q, k, -2 if known else None), lowest)[0, 0]
    for i, j in itertools.product(range(3), range(5)):
        assert found[i, j] == table[0, 0, i, j - (i + 2) - lowest]


@pytest.mark.parametrize("form", ["decoder", "encoder"])
@torch.no_grad()
def test_scores_of_the_term_are_products_with_the_sinusoid_of_the_distance(form: str) -> None:
    table = {"width": 8, "depth": 1, "vocab": 5, "position": "transformer_xl", "attention": {"heads": 2}}
    model = lively(Architecture.parse({"form": form, **table}))
    attention, positions = model.blocks[0].attention, torch.arange(5)[None]
    term = attention.terms[0]
    x_BTD = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(0))
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in attention.qkv(x_BTD).chunk(3, dim=-1))
    out = torch.zeros(1, 2, 5, 4)
    for h, i in itertools.product(range(2), range(5)):
        scores = []
        for j in range(i + 1 if form == "decoder" else 5):
            angles = (i - j) * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
            sinusoid = torch.cat([angles.sin(), angles.cos()]) @ term.map.unflatten(0, (2, 4))[h].T
            scores.append((q[0, h, i] + term.biases.u[h]) @ k[0, h, j] + (q[0, h, i] + term.biases.v[h]) @ sinusoid)
        weights = (torch.stack(scores) * 4**-0.5).softmax(0)
        out[0, h, i] = weights @ v[0, h, : len(scores)]
    expected = attention.o(out.transpose(1, 2).flatten(2))
    torch.testing.assert_close(attention(x_BTD, Dense(Places(positions, positions, consecutive=True))), expected)
    if form == "encoder":
        return
    cache = ContiguousCache(1, 5, torch.device("cpu"))
    for chunk in (slice(0, 2), slice(2, 5)):
        places = cache.place(positions[:, chunk], torch.zeros_like(positions[:, chunk]))
        found = attention(x_BTD[:, chunk], Cached(cache, places))
        cache.advance(found.shape[1])
        torch.testing.assert_close(found, expected[:, chunk])
