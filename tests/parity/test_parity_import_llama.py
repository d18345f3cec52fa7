"""Llama, Mistral, Qwen 2 and Qwen 3 as transformers saves them: read, compared, written and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from saved import NO_TOKENS, VOCAB, built, check_family, check_logits, save
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from isoflop.interop import import_model

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    **NO_TOKENS,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LENGTHS = {"rope_theta": 50.0, "original_max_position_embeddings": 32}


def llama(**changes: Any) -> Any:
    return built(LlamaForCausalLM, LlamaConfig(**{**SIZES, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 6, "rms_norm_eps": 0.03, "tie_word_embeddings": True},
        {"num_key_value_heads": 1, "head_dim": 10, "hidden_act": "gelu_pytorch_tanh"},
        {"attention_bias": True, "mlp_bias": True},
        {"rope_parameters": {**LLAMA3, **LENGTHS}},
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 20.0, **LENGTHS}},
        {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 50.0}},
    ],
    ids=["plain", "mha-tied", "mqa-wide", "biases", "llama3", "yarn", "linear"],
)
def test_llama(changes: dict[str, Any], tmp_path: Path) -> None:
    check_family(llama(**changes), tmp_path)


@pytest.mark.parametrize("window", [4, 100, None])
def test_mistral(window: int | None, tmp_path: Path) -> None:
    imported = check_family(built(MistralForCausalLM, MistralConfig(**SIZES, sliding_window=window)), tmp_path)
    assert imported.architecture.attention.window == window


def test_the_window_of_a_mistral_that_does_not_name_it_is_that_of_its_first_release(tmp_path: Path) -> None:
    peer = built(MistralForCausalLM, MistralConfig(**SIZES))
    assert import_model(save(peer, tmp_path, sliding_window=...)).architecture.attention.window == 4096


@pytest.mark.parametrize(
    ("sliding", "at"), [({}, None), ({"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}, "1:")]
)
def test_qwen2(sliding: dict[str, Any], at: str | None, tmp_path: Path) -> None:
    imported = check_family(built(Qwen2ForCausalLM, Qwen2Config(**SIZES, **sliding)), tmp_path)
    assert imported.architecture.attention.bias == "qkv"
    assert [change.at for change in imported.architecture.blocks] == ([at] if at else [])


@pytest.mark.parametrize("changes", [{"head_dim": 16}, {"head_dim": 8, "attention_bias": True}])
def test_qwen3(changes: dict[str, Any], tmp_path: Path) -> None:
    imported = check_family(built(Qwen3ForCausalLM, Qwen3Config(**SIZES, **changes)), tmp_path)
    assert imported.architecture.attention.qk_norm.kind == "rms"


def test_the_words_of_older_versions(tmp_path: Path) -> None:
    """rope_theta and rope_scaling beside each other, buffers among the weights, the type of the weights by its old name."""
    peer = llama(rope_parameters={**LLAMA3, **LENGTHS})
    scaling = {**LLAMA3, "type": "llama3", "original_max_position_embeddings": 32}
    old = {"rope_parameters": ..., "rope_theta": 50.0, "rope_scaling": scaling, "torch_dtype": "float32", "dtype": ...}
    check_logits(peer, import_model(save(peer, tmp_path, **old)))
    frequencies = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(4) for n in range(3)}
    peer.save_pretrained(tmp_path, state_dict={**peer.state_dict(), **frequencies})
    check_logits(peer, import_model(tmp_path))
