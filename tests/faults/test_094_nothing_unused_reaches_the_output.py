"""NaN in a cache slot that the mask hides poisons the output: 0 * NaN in the weighted sum."""

import pytest
import torch

from isoflop.generate.cache import Cached, ContiguousCache
from isoflop.model import Architecture, build
from models import TRAINING_KERNELS


@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
@pytest.mark.parametrize("position", ["rope", "alibi"])
@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@torch.no_grad()
def test_slots_beyond_the_end_may_hold_anything(kernel: str, position: str, garbage: float) -> None:
    model = build(Architecture(vocab=23, width=16, depth=2, position=position, attention={"heads": 2}), kernel=kernel)
    tokens_BT = torch.randint(23, (2, 9), generator=torch.Generator().manual_seed(0))
    cache, out = ContiguousCache(2, 20, tokens_BT.device), []
    for start, end in [(0, 4), (4, 5), (5, 9)]:
        positions_BT = torch.arange(start, end).expand(2, -1)
        places = cache.place(positions_BT, torch.zeros_like(positions_BT))
        out.append(model.encode(tokens_BT[:, start:end], positions_BT, Cached(cache, places, kernel)))
        cache.advance(end - start)
        for stored in (*cache.keys, *cache.values):
            stored[:, :, cache.length :] = garbage
    torch.testing.assert_close(torch.cat(out, dim=1), model.features(tokens_BT), rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_new_cache_holds_zeros() -> None:
    """The slots of padding are written, all others are zero until then: never what the memory happened to hold."""
    cache = ContiguousCache(1, 64, torch.device("cpu"))
    cache.append(0, torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
    for stored in (*cache.keys, *cache.values):
        assert stored.shape == (1, 2, 64, 4)
        assert (stored[:, :, 3:] == 0).all()
