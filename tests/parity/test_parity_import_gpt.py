"""GPT-2, GPT-NeoX, OPT, MPT, Falcon and Bloom as transformers saves them: read, compared, written and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from saved import NO_TOKENS, VOCAB, built, check_family, check_logits, save
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MptConfig,
    MptForCausalLM,
    OPTConfig,
    OPTForCausalLM,
)

from isoflop.interop import import_model


def gpt2(**changes: Any) -> Any:
    sizes = {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 3, "n_head": 4, "n_positions": 64}
    return built(GPT2LMHeadModel, GPT2Config(**{**sizes, **NO_TOKENS, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_inner": 100, "activation_function": "gelu", "layer_norm_epsilon": 0.02},
        {"scale_attn_weights": False, "tie_word_embeddings": False, "embd_pdrop": 0.2},
    ],
    ids=["plain", "sizes", "unscaled-untied"],
)
def test_gpt2(changes: dict[str, Any], tmp_path: Path) -> None:
    imported = check_family(gpt2(**changes), tmp_path)
    assert imported.architecture.dropout == changes.get("embd_pdrop", 0.1)
    assert [block.dropout for block in imported.architecture.declarations] == [0.1] * 3


def test_names_of_a_bare_model(tmp_path: Path) -> None:
    """The file that is downloaded most lacks the prefix, and holds masks."""
    peer = gpt2()
    file = save(peer, tmp_path) / "model.safetensors"
    weights = {name.removeprefix("transformer."): tensor for name, tensor in load_file(file).items()}
    masks = {f"h.{n}.attn.bias": weights["wpe.weight"].new_ones(1, 1, 64, 64) for n in range(3)}
    save_file({**weights, **masks}, file)
    check_logits(peer, import_model(tmp_path))


SIZES = {"vocab_size": VOCAB, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, **NO_TOKENS}


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("fraction", [0.5, 1.0])
def test_gpt_neox(parallel: bool, fraction: float, tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": fraction}
    changes = {"use_parallel_residual": parallel, "attention_bias": parallel, "rope_parameters": rope}
    config = GPTNeoXConfig(**SIZES, intermediate_size=100, layer_norm_eps=1e-4, **changes)
    imported = check_family(built(GPTNeoXForCausalLM, config), tmp_path)
    assert imported.architecture.arrangement.kind == ("parallel" if parallel else "serial")


def test_gpt_neox_in_the_words_of_older_versions(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}
    peer = built(GPTNeoXForCausalLM, GPTNeoXConfig(**SIZES, intermediate_size=100, rope_parameters=rope))
    old = {"rope_parameters": ..., "rotary_pct": 0.5, "rotary_emb_base": 500}
    check_logits(peer, import_model(save(peer, tmp_path, **old)))


@pytest.mark.parametrize(
    "changes", [{}, {"do_layer_norm_before": False, "activation_function": "gelu"}, {"enable_bias": False}]
)
def test_opt(changes: dict[str, Any], tmp_path: Path) -> None:
    config = OPTConfig(**SIZES, ffn_dim=80, max_position_embeddings=64, **changes)
    unread = {"model.decoder.embed_positions.weight": 2}
    imported = check_family(built(OPTForCausalLM, config), tmp_path, unread)
    assert imported.architecture.limit == 64


@pytest.mark.parametrize("heads", [4, 6])
def test_mpt(heads: int, tmp_path: Path) -> None:
    sizes = {"vocab_size": VOCAB, "d_model": 48, "n_heads": heads, "n_layers": 3, "max_seq_len": 64, **NO_TOKENS}
    attention = {"softmax_scale": 0.2} if heads == 6 else {}
    check_family(built(MptForCausalLM, MptConfig(**sizes, attn_config=attention)), tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"bias": True, "multi_query": False, "ffn_hidden_size": 100},
        {"parallel_attn": False},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
        {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
    ],
    ids=["7b", "mha-biases", "serial", "40b", "11b"],
)
def test_falcon(changes: dict[str, Any], tmp_path: Path) -> None:
    check_family(built(FalconForCausalLM, FalconConfig(**SIZES, **changes)), tmp_path)


@pytest.mark.parametrize("heads", [4, 6])
def test_bloom(heads: int, tmp_path: Path) -> None:
    config = BloomConfig(vocab_size=VOCAB, hidden_size=48, n_layer=3, n_head=heads, **NO_TOKENS)
    imported = check_family(built(BloomForCausalLM, config), tmp_path)
    assert imported.architecture.embed_norm == imported.architecture.norm
