"""A bias or a table kept from one call breaks the next one, or is shared between models."""

from typing import Any

import pytest
import torch

from isoflop.generate.cache import Cached, ContiguousCache
from isoflop.model import Architecture, Transformer, build
from models import able_kernels

VOCAB = 23
POSITIONS: list[Any] = [
    "alibi",
    "rope",
    {"kind": "rope", "layout": "interleaved"},
    "sinusoidal",
    "learned",
    "t5",
    "relative",
    "transformer_xl",
]

RUNS = [(p, kernel) for p in POSITIONS for kernel in able_kernels(Architecture(width=24, position=p))]


def fresh(position: Any, heads: int, kernel: str) -> Transformer:
    return build(
        Architecture(vocab=VOCAB, width=24, depth=2, position=position, attention={"heads": heads}), kernel=kernel
    )


@torch.no_grad()
def one_token_at_twelve(model: Transformer, tokens_BT: torch.Tensor) -> torch.Tensor:
    cache, positions_BT = (
        ContiguousCache(len(tokens_BT), 13, tokens_BT.device),
        torch.arange(13).expand(len(tokens_BT), -1),
    )
    for chunk in (slice(0, 12), slice(12, 13)):
        places = cache.place(positions_BT[:, chunk], torch.zeros_like(positions_BT[:, chunk]))
        out = model.encode(tokens_BT[:, chunk], positions_BT[:, chunk], Cached(cache, places, model.kernel))
        cache.advance(out.shape[1])
    return out


@pytest.mark.parametrize(("position", "kernel"), RUNS, ids=str)
@torch.no_grad()
def test_lengths_batches_head_counts_and_dtypes_in_turn(position: Any, kernel: str) -> None:
    used = {heads: fresh(position, heads, kernel) for heads in (2, 4)}
    generator = torch.Generator().manual_seed(0)
    for length, batch in [(12, 1), (13, 1), (11, 3), (1, 3), (12, 2)]:
        tokens_BT = torch.randint(VOCAB, (batch, length), generator=generator)
        for heads, model in used.items():
            assert torch.equal(model(tokens_BT), fresh(position, heads, kernel)(tokens_BT))
    tokens_BT = torch.randint(VOCAB, (3, 13), generator=generator)
    for heads, model in used.items():
        expected = one_token_at_twelve(fresh(position, heads, kernel), tokens_BT)
        assert torch.equal(one_token_at_twelve(model, tokens_BT), expected)
        again = fresh(position, heads, kernel).bfloat16()
        assert torch.equal(model.bfloat16()(tokens_BT), again(tokens_BT))


@pytest.mark.parametrize(
    "second",
    [
        {"position": {"kind": "alibi", "slopes": "geometric"}},
        {"attention": {"heads": 3}},
        {"attention": {"window": 3}},
        {"position": "rope"},
    ],
    ids=str,
)
@torch.no_grad()
def test_blocks_share_a_bias_only_where_it_is_the_same(second: dict[str, Any]) -> None:
    """The fused kernel keeps one mask for the blocks of a pass; the plain one computes it for each."""
    declared = Architecture(
        vocab=VOCAB, width=24, depth=3, position="alibi", attention={"heads": 6}, init={"kind": "normal", "std": 0.5}
    )
    mixed = declared.override({"blocks": [{"at": "1", **second}]})
    tokens_BT = torch.randint(VOCAB, (2, 11), generator=torch.Generator().manual_seed(0))
    fused, plain, uniform = (
        build(a, kernel=k)(tokens_BT) for a, k in [(mixed, "sdpa"), (mixed, "eager"), (declared, "sdpa")]
    )
    torch.testing.assert_close(fused, plain, rtol=0, atol=1e-5 * float(plain.abs().max()))
    assert not torch.allclose(fused, uniform, atol=1e-2)


@torch.no_grad()
def test_blocks_share_a_rotation_only_where_it_is_the_same() -> None:
    declared = Architecture(vocab=VOCAB, width=24, depth=2, position="rope", attention={"heads": 2})
    tokens_BT = torch.randint(VOCAB, (2, 11), generator=torch.Generator().manual_seed(0))
    changes = [{"base": 9.0}, {"layout": "interleaved"}, {"fraction": 0.5}]
    mixed = [
        declared.override({"blocks": [{"at": "1", "position": {"kind": "rope", **change}}]})
        for change in ({}, *changes)
    ]
    outputs = [build(architecture)(tokens_BT) for architecture in mixed]
    for other in outputs[1:]:
        assert not torch.equal(other, outputs[0])
