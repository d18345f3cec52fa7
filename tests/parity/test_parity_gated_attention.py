"""Gated attention of Qwen3-Next in transformers: the same weights give the same logits, gradients and text."""

import pytest
import torch
from torch import Tensor
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
from transplant import random_tokens, randomise, stacked, transplant

import isoflop

DEPTH, WIDTH, HEADS, KV_HEADS, HEAD_WIDTH, HIDDEN, VOCAB = 3, 48, 6, 2, 16, 80, 97


def theirs(bias: bool = False) -> torch.nn.Module:
    """Full attention and a dense feed-forward in every layer: what it has besides is not what is compared."""
    return randomise(
        Qwen3NextForCausalLM(
            Qwen3NextConfig(
                vocab_size=VOCAB,
                hidden_size=WIDTH,
                num_hidden_layers=DEPTH,
                num_attention_heads=HEADS,
                num_key_value_heads=KV_HEADS,
                head_dim=HEAD_WIDTH,
                intermediate_size=HIDDEN,
                layer_types=["full_attention"] * DEPTH,
                mlp_only_layers=list(range(DEPTH)),
                attention_bias=bias,
                rms_norm_eps=1e-5,
                rope_parameters={"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.25},
                pad_token_id=None,
                bos_token_id=None,
                eos_token_id=None,
            )
        )
    )


def ours(bias: bool = False) -> isoflop.Architecture:
    sizes = {"vocab": VOCAB, "width": WIDTH, "depth": DEPTH, "ffn.hidden": HIDDEN}
    heads = {"attention.heads": HEADS, "attention.kv_heads": KV_HEADS, "attention.head_width": HEAD_WIDTH}
    rope = {"position.0.base": 50.0, "position.0.fraction": 0.25}
    gated = {"attention.gate": "element", "attention.qk_norm": {"kind": "rms", "eps": 1e-5}, "attention.bias": bias}
    return isoflop.load("llama", **sizes, **heads, **rope, **gated)


def queries_and_gates(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Their rows are by head, its query and then its gate; ours are all queries and, after keys and values, all gates."""
    by_head = weight.unflatten(0, (HEADS, 2, HEAD_WIDTH))
    return by_head[:, 0].flatten(0, 1), by_head[:, 1].flatten(0, 1)


def mapped(weights: dict[str, Tensor], bias: bool = False) -> dict[str, Tensor]:
    def gain(name: str) -> Tensor:
        return 1 + weights[f"{name}.weight"]  # theirs are kept as what is added to 1

    out = {
        "embed.weight": weights["model.embed_tokens.weight"],
        "final_norm.gain": gain("model.norm"),
        "head.weight": weights["lm_head.weight"],
    }
    for i in range(DEPTH):
        layer, block = f"model.layers.{i}.", f"blocks.{i}."
        for own in ("weight", "bias") if bias else ("weight",):
            q, gate = queries_and_gates(weights[f"{layer}self_attn.q_proj.{own}"])
            k_v = stacked(weights, *(f"{layer}self_attn.{p}_proj.{own}" for p in "kv"))
            out[f"{block}attention.qkv.{own}"] = torch.cat([q, k_v, gate])
            out[f"{block}attention.o.{own}"] = weights[f"{layer}self_attn.o_proj.{own}"]
        out |= {
            block + "attention.q_norm.gain": gain(layer + "self_attn.q_norm"),
            block + "attention.k_norm.gain": gain(layer + "self_attn.k_norm"),
            block + "attention_join.norm_in.gain": gain(layer + "input_layernorm"),
            block + "ffn_join.norm_in.gain": gain(layer + "post_attention_layernorm"),
            block + "ffn.up.weight": stacked(weights, *(f"{layer}mlp.{p}_proj.weight" for p in ("gate", "up"))),
            block + "ffn.down.weight": weights[layer + "mlp.down_proj.weight"],
        }
    return out


@pytest.mark.parametrize("bias", [False, True])
def test_logits(bias: bool) -> None:
    peer = theirs(bias)
    model = transplant(ours(bias), mapped(peer.state_dict(), bias))
    tokens_BT = random_tokens(3, 29, vocab=VOCAB)
    with torch.no_grad():
        expected, found = peer(tokens_BT).logits, model(tokens_BT)
    assert expected.std() > 0.5  # the comparison is of logits that say something
    # Relative to the largest: what a small logit is the sum of is no smaller than that of a large one, nor is its rounding.
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_text() -> None:
    peer = theirs()
    model = transplant(ours(), mapped(peer.state_dict()))
    prompts = [random_tokens(length, vocab=VOCAB, seed=length).tolist() for length in (1, 9, 14)]
    expected = [
        peer.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :].tolist()
        for prompt in prompts
    ]
    assert model.generate(prompts, 24) == expected


def test_gradients() -> None:
    peer = theirs()
    model = transplant(ours(), mapped(peer.state_dict()))
    tokens_BT, weight_BTV = random_tokens(2, 17, vocab=VOCAB), torch.randn(2, 17, VOCAB)
    (peer(tokens_BT).logits * weight_BTV).sum().backward()
    (model(tokens_BT) * weight_BTV).sum().backward()
    for block, layer in zip(model.blocks, peer.model.layers, strict=True):
        q, gate = queries_and_gates(layer.self_attn.q_proj.weight.grad)
        k_v = [layer.self_attn.k_proj.weight.grad, layer.self_attn.v_proj.weight.grad]
        expected = torch.cat([q, *k_v, gate])
        torch.testing.assert_close(block.attention.qkv.weight.grad, expected, rtol=1e-4, atol=1e-3)


def test_one_gate_for_a_head_is_that_gate_for_each_of_its_components() -> None:
    """What transformers has no model of, by what it has one of."""
    by_head = isoflop.build(ours().override({"attention": {"gate": "head", "qk_norm": "rms"}}), seed=4).eval()
    by_element = isoflop.build(ours().override({"attention": {"qk_norm": "rms"}}), seed=5).eval()
    weights = by_head.state_dict()
    for i in range(DEPTH):
        name = f"blocks.{i}.attention.qkv.weight"
        before, gate = weights[name].tensor_split([-HEADS])
        weights[name] = torch.cat([before, gate.repeat_interleave(HEAD_WIDTH, dim=0)])
    by_element.load_state_dict(weights)
    tokens_BT = random_tokens(2, 17, vocab=VOCAB)
    torch.testing.assert_close(by_head(tokens_BT), by_element(tokens_BT), rtol=1e-5, atol=1e-6)
