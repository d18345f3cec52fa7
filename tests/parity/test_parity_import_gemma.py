"""Gemma 2 and Gemma 3 as transformers saves them: read, compared, written and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from saved import NO_TOKENS, VOCAB, built, check_family, check_logits, save
from transformers import Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig

from isoflop.interop import import_model

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 80,
    "query_pre_attn_scalar": 24,
    "sliding_window": 5,
    "attn_implementation": "eager",
    **NO_TOKENS,
}


def gemma(cls: Any, config: Any) -> Any:
    """Gains are held as w in 1 + w here, so they are drawn around 0."""
    peer = built(cls, config)
    with torch.no_grad():
        for name, parameter in peer.named_parameters():
            if "norm" in name:
                parameter.sub_(1)
    return peer


def at(imported: Any) -> list[int | None]:
    return [block.attention.window for block in imported.architecture.declarations]


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"num_hidden_layers": 4}, [5, None, 5, None]),
        ({"num_hidden_layers": 3, "attn_logit_softcapping": 0.7, "final_logit_softcapping": 2.0}, [5, None, 5]),
        ({"num_hidden_layers": 2, "attn_logit_softcapping": None, "final_logit_softcapping": None}, [5, None]),
        ({"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2, "attention_bias": True}, [None, None]),
    ],
    ids=["plain", "tight-caps", "no-caps", "no-windows"],
)
def test_gemma2(changes: dict[str, Any], windows: list[int | None], tmp_path: Path) -> None:
    imported = check_family(gemma(Gemma2ForCausalLM, Gemma2Config(**SIZES, **changes)), tmp_path)
    assert at(imported) == windows


ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
    "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 900.0},
}


@pytest.mark.parametrize("depth", [2, 7])
def test_gemma3(depth: int, tmp_path: Path) -> None:
    config = Gemma3TextConfig(**SIZES, num_hidden_layers=depth, rope_parameters=ROPES)
    imported = check_family(gemma(Gemma3ForCausalLM, config), tmp_path)
    assert at(imported) == [None if number == 5 else 5 for number in range(depth)]
    assert len({block.position for block in imported.architecture.declarations}) == (2 if depth > 5 else 1)


def test_gemma3_in_the_words_of_older_versions(tmp_path: Path) -> None:
    peer = gemma(Gemma3ForCausalLM, Gemma3TextConfig(**SIZES, num_hidden_layers=7, rope_parameters=ROPES))
    old = {"rope_theta": 900.0, "rope_local_base_freq": 30.0, "rope_scaling": {"rope_type": "linear", "factor": 3.0}}
    gone = {"rope_parameters": ..., "layer_types": ..., "sliding_window_pattern": 6}
    check_logits(peer, import_model(save(peer, tmp_path, **old, **gone)))
