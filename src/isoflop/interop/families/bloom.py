"""Bloom: a norm on the embeddings, linear biases by distance, q, k and v by head."""

from __future__ import annotations

from isoflop.interop.config import Config
from isoflop.interop.families.common import Table
from isoflop.interop.family import Family, Said
from isoflop.interop.keymap import GROUPED, key, module, norm

LAYER = "transformer.h.{n}."
KEYS = [
    key("embed.weight", "transformer.word_embeddings.weight"),
    *norm("embed_norm", "transformer.word_embeddings_layernorm"),
    *norm("blocks.{n}.attention_join.norm_in", f"{LAYER}input_layernorm"),
    *module("blocks.{n}.attention.qkv", f"{LAYER}self_attention.query_key_value", form=GROUPED),
    *module("blocks.{n}.attention.o", f"{LAYER}self_attention.dense"),
    *norm("blocks.{n}.ffn_join.norm_in", f"{LAYER}post_attention_layernorm"),
    *module("blocks.{n}.ffn.up", f"{LAYER}mlp.dense_h_to_4h"),
    *module("blocks.{n}.ffn.down", f"{LAYER}mlp.dense_4h_to_h"),
    *norm("final_norm", "transformer.ln_f"),
    key("head.weight", "lm_head.weight"),
]
TRAINING = ("slow_but_exact", "pretraining_tp", "seq_length", "unk_token_id", "masked_softmax_fusion", "bias_dropout_fusion",
            "attention_softmax_in_fp32", "offset_alibi", "skip_bias_add", "skip_bias_add_qkv")  # fmt: skip


def read(config: Config) -> Table:
    config.only("apply_residual_connection_post_layernorm", (False,), "the stream itself is not normalised")
    config.ignore(*TRAINING)
    width = config.get("n_embed") or config.need("hidden_size")
    config.ignore("hidden_size")
    norm_of = {"kind": "layer", "eps": config.get("layer_norm_epsilon", 1e-5)}
    return {
        "vocab": config.need("vocab_size"),
        "width": width,
        "depth": config.get("num_hidden_layers") or config.need("n_layer"),
        "position": "alibi",
        "norm": norm_of,
        "embed_norm": norm_of,
        "attention": {
            "heads": config.get("num_attention_heads") or config.need("n_head"),
            "bias": True,
            "dropout": config.get("attention_dropout", 0.0),
        },
        "ffn": {"activation": {"kind": "gelu", "form": "tanh"}, "hidden": 4 * width, "bias": True},
        "dropout": config.get("hidden_dropout", 0.0),
        "init": {"kind": "normal", "std": config.get("initializer_range", 0.02)},
        "tie_head": config.get("tie_word_embeddings", True),
    }


def write(said: Said) -> Table:
    attention = said.first["attention"]
    return {
        "vocab_size": said.top["vocab"],
        "hidden_size": said.top["width"],
        "n_layer": said.top["depth"],
        "n_head": attention.get("heads"),
        "layer_norm_epsilon": said.top["norm"].get("eps"),
        "attention_dropout": attention.get("dropout"),
        "hidden_dropout": said.first["dropout"],
        "initializer_range": said.top["init"].get("std"),
        "tie_word_embeddings": said.top["tie_head"],
    }


BLOOM = Family("bloom", "BloomForCausalLM", read, write, lambda _: KEYS, "transformer.")
