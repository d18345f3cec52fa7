"""A bias by distance is wrong or absent after the first decoded token: the place of the query was ignored."""

import torch

from isoflop.generate.cache import Cached, ContiguousCache
from isoflop.model import Architecture, build


@torch.no_grad()
def test_each_step_uses_the_buckets_of_its_own_distances() -> None:
    """The bias of bucket b is b, and queries and keys say nothing: weights tell which biases were used."""
    declared = Architecture(width=8, depth=1, vocab=5, attention={"heads": 1}, position={"kind": "t5", "buckets": 32})
    attention = build(declared).eval().blocks[0].attention
    attention.qkv.weight.zero_()
    attention.qkv.weight[16:] = torch.eye(8)  # values are the inputs: token t has a 1 at place t
    attention.o.weight.copy_(torch.eye(8))
    attention.terms[0].table.weight.copy_(torch.arange(32.0)[:, None])
    cache = ContiguousCache(1, 8, torch.device("cpu"))
    for step in range(8):
        places = cache.place(torch.tensor([[step]]), torch.zeros(1, 1, dtype=torch.long))
        weights = attention(torch.eye(8)[None, step : step + 1], Cached(cache, places))[0, 0]
        cache.advance(1)
        distances = torch.arange(step, -1, -1.0)  # below 16 each distance is a bucket
        torch.testing.assert_close(weights[: step + 1], distances.softmax(0))
        assert not weights[step + 1 :].any()
