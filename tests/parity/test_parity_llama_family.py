"""Llama, Mistral and GLM of transformers: the same weights give the same logits and the same text."""

import pytest
import torch
from torch import Tensor
from transformers import (
    GlmConfig,
    GlmForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)
from transplant import random_tokens, randomise, stacked, transplant

import isoflop

DEPTH, WIDTH, HEADS, KV_HEADS, HIDDEN, VOCAB = 3, 48, 6, 2, 80, 97
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def ours(**changes: object) -> isoflop.Architecture:
    sizes = {"vocab": VOCAB, "width": WIDTH, "depth": DEPTH, "attention.heads": HEADS, "ffn.hidden": HIDDEN}
    return isoflop.load("llama", **{**sizes, **changes})


def mapped(peer: torch.nn.Module, fused_mlp: bool = False) -> dict[str, Tensor]:
    theirs = peer.state_dict()
    out = {
        "embed.weight": theirs["model.embed_tokens.weight"],
        "final_norm.gain": theirs["model.norm.weight"],
        "head.weight": theirs["lm_head.weight"],
    }
    for i in range(DEPTH):
        layer, block = f"model.layers.{i}.", f"blocks.{i}."
        gate_and_up = ["mlp.gate_up_proj"] if fused_mlp else ["mlp.gate_proj", "mlp.up_proj"]
        out |= {
            block + "attention.qkv.weight": stacked(theirs, *(f"{layer}self_attn.{p}_proj.weight" for p in "qkv")),
            block + "attention.o.weight": theirs[layer + "self_attn.o_proj.weight"],
            block + "attention_join.norm_in.gain": theirs[layer + "input_layernorm.weight"],
            block + "ffn_join.norm_in.gain": theirs[layer + "post_attention_layernorm.weight"],
            block + "ffn.up.weight": stacked(theirs, *(f"{layer}{p}.weight" for p in gate_and_up)),
            block + "ffn.down.weight": theirs[layer + "mlp.down_proj.weight"],
        }
    return out


def assert_same_logits(peer: torch.nn.Module, model: torch.nn.Module, length: int = 29) -> None:
    tokens_BT = random_tokens(3, length, vocab=VOCAB)
    with torch.no_grad():
        theirs, mine = peer(tokens_BT).logits, model(tokens_BT)
    assert theirs.std() > 0.5  # the comparison is of logits that say something
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def assert_same_text(peer: torch.nn.Module, model: torch.nn.Module) -> None:
    prompts = [random_tokens(length, vocab=VOCAB, seed=length).tolist() for length in (1, 9, 14)]
    theirs = [
        peer.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False)[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    assert [len(row) for row in theirs] == [32, 32, 32]
    assert model.generate(prompts, 32) == theirs


@pytest.mark.parametrize("theirs", ["eager", "sdpa"])
@pytest.mark.parametrize(("kv_heads", "base"), [(HEADS, 10_000.0), (KV_HEADS, 500_000.0), (1, 100.0)])
def test_llama(kv_heads: int, base: float, theirs: str) -> None:
    rope = {"rope_type": "default", "rope_theta": base}
    config = LlamaConfig(**SIZES, num_key_value_heads=kv_heads, rope_parameters=rope, attn_implementation=theirs)
    peer = randomise(LlamaForCausalLM(config))
    assert peer.config._attn_implementation == theirs
    model = transplant(ours(**{"attention.kv_heads": kv_heads, "position.0.base": base}), mapped(peer))
    assert_same_logits(peer, model)
    assert_same_text(peer, model)


@pytest.mark.parametrize(
    ("rope", "scaling"),
    [
        (
            {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
            {"kind": "llama3", "original_length": 32},
        ),
        ({"rope_type": "yarn", "factor": 4.0}, {"kind": "yarn", "factor": 4.0, "original_length": 32}),
    ],
    ids=["llama3", "yarn"],
)
def test_llama_scaled(rope: dict[str, object], scaling: dict[str, object]) -> None:
    theirs = {**rope, "rope_theta": 50.0, "original_max_position_embeddings": 32}
    peer = randomise(LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=KV_HEADS, rope_parameters=theirs)))
    changes = {"attention.kv_heads": KV_HEADS, "position.0.base": 50.0, "position.0.scaling": scaling}
    model = transplant(ours(**changes), mapped(peer))
    assert_same_logits(peer, model)
    assert_same_text(peer, model)


def test_llama_head_width_apart_from_the_model_width() -> None:
    peer = randomise(LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=KV_HEADS, head_dim=10)))
    model = transplant(ours(**{"attention.kv_heads": KV_HEADS, "attention.head_width": 10}), mapped(peer))
    assert_same_logits(peer, model)


def test_llama_gradients() -> None:
    peer = randomise(LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=KV_HEADS)))
    model = transplant(ours(**{"attention.kv_heads": KV_HEADS}), mapped(peer))
    tokens_BT, weight_BTV = random_tokens(2, 17, vocab=VOCAB), torch.randn(2, 17, VOCAB)
    (peer(tokens_BT).logits * weight_BTV).sum().backward()
    (model(tokens_BT) * weight_BTV).sum().backward()
    for block, layer in zip(model.blocks, peer.model.layers, strict=True):
        projections = [getattr(layer.self_attn, f"{p}_proj").weight.grad for p in "qkv"]
        torch.testing.assert_close(block.attention.qkv.weight.grad, torch.cat(projections), rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(model.embed.weight.grad, peer.model.embed_tokens.weight.grad, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("theirs", ["eager", "sdpa"])
@pytest.mark.parametrize("window", [1, 4, 100])
def test_mistral_sliding_window(window: int, theirs: str) -> None:
    config = MistralConfig(
        **SIZES, num_key_value_heads=KV_HEADS, sliding_window=window, head_dim=8, attn_implementation=theirs
    )
    peer = randomise(MistralForCausalLM(config))
    model = transplant(ours(**{"attention.kv_heads": KV_HEADS, "attention.window": window}), mapped(peer))
    assert_same_logits(peer, model)
    if window > 1:  # with a window of 1 the peer's own cached text differs from its uncached text
        assert_same_text(peer, model)


def test_smollm3_blocks_without_positions() -> None:
    rope = {"rope_type": "default", "rope_theta": 50.0}
    theirs = {**SIZES, "num_key_value_heads": KV_HEADS, "rope_parameters": rope, "no_rope_layers": [1, 0, 1]}
    peer = randomise(SmolLM3ForCausalLM(SmolLM3Config(**theirs, use_sliding_window=False, tie_word_embeddings=False)))
    blocks = [{"at": "1", "position": "none"}]
    model = transplant(
        ours(**{"attention.kv_heads": KV_HEADS, "position.0.base": 50.0, "blocks": blocks}), mapped(peer)
    )
    assert_same_logits(peer, model)
    assert_same_text(peer, model)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_glm_interleaved_rope(fraction: float) -> None:
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": fraction}
    config = GlmConfig(**SIZES, num_key_value_heads=KV_HEADS, head_dim=8, rope_parameters=rope, attention_bias=False)
    peer = randomise(GlmForCausalLM(config))
    changes = {"attention.kv_heads": KV_HEADS, "position.0.layout": "interleaved", "position.0.fraction": fraction}
    model = transplant(ours(**changes), mapped(peer, fused_mlp=True))
    assert_same_logits(peer, model)
    assert_same_text(peer, model)
