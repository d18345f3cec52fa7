"""Partial rotary positions use wrong frequencies or pairs: the whole head's width where the rotated part's is meant."""

import math

import pytest
import torch

from isoflop.model.position import RoPE
from models import SETTING

HEAD_WIDTH, ROTATED = 32, 8


@pytest.mark.parametrize(
    ("layout", "pairs"),
    [("half", [(i, i + 4) for i in range(4)]), ("interleaved", [(2 * i, 2 * i + 1) for i in range(4)])],
)
@pytest.mark.parametrize("position", [0, 7])
def test_components_pairs_and_frequencies(position: int, layout: str, pairs: list[tuple[int, int]]) -> None:
    term = RoPE(fraction=ROTATED / HEAD_WIDTH, layout=layout).term(SETTING, 1, HEAD_WIDTH)
    for number, (first, second) in enumerate(pairs):
        angle = position * [1.0, 0.1, 0.01, 0.001][number]
        x = torch.zeros(1, 1, 1, HEAD_WIDTH)
        x[..., first] = 1
        expected = torch.zeros(HEAD_WIDTH)
        expected[first], expected[second] = math.cos(angle), math.sin(angle)
        out = term.rotate(x, torch.tensor([[position]]), lambda key, make: make())[0, 0, 0]
        torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_the_rest_of_the_head_passes_unchanged(layout: str) -> None:
    term = RoPE(fraction=ROTATED / HEAD_WIDTH, layout=layout).term(SETTING, 1, HEAD_WIDTH)
    x = torch.randn(2, 3, 5, HEAD_WIDTH)
    out = term.rotate(x, torch.arange(5)[None], lambda key, make: make())
    assert torch.equal(out[..., ROTATED:], x[..., ROTATED:])
    assert not torch.equal(out[..., :ROTATED], x[..., :ROTATED])
