"""Attention to an encoder inherits the decoder's window, and most of the source is never seen."""

from typing import Any

import pytest
import torch

from isoflop.generate.cache import Cached, ContiguousCache
from isoflop.model import Architecture, Source, Transformer
from models import TRAINING_KERNELS, lively

WINDOW, SOURCE, TARGET = 4, 9, 7


def model_with(kernel: str, **changes: Any) -> Transformer:
    table = {"vocab": 23, "width": 16, "depth": 1, "attention": {"heads": 2, "window": WINDOW}}
    # The encoder looks at one token only, so that each reaches the decoder by its own state.
    encoder = {"attention": {"window": 1}}
    return lively(Architecture.parse({"form": "encoder_decoder", **table, "encoder": encoder, **changes}), kernel)


@torch.no_grad()
def cached(model: Transformer, tokens: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Features of the last token, decoded one by one."""
    cache = ContiguousCache(1, TARGET, torch.device("cpu"), model.read(Source(source)))
    out = torch.empty(0)
    for step in range(TARGET):
        position = torch.tensor([[step]])
        places = cache.place(position, torch.zeros_like(position))
        out = model.encode(tokens[:, step : step + 1], position, Cached(cache, places, model.kernel))
        cache.advance(1)
    return out[:, -1]


@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@torch.no_grad()
def test_every_token_of_the_source_matters_at_step_six(kernel: str) -> None:
    model = model_with(kernel)
    assert model.blocks[0].cross.scoring.window is None
    tokens, source = torch.arange(TARGET)[None], torch.arange(10, 10 + SOURCE)[None]
    plain = model.features(tokens, source=source)[:, -1]
    torch.testing.assert_close(cached(model, tokens, source), plain, rtol=1e-5, atol=1e-5)
    for place in range(SOURCE):
        changed = source.clone()
        changed[:, place] = 1
        for found in (model.features(tokens, source=changed)[:, -1], cached(model, tokens, changed)):
            assert (found - plain).abs().max() > 1e-4
    earlier = tokens.clone()
    earlier[:, : TARGET - WINDOW] += 10
    assert torch.equal(model.features(earlier, source=source)[:, -1], plain), (
        "the window holds on the decoder's own text"
    )
