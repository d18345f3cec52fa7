"""Latent attention of DeepSeek in transformers: the same weights give the same logits, gradients and text."""

import pytest
import torch
from torch import Tensor
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, DeepseekV3Config, DeepseekV3ForCausalLM
from transplant import random_tokens, randomise, stacked, transplant

import isoflop
from isoflop.generate import generate

DEPTH, WIDTH, HEADS, HIDDEN, VOCAB = 3, 48, 3, 80, 97
LATENT, CONTENT, ROTARY, VALUE = 20, 12, 8, 10

MODELS = {
    "2": (DeepseekV2Config, DeepseekV2ForCausalLM, {}),
    "3": (DeepseekV3Config, DeepseekV3ForCausalLM, {"rope_interleave": True}),
    "3, half": (DeepseekV3Config, DeepseekV3ForCausalLM, {"rope_interleave": False}),
}
pytestmark = [
    pytest.mark.parametrize("version", MODELS),
    pytest.mark.parametrize("query_latent", [None, 14], ids=["queries direct", "queries of a latent"]),
]


def theirs(version: str, query_latent: int | None) -> torch.nn.Module:
    """A dense feed-forward in every layer: their experts are not what is compared."""
    config, model, fields = MODELS[version]
    return randomise(
        model(
            config(
                vocab_size=VOCAB,
                hidden_size=WIDTH,
                intermediate_size=HIDDEN,
                num_hidden_layers=DEPTH,
                first_k_dense_replace=DEPTH,
                num_attention_heads=HEADS,
                num_key_value_heads=HEADS,
                kv_lora_rank=LATENT,
                q_lora_rank=query_latent,
                qk_nope_head_dim=CONTENT,
                qk_rope_head_dim=ROTARY,
                v_head_dim=VALUE,
                rms_norm_eps=1e-5,
                rope_parameters={"rope_type": "default", "rope_theta": 50.0},
                pad_token_id=None,
                bos_token_id=None,
                eos_token_id=None,
                **fields,
            )
        )
    )


def ours(version: str, query_latent: int | None) -> isoflop.Architecture:
    layout = "half" if version.endswith("half") else "interleaved"
    attention = {
        "kind": "latent",
        "heads": HEADS,
        "latent": LATENT,
        "query_latent": query_latent,
        "head_width": CONTENT,
        "rotary_width": ROTARY,
        "value_width": VALUE,
        # In their latents alone eps does not follow the model's.
        "latent_norm": {"kind": "rms", "eps": 1e-6, "cast": "before_gain"},
    }
    return isoflop.load(
        "llama",
        vocab=VOCAB,
        width=WIDTH,
        depth=DEPTH,
        attention=attention,
        ffn={"hidden": HIDDEN},
        position={"kind": "rope", "base": 50.0, "layout": layout},
    )


def mapped(weights: dict[str, Tensor], query_latent: int | None) -> dict[str, Tensor]:
    out = {
        "embed.weight": weights["model.embed_tokens.weight"],
        "final_norm.gain": weights["model.norm.weight"],
        "head.weight": weights["lm_head.weight"],
    }
    for i in range(DEPTH):
        layer, block = f"model.layers.{i}.", f"blocks.{i}."
        theirs, own = layer + "self_attn.", block + "attention."
        if query_latent is not None:
            out[own + "q_latent.0.weight"] = weights[theirs + "q_a_proj.weight"]
            out[own + "q_latent.1.gain"] = weights[theirs + "q_a_layernorm.weight"]
        asked = weights[theirs + ("q_proj" if query_latent is None else "q_b_proj") + ".weight"]
        # A head of theirs ends with what is turned, and ours begins with it.
        content, turned = asked.unflatten(0, (HEADS, -1)).split([CONTENT, ROTARY], dim=1)
        out[own + "q.weight"] = torch.cat([turned, content], dim=1).flatten(0, 1)
        out[own + "kv_latent.weight"] = weights[theirs + "kv_a_proj_with_mqa.weight"]
        out[own + "norm.gain"] = weights[theirs + "kv_a_layernorm.weight"]
        by_head = weights[theirs + "kv_b_proj.weight"].unflatten(0, (HEADS, -1)).split([CONTENT, VALUE], dim=1)
        out[own + "kv.weight"] = torch.cat([part.flatten(0, 1) for part in by_head])
        out[own + "o.weight"] = weights[theirs + "o_proj.weight"]
        out |= {
            block + "attention_join.norm_in.gain": weights[layer + "input_layernorm.weight"],
            block + "ffn_join.norm_in.gain": weights[layer + "post_attention_layernorm.weight"],
            block + "ffn.up.weight": stacked(weights, layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight"),
            block + "ffn.down.weight": weights[layer + "mlp.down_proj.weight"],
        }
    return out


def pair(
    version: str, query_latent: int | None, kernel: str | None = None
) -> tuple[torch.nn.Module, isoflop.Transformer]:
    peer = theirs(version, query_latent)
    return peer, transplant(ours(version, query_latent), mapped(dict(peer.state_dict()), query_latent), kernel)


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "banded", "chunked"])
def test_logits(version: str, query_latent: int | None, kernel: str) -> None:
    peer, model = pair(version, query_latent, kernel)
    tokens = random_tokens(2, 17, vocab=VOCAB)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), peer(tokens).logits, atol=2e-5, rtol=1e-4)


def test_gradients(version: str, query_latent: int | None) -> None:
    peer, model = (each.double().train() for each in pair(version, query_latent, "sdpa"))
    tokens = random_tokens(2, 9, vocab=VOCAB)
    weigh = torch.linspace(-1, 1, VOCAB, dtype=torch.float64)
    (model(tokens).tanh() * weigh).sum().backward()
    (peer(tokens).logits.tanh() * weigh).sum().backward()
    wanted = mapped({name: p.grad for name, p in peer.named_parameters() if p.grad is not None}, query_latent)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, wanted[name], atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_greedy_text_through_either_cache(version: str, query_latent: int | None) -> None:
    """Theirs keeps keys and values of every head, ours the latents, which one new token at a time meets as they are."""
    peer, model = pair(version, query_latent)
    prompt = random_tokens(1, 5, vocab=VOCAB)
    wanted = peer.generate(prompt, max_new_tokens=20, do_sample=False)[0, 5:].tolist()  # type: ignore[operator]
    assert generate(model, prompt, 20)[0] == wanted
