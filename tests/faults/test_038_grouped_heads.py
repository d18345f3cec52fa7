"""Grouped-query heads read the wrong key/value head: tiled (0, 1, 0, 1) where they are repeated (0, 0, 1, 1)."""

import pytest
import torch

from isoflop.model import Architecture, build
from isoflop.model.attend import Dense
from isoflop.model.places import Places
from models import TRAINING_KERNELS

LENGTH = 7


def dense(kernel: str) -> Dense:
    positions = torch.arange(LENGTH)[None]
    return Dense(Places(positions, positions, consecutive=True), kernel)


@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@pytest.mark.parametrize(
    ("kv_heads", "read"), [(1, [0, 0, 0, 0]), (2, [0, 0, 1, 1]), (4, [0, 1, 2, 3])], ids=["mqa", "gqa", "mha"]
)
def test_which_head_a_query_head_reads(kv_heads: int, read: list[int], kernel: str) -> None:
    declared = Architecture(width=32, depth=1, position="none", attention={"heads": 4, "kv_heads": kv_heads})
    scoring = build(declared).blocks[0].attention.scoring
    v = torch.arange(kv_heads).float().view(1, kv_heads, 1, 1).expand(1, kv_heads, LENGTH, 8)
    out = dense(kernel)(torch.randn(1, 4, LENGTH, 8), torch.randn(1, kv_heads, LENGTH, 8), v, scoring)
    torch.testing.assert_close(out, torch.tensor(read).float().view(1, 4, 1, 1).expand_as(out))


@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
@pytest.mark.parametrize("kv_heads", [1, 2])
@torch.no_grad()
def test_grouped_equals_full_heads_with_repeated_rows(kv_heads: int, kernel: str) -> None:
    """The whole sublayer: the same rows of the stacked matrix, written out once for every query head."""
    sizes = {"width": 32, "depth": 1, "position": "rope"}
    grouped = build(Architecture(**sizes, attention={"heads": 4, "kv_heads": kv_heads})).blocks[0].attention
    full = build(Architecture(**sizes, attention={"heads": 4})).blocks[0].attention
    q, k, v = grouped.qkv.weight.split([32, 8 * kv_heads, 8 * kv_heads])
    wide = [rows.view(kv_heads, 8, 32).repeat_interleave(4 // kv_heads, dim=0).flatten(0, 1) for rows in (k, v)]
    full.qkv.weight.copy_(torch.cat([q, *wide]))
    full.o.weight.copy_(grouped.o.weight)
    x_BTD = torch.randn(2, LENGTH, 32, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(grouped(x_BTD, dense(kernel)), full(x_BTD, dense(kernel)), rtol=1e-5, atol=1e-7)
