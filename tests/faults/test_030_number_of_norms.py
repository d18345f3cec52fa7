"""A post-norm stack ends with two norms, or a pre-norm stack without one."""

import pytest
import torch

from isoflop.model import Architecture, build
from isoflop.model.norm import LayerNorm, RMSNorm

DEPTH = 3


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize(("join", "expected"), [("pre", 2 * DEPTH + 1), ("post", 2 * DEPTH)])
def test_norms_of_a_decoder_and_all_of_them_learn(join: str, expected: int, norm: str) -> None:
    model = build(Architecture(width=16, depth=DEPTH, join=join, norm=norm, attention={"heads": 2}))
    norms = [module for module in model.modules() if isinstance(module, LayerNorm | RMSNorm)]
    assert len(norms) == expected
    model(torch.arange(12)[None]).square().sum().backward()
    for module in norms:
        assert module.gain.grad.abs().max() > 0


def test_the_last_block_decides() -> None:
    """Joins may differ from block to block: what leaves the last one unnormalised needs the final norm."""
    sizes = {"width": 16, "depth": DEPTH, "attention": {"heads": 2}}
    for base, last, expected in [("post", "pre", 2 * DEPTH + 1), ("pre", "post", 2 * DEPTH)]:
        model = build(Architecture(**sizes, join=base, blocks=[{"at": "-1", "join": last}]))
        assert sum(isinstance(module, LayerNorm) for module in model.modules()) == expected
