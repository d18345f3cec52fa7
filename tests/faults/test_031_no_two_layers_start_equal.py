"""All layers start with identical weights: they were copies of one initialised layer."""

import itertools

import pytest
import torch

from isoflop.model import Architecture, build
from isoflop.model.slots import Init


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", list(Init.kinds))
def test_every_matrix_is_drawn_by_itself(kind: str, dtype: torch.dtype) -> None:
    attention = {"heads": 2, "kv_heads": 1}
    declared = Architecture(width=16, depth=3, init=kind, attention=attention, ffn={"kind": "glu", "hidden": 16})
    model = build(declared, dtype=dtype)
    matrices = {}
    for number, block in enumerate(model.blocks):
        q, k, v = block.attention.qkv.weight.split([16, 8, 8])
        gate, up = block.ffn.up.weight.chunk(2)
        named = {
            "q": q,
            "k": k,
            "v": v,
            "o": block.attention.o.weight,
            "gate": gate,
            "up": up,
            "down": block.ffn.down.weight,
        }
        matrices |= {f"{number}.{name}": matrix for name, matrix in named.items()}
    scaled = {name: (matrix / matrix.std()).flatten()[:128] for name, matrix in matrices.items()}
    for (name, a), (other, b) in itertools.combinations(scaled.items(), 2):
        # Independent draws of 128 values correlate by 0.09 or so; equal or rescaled ones by 1.
        assert abs((a * b).detach().float().mean()) < 0.6, (name, other)
