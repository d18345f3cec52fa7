"""Pre-norm puts the normalised value on the skip path, or the flag changes nothing."""

import pytest
import torch
import torch.nn.functional as F

from isoflop.model import Architecture, build
from isoflop.model.attend import Dense
from isoflop.model.places import Places


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("join", ["pre", "post"])
@torch.no_grad()
def test_a_block_whose_sublayers_return_zero(join: str, norm: str) -> None:
    model = build(Architecture(width=32, depth=1, join=join, norm=norm, position="none", attention={"heads": 2}))
    block = model.blocks[0]
    block.attention.o.weight.zero_()
    block.ffn.down.weight.zero_()
    x_BTD = 3 + 5 * torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(7)[None]
    out = block(x_BTD, Dense(Places(positions, positions, consecutive=True)))
    if join == "pre":
        assert torch.equal(out, x_BTD)
        return
    eps = model.architecture.norm.eps
    functional = {"layer": lambda x: F.layer_norm(x, (32,), eps=eps), "rms": lambda x: F.rms_norm(x, (32,), eps=eps)}
    torch.testing.assert_close(out, functional[norm](functional[norm](x_BTD)), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_pre_norm_sublayers_read_the_normalised_stream() -> None:
    """A stream 1000 times larger leaves what the sublayers add unchanged."""
    model = build(Architecture(width=32, depth=1, join="pre", norm="rms", position="none", attention={"heads": 2}))
    positions = torch.arange(7)[None]
    x_BTD = torch.randn(1, 7, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    block, places = model.blocks[0], Places(positions, positions, consecutive=True)
    joined = block.attention_join.norm_in
    small = block.attention(joined(x_BTD), Dense(places))
    large = block.attention(joined(1000 * x_BTD), Dense(places))
    torch.testing.assert_close(large, small, rtol=1e-4, atol=1e-6)
    added = block.attention_join(1000 * x_BTD, lambda x: block.attention(x, Dense(places))) - 1000 * x_BTD
    torch.testing.assert_close(added, small, rtol=0, atol=1e-3)
