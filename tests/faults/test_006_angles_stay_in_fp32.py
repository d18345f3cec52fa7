"""Long contexts fail in 16 bit only: frequencies or positions lived in a buffer that a model-wide cast rounded."""

import numpy as np
import pytest
import torch

from isoflop.model import Architecture, build
from isoflop.model.position import angles
from models import bias

HEAD_WIDTH, LENGTH = 64, 4096
EXACT = np.arange(LENGTH)[:, None] * 10_000.0 ** (-np.arange(0, HEAD_WIDTH, 2) / HEAD_WIDTH)


def test_angles_against_float64() -> None:
    cos, sin = angles(torch.arange(LENGTH)[None], HEAD_WIDTH, 10_000.0)
    assert cos.dtype == torch.float32
    assert np.abs(cos[0].double().numpy() - np.cos(EXACT)).max() <= 2e-4
    assert np.abs(sin[0].double().numpy() - np.sin(EXACT)).max() <= 2e-4


@pytest.mark.parametrize("cast", ["built", "cast_after", "autocast"])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotation_of_a_16_bit_model(layout: str, cast: str) -> None:
    """What a rotation makes of (1, 0) pairs is the cos and sin it used."""
    position = {"kind": "rope", "layout": layout}
    declared = Architecture(width=HEAD_WIDTH, depth=1, position=position, attention={"heads": 1})
    model = build(declared, dtype=torch.bfloat16 if cast == "built" else torch.float32)
    model = model.bfloat16() if cast == "cast_after" else model
    term = model.blocks[0].attention.terms[0]
    x = torch.zeros(1, 1, LENGTH, HEAD_WIDTH, dtype=torch.bfloat16)
    first, second = (slice(0, 32), slice(32, 64)) if layout == "half" else (slice(0, 64, 2), slice(1, 64, 2))
    x[..., first] = 1
    with torch.autocast("cpu", torch.bfloat16, enabled=cast == "autocast"):
        turned = term.rotate(x, torch.arange(LENGTH)[None], lambda key, make: make())[0, 0].double().numpy()
    assert np.abs(turned[:, first] - np.cos(EXACT)).max() <= 4e-3
    assert np.abs(turned[:, second] - np.sin(EXACT)).max() <= 4e-3


@pytest.mark.parametrize("autocast", [False, True])
def test_sinusoidal_embedding_of_a_16_bit_model(autocast: bool) -> None:
    declared = Architecture(width=HEAD_WIDTH, depth=1, position={"kind": "sinusoidal", "layout": "half"})
    embedding = build(declared, dtype=torch.bfloat16).bfloat16().positions[0]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        vectors = embedding(torch.arange(LENGTH)[None])[0].double().numpy()
    assert np.abs(vectors - np.concatenate([np.sin(EXACT), np.cos(EXACT)], axis=1)).max() <= 2e-4


@pytest.mark.parametrize("heads", [8, 12])
def test_alibi_of_a_16_bit_model(heads: int) -> None:
    declared = Architecture(width=96, depth=1, position="alibi", attention={"heads": heads})
    term = build(declared, dtype=torch.bfloat16).bfloat16().blocks[0].attention.terms[0]
    positions = torch.arange(LENGTH)[None]
    found = bias(term, positions[:, -1:], positions)[0, 0, 0]
    slope = 2.0 ** (-8 / 8)  # the first head of 8, and of the authors' rule for 12
    assert found.dtype == torch.float32
    assert found.tolist() == [-slope * distance for distance in range(LENGTH - 1, -1, -1)]
