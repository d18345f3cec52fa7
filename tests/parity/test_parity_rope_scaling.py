"""The rotary scalings of transformers: frequencies, and the factor on attention."""

from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from isoflop.model import Architecture
from isoflop.model.position import RoPE
from isoflop.model.slots import Setting

LONG = [1.0 + i**2 / 3 for i in range(32)]
SHORT = [1.0 + i / 50 for i in range(32)]
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], int | None]] = {
    # name: ours, theirs, length of their text
    "linear": ({"kind": "linear", "factor": 3.0}, {"rope_type": "linear", "factor": 3.0}, None),
    "dynamic": (
        {"kind": "dynamic_ntk", "factor": 2.0, "original_length": 2048, "longest": 4096},
        {"rope_type": "dynamic", "factor": 2.0},
        4096,
    ),
    "dynamic-far": (
        {"kind": "dynamic_ntk", "factor": 1.0, "original_length": 2048, "longest": 30_000},
        {"rope_type": "dynamic", "factor": 1.0},
        30_000,
    ),
    "yarn": (
        {"kind": "yarn", "factor": 16.0, "original_length": 4096},
        {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096},
        None,
    ),
    "yarn-options": (
        {"kind": "yarn", "factor": 4.0, "original_length": 512, "beta_fast": 20.0, "beta_slow": 2.0,
         "attention_factor": 1.4},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "beta_fast": 20, "beta_slow": 2,
         "attention_factor": 1.4},
        None,
    ),
    "yarn-untruncated": (
        {"kind": "yarn", "factor": 32.0, "original_length": 4096, "truncate": False},
        {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},
        None,
    ),
    "yarn-a-step": (
        {"kind": "yarn", "factor": 4.0, "original_length": 4, "beta_fast": 32.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4},
        None,
    ),
    "longrope-long": (
        {"kind": "longrope", "factor": 32.0, "original_length": 4096, "longest": 5000, "short_factors": SHORT,
         "long_factors": LONG},
        {"rope_type": "longrope", "factor": 32.0, "original_max_position_embeddings": 4096, "short_factor": SHORT,
         "long_factor": LONG},
        5000,
    ),
    "longrope-short": (
        {"kind": "longrope", "factor": 8.0, "original_length": 4096, "longest": 4096, "short_factors": SHORT,
         "long_factors": LONG, "attention_factor": 1.1},
        {"rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 4096, "short_factor": SHORT,
         "long_factor": LONG, "attention_factor": 1.1},
        4096,
    ),
    "llama3": (
        {"kind": "llama3", "factor": 8.0, "original_length": 8192},
        {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0},
        None,
    ),
    "proportional": (
        {"kind": "proportional", "fraction": 0.25, "factor": 2.0},
        {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
        None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
@pytest.mark.parametrize("name", CASES)
def test_frequencies_and_attention_factor(name: str, base: float) -> None:
    ours, theirs, length = CASES[name]
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=1, head_dim=64, max_position_embeddings=2048,
        rope_parameters={**theirs, "rope_theta": base},
    )  # fmt: skip
    expected, factor = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, torch.device("cpu"), seq_len=length)
    scaling = RoPE(base=base, scaling=ours).scaling
    scaling.check(64)
    found = torch.tensor(scaling.frequencies(64, base))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)  # theirs are powers in fp32
    assert (found - expected).abs().max() <= 1e-6
    assert scaling.magnitude == pytest.approx(factor, rel=1e-12)


def test_mscale_is_another_way_to_write_the_attention_factor() -> None:
    """As DeepSeek V2 declares it."""
    theirs = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.7}
    config = LlamaConfig(rope_parameters={**theirs, "mscale_all_dim": 1.0, "rope_theta": 1e4})
    _, factor = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    expected = RoPE(scaling={"kind": "yarn", "factor": 40.0**0.7}).scaling.magnitude
    assert factor == pytest.approx(expected / RoPE(scaling={"kind": "yarn", "factor": 40.0}).scaling.magnitude)


def test_turned_vectors_carry_the_attention_factor() -> None:
    """On the rotated part of a head alone, as in transformers."""
    architecture = Architecture(width=16, attention={"heads": 1})
    rope = RoPE(fraction=0.5, scaling={"kind": "yarn", "attention_factor": 1.5})
    term = rope.term(Setting(architecture, architecture), 1, 16)
    x = torch.ones(1, 1, 3, 16)
    turned = term.rotate(x, torch.arange(3)[None], lambda key, make: make())
    torch.testing.assert_close(turned[..., :8].norm(dim=-1), 1.5 * x[..., :8].norm(dim=-1))
    assert torch.equal(turned[..., 8:], x[..., 8:])
