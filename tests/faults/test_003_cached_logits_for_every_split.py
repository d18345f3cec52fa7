"""Logits drift when a KV cache is on: positions, masks or biases were built from the chunk, not from absolute positions."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from isoflop.generate.cache import Cached, ContiguousCache
from isoflop.model import Architecture, Transformer, build
from models import able_kernels

LENGTH, VOCAB = 13, 29
POSITIONS: list[Any] = [
    "none",
    "sinusoidal",
    "alibi",
    {"kind": "learned", "length": LENGTH},
    {"kind": "rope", "layout": "half"},
    {"kind": "rope", "layout": "interleaved"},
    {"kind": "rope", "fraction": 0.5},
    {"kind": "rope", "base": 20.0, "scaling": {"kind": "yarn", "original_length": 6}},
    {"kind": "t5", "buckets": 4, "max_distance": 6},
    {"kind": "relative", "reach": 3, "query": True},
    "transformer_xl",
    ["rope", "alibi"],
]
ATTENTIONS: list[dict[str, Any]] = [
    {"heads": 4},
    {"heads": 4, "kv_heads": 2},
    {"heads": 4, "kv_heads": 1, "window": 4},
    {"heads": 4, "window": 1},
    {"heads": 4, "qk_norm": "rms", "softcap": 3.0},
    {"heads": 4, "priors": [{"kind": "penalty", "gamma_is": "per_head"}, {"kind": "mixture", "heads": [0, 2]}]},
]


def splits() -> Iterator[list[int]]:
    """Every prefill with one chunk after it, and token by token after a prefill of 1, 5 and 12."""
    yield from ([first, LENGTH - first] for first in range(1, LENGTH))
    yield from ([first] + [1] * (LENGTH - first) for first in (1, 5, 12))
    yield [4, 2, 2, 2, 2, 1]


@torch.no_grad()
def cached_logits(model: Transformer, tokens_BT: Tensor, split: list[int]) -> Tensor:
    cache, start, out = ContiguousCache(len(tokens_BT), LENGTH, tokens_BT.device), 0, []
    for size in split:
        chunk_BT = tokens_BT[:, start : start + size]
        positions_BT = torch.arange(start, start + size).expand(len(tokens_BT), -1)
        places = cache.place(positions_BT, torch.zeros_like(positions_BT))
        out.append(model.encode(chunk_BT, positions_BT, Cached(cache, places, model.kernel)))
        cache.advance(size)
        start += size
    return F.linear(torch.cat(out, dim=1), model.head_weight)


@pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
@pytest.mark.parametrize("position", POSITIONS, ids=str)
def test_every_split_of_prefill_and_decode(position: Any, attention: dict[str, Any]) -> None:
    declared = Architecture(
        vocab=VOCAB, width=32, depth=2, position=position, attention=attention, init={"kind": "normal", "std": 0.2}
    )
    tokens_BT = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    for kernel in able_kernels(declared):
        model = build(declared, kernel=kernel).eval()
        with torch.no_grad():
            expected = model(tokens_BT)
        assert expected.std() > 0.1
        for split in splits():
            torch.testing.assert_close(cached_logits(model, tokens_BT, split), expected, rtol=0, atol=1e-5)


def test_bf16_is_near() -> None:
    declared = Architecture(vocab=VOCAB, width=32, depth=2, attention={"heads": 4, "kv_heads": 2})
    model = build(declared, dtype=torch.bfloat16).eval()
    tokens_BT = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(tokens_BT)
    torch.testing.assert_close(cached_logits(model, tokens_BT, [5, *[1] * 8]), expected, rtol=2e-2, atol=1e-2)
