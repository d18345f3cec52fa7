"""GPT-2, GPT-NeoX and MPT of transformers, and the attention of GPT-J: the same weights give the same logits."""

import pytest
import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MptConfig,
    MptForCausalLM,
)
from transformers.models.gptj.modeling_gptj import GPTJAttention, GPTJRotaryEmbedding
from transplant import random_tokens, randomise, transplant

import isoflop
from isoflop.model import Architecture, build
from isoflop.model.attend import Dense
from isoflop.model.places import Places

DEPTH, WIDTH, HEADS, VOCAB, LENGTH = 3, 48, 4, 89, 64
NO_TOKENS = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}


def assert_same(peer: torch.nn.Module, model: torch.nn.Module) -> None:
    tokens_BT = random_tokens(3, 29, vocab=VOCAB)
    with torch.no_grad():
        theirs, mine = peer(tokens_BT).logits, model(tokens_BT)
    assert theirs.std() > 0.5
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    prompts = [random_tokens(length, vocab=VOCAB, seed=length).tolist() for length in (2, 11, 32)]
    text = [
        peer.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False)[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    assert [len(row) for row in text] == [32, 32, 32]
    assert model.generate(prompts, 32) == text


def norms(theirs: dict[str, Tensor], mine: str, name: str, bias: bool = True) -> dict[str, Tensor]:
    gain = {f"{mine}.gain": theirs[f"{name}.weight"]}
    return {**gain, f"{mine}.bias": theirs[f"{name}.bias"]} if bias else gain


@pytest.mark.parametrize("theirs", ["eager", "sdpa"])
def test_gpt2(theirs: str) -> None:
    sizes = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": DEPTH, "n_head": HEADS, "n_positions": LENGTH}
    peer = randomise(GPT2LMHeadModel(GPT2Config(**sizes, **NO_TOKENS, attn_implementation=theirs)))
    weights = peer.state_dict()
    mapped = {"embed.weight": weights["transformer.wte.weight"], **norms(weights, "final_norm", "transformer.ln_f")}
    mapped["positions.0.table.weight"] = weights["transformer.wpe.weight"]
    for i in range(DEPTH):
        layer, block = f"transformer.h.{i}.", f"blocks.{i}."
        mapped |= norms(weights, block + "attention_join.norm_in", layer + "ln_1")
        mapped |= norms(weights, block + "ffn_join.norm_in", layer + "ln_2")
        for mine, name in {
            "attention.qkv": "attn.c_attn",
            "attention.o": "attn.c_proj",
            "ffn.up": "mlp.c_fc",
            "ffn.down": "mlp.c_proj",
        }.items():
            mapped[f"{block}{mine}.weight"] = weights[f"{layer}{name}.weight"].T  # Conv1D holds (in, out)
            mapped[f"{block}{mine}.bias"] = weights[f"{layer}{name}.bias"]
    changes = {"attention.heads": HEADS, "ffn.hidden": 4 * WIDTH, "position.0.length": LENGTH}
    model = transplant(isoflop.load("gpt2", vocab=VOCAB, width=WIDTH, depth=DEPTH, **changes), mapped)
    assert_same(peer, model)


@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_gpt_neox_partial_rotary(fraction: float) -> None:
    head_width = 16
    config = GPTNeoXConfig(
        vocab_size=VOCAB,
        hidden_size=HEADS * head_width,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        intermediate_size=100,
        max_position_embeddings=LENGTH,
        use_parallel_residual=False,
        hidden_act="gelu",
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": fraction},
        **NO_TOKENS,
    )
    peer = randomise(GPTNeoXForCausalLM(config))
    weights = peer.state_dict()
    mapped = {
        "embed.weight": weights["gpt_neox.embed_in.weight"],
        "head.weight": peer.get_output_embeddings().weight.detach(),
        **norms(weights, "final_norm", "gpt_neox.final_layer_norm"),
    }
    for i in range(DEPTH):
        layer, block = f"gpt_neox.layers.{i}.", f"blocks.{i}."
        mapped |= norms(weights, block + "attention_join.norm_in", layer + "input_layernorm")
        mapped |= norms(weights, block + "ffn_join.norm_in", layer + "post_attention_layernorm")
        for own in ("weight", "bias"):
            # Their rows are grouped by head (q, k, v of head 0, then of head 1); ours are all q, all k, all v.
            grouped = weights[f"{layer}attention.query_key_value.{own}"].unflatten(0, (HEADS, 3, head_width))
            mapped[f"{block}attention.qkv.{own}"] = grouped.transpose(0, 1).flatten(0, 2)
            mapped[f"{block}attention.o.{own}"] = weights[f"{layer}attention.dense.{own}"]
            mapped[f"{block}ffn.up.{own}"] = weights[f"{layer}mlp.dense_h_to_4h.{own}"]
            mapped[f"{block}ffn.down.{own}"] = weights[f"{layer}mlp.dense_4h_to_h.{own}"]
    architecture = Architecture(
        vocab=VOCAB,
        width=HEADS * head_width,
        depth=DEPTH,
        position={"kind": "rope", "base": 5000.0, "fraction": fraction},
        attention={"heads": HEADS, "bias": True},
        ffn={"activation": "gelu", "hidden": 100, "bias": True},
        tie_head=False,
    )
    assert_same(peer, transplant(architecture, mapped))


@pytest.mark.parametrize("heads", [4, 6])
def test_mpt_alibi(heads: int) -> None:
    config = MptConfig(d_model=WIDTH, n_heads=heads, n_layers=DEPTH, max_seq_len=LENGTH, vocab_size=VOCAB, **NO_TOKENS)
    peer = randomise(MptForCausalLM(config))
    weights = peer.state_dict()
    mapped = {
        "embed.weight": weights["transformer.wte.weight"],
        **norms(weights, "final_norm", "transformer.norm_f", bias=False),
    }
    for i in range(DEPTH):
        layer, block = f"transformer.blocks.{i}.", f"blocks.{i}."
        mapped |= norms(weights, block + "attention_join.norm_in", layer + "norm_1", bias=False)
        mapped |= norms(weights, block + "ffn_join.norm_in", layer + "norm_2", bias=False)
        mapped[block + "attention.qkv.weight"] = weights[layer + "attn.Wqkv.weight"]
        mapped[block + "attention.o.weight"] = weights[layer + "attn.out_proj.weight"]
        mapped[block + "ffn.up.weight"] = weights[layer + "ffn.up_proj.weight"]
        mapped[block + "ffn.down.weight"] = weights[layer + "ffn.down_proj.weight"]
    architecture = Architecture(
        vocab=VOCAB,
        width=WIDTH,
        depth=DEPTH,
        position="alibi",
        norm={"kind": "layer", "bias": False},
        attention={"heads": heads},
        ffn={"activation": "gelu"},
    )
    assert_same(peer, transplant(architecture, mapped))


@pytest.mark.parametrize("rotated", [4, 12])
def test_gptj_attention_interleaved_rope(rotated: int) -> None:
    """GPT-J runs its sublayers side by side, so its attention is compared alone."""
    config = GPTJConfig(n_embd=WIDTH, n_head=HEADS, rotary_dim=rotated, n_positions=LENGTH, attn_implementation="eager")
    peer = randomise(GPTJAttention(config, layer_idx=0))
    weights = peer.state_dict()
    layout = {"kind": "rope", "layout": "interleaved", "fraction": rotated * HEADS / WIDTH}
    architecture = Architecture(vocab=VOCAB, width=WIDTH, depth=1, position=layout, attention={"heads": HEADS})
    attention = build(architecture).blocks[0].attention
    stacked = torch.cat([weights[f"{name}_proj.weight"] for name in "qkv"])
    attention.load_state_dict({"qkv.weight": stacked, "o.weight": weights["out_proj.weight"]})
    x_BTD, positions_BT = torch.randn(2, 20, WIDTH), torch.arange(20)[None]
    causal = torch.full((20, 20), float("-inf")).triu(1)[None, None]
    with torch.no_grad():
        turns = GPTJRotaryEmbedding(config)(x_BTD, positions_BT)
        theirs = peer(x_BTD, position_embeddings=turns, attention_mask=causal)[0]
        mine = attention(x_BTD, Dense(Places(positions_BT, positions_BT, consecutive=True)))
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
