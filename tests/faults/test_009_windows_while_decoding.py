"""A window is right in training and lost or rolled wrongly while decoding."""

import pytest
import torch
import torch.nn.functional as F

from isoflop.generate.cache import Cached, ContiguousCache
from isoflop.model import Architecture, build
from isoflop.model.attend import Dense
from isoflop.model.places import Places
from models import TRAINING_KERNELS

VOCAB = 29


@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@pytest.mark.parametrize("position", ["rope", "alibi"])
@pytest.mark.parametrize("chunk", [1, 2])
@pytest.mark.parametrize(("window", "prompt"), [(4, 3), (4, 4), (4, 5), (4, 9), (1, 3), (9, 9), (9, 8), (15, 9)])
@torch.no_grad()
def test_decoding_equals_one_pass(window: int, prompt: int, chunk: int, position: str, kernel: str) -> None:
    """Windows shorter than the prompt, as long, longer by one, of the token alone, and of all that is ever written."""
    attention, init = {"heads": 2, "window": window}, {"kind": "normal", "std": 0.3}
    declared = Architecture(vocab=VOCAB, width=16, depth=2, position=position, attention=attention, init=init)
    model, length = build(declared, kernel=kernel).eval(), prompt + 6
    tokens_BT = torch.randint(VOCAB, (2, length), generator=torch.Generator().manual_seed(prompt))
    cache, start, out = ContiguousCache(2, length, tokens_BT.device), 0, []
    for size in [prompt] + [chunk] * (6 // chunk):
        positions_BT = torch.arange(start, start + size).expand(2, -1)
        places = cache.place(positions_BT, torch.zeros_like(positions_BT))
        out.append(model.encode(tokens_BT[:, start : start + size], positions_BT, Cached(cache, places, kernel)))
        cache.advance(size)
        start += size
    logits = F.linear(torch.cat(out, dim=1), model.head_weight)
    torch.testing.assert_close(logits, model(tokens_BT), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@pytest.mark.parametrize("window", [1, 2, 4, 100])
@torch.no_grad()
def test_exactly_the_declared_keys_are_seen(window: int, kernel: str) -> None:
    """The weights of query t, read off with one-hot values: above 0 for the window's keys, itself included, and only those."""
    length = 9
    declared = Architecture(width=length, depth=1, position="none", attention={"heads": 1, "window": window})
    scoring = build(declared).blocks[0].attention.scoring
    positions = torch.arange(length)[None]
    attend = Dense(Places(positions, positions, consecutive=True), kernel)
    weights = attend(*torch.randn(2, 1, 1, length, length), torch.eye(length)[None, None], scoring)[0, 0]
    for t in range(length):
        seen = weights[t].nonzero()[:, 0].tolist()
        assert seen == list(range(max(0, t - window + 1), t + 1))
