"""OPT: learned positions whose table begins with two rows that no position uses."""

from __future__ import annotations

from isoflop.interop.config import Config
from isoflop.interop.families.common import Table, activation, activation_name
from isoflop.interop.family import Family, Said
from isoflop.interop.keymap import Offset, key, module, norm

LAYER = "model.decoder.layers.{n}."
KEYS = [
    key("embed.weight", "model.decoder.embed_tokens.weight"),
    key("positions.0.table.weight", "model.decoder.embed_positions.weight", form=Offset(2)),
    *module("blocks.{n}.attention.qkv", *(f"{LAYER}self_attn.{part}_proj" for part in "qkv")),
    *module("blocks.{n}.attention.o", f"{LAYER}self_attn.out_proj"),
    *module("blocks.{n}.ffn.up", f"{LAYER}fc1"),
    *module("blocks.{n}.ffn.down", f"{LAYER}fc2"),
    *(
        one
        for place in ("norm_in", "norm_out")
        for one in (
            *norm(f"blocks.{{n}}.attention_join.{place}", f"{LAYER}self_attn_layer_norm"),
            *norm(f"blocks.{{n}}.ffn_join.{place}", f"{LAYER}final_layer_norm"),
        )
    ),
    *norm("final_norm", "model.decoder.final_layer_norm"),
    key("head.weight", "lm_head.weight"),
]


def read(config: Config) -> Table:
    width = config.need("hidden_size")
    config.only("word_embed_proj_dim", (width,), "embeddings of another width than the stream cannot be said")
    config.only("layer_norm_elementwise_affine", (True,), "norms have gains and biases")
    config.only("_remove_final_layer_norm", (False,), "a stream that is not normalised ends with a norm")
    config.ignore("layerdrop", "init_std", "activation_dropout")
    bias = config.get("enable_bias", True)
    return {
        "vocab": config.need("vocab_size"),
        "width": width,
        "depth": config.need("num_hidden_layers"),
        "position": {"kind": "learned", "length": config.need("max_position_embeddings")},
        "norm": {"kind": "layer", "eps": 1e-5},
        "join": "pre" if config.get("do_layer_norm_before", True) else "post",
        "attention": {
            "heads": config.need("num_attention_heads"),
            "bias": bias,
            "dropout": config.get("attention_dropout", 0.0),
        },
        "ffn": {
            "activation": activation(config, "activation_function", "relu"),
            "hidden": config.need("ffn_dim"),
            "bias": bias,
        },
        "dropout": config.get("dropout", 0.1),
        "init": {"kind": "normal", "std": config.get("init_std", 0.02)},
        "tie_head": config.get("tie_word_embeddings", True),
    }


def write(said: Said) -> Table:
    attention, ffn = said.first["attention"], said.first["ffn"]
    (position, *_) = said.first["position"]
    return {
        "vocab_size": said.top["vocab"],
        "hidden_size": said.top["width"],
        "word_embed_proj_dim": said.top["width"],
        "num_hidden_layers": said.top["depth"],
        "num_attention_heads": attention.get("heads"),
        "max_position_embeddings": position.get("length"),
        "do_layer_norm_before": said.first["join"]["kind"] == "pre",
        "enable_bias": attention.get("bias") is True,
        "ffn_dim": ffn.get("hidden"),
        "activation_function": activation_name(ffn, "relu"),
        "attention_dropout": attention.get("dropout"),
        "dropout": said.first["dropout"],
        "layerdrop": 0.0,
        "init_std": said.top["init"].get("std"),
        "tie_word_embeddings": said.top["tie_head"],
    }


OPT = Family("opt", "OPTForCausalLM", read, write, lambda _: KEYS, "model.")
