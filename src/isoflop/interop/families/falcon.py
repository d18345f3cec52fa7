"""Falcon: sublayers side by side with one norm or two, or in series; one, some or all heads of keys and values."""

from __future__ import annotations

from collections.abc import Sequence

from isoflop.interop.config import Config
from isoflop.interop.families.common import Table, activation, activation_name, rope, rope_keys
from isoflop.interop.family import Family, Said
from isoflop.interop.keymap import GROUPED, Key, key, module, norm
from isoflop.model import Architecture
from isoflop.model.arrangement import Serial
from isoflop.spec import SpecError

LAYER = "transformer.h.{n}."
KEYS = [
    key("embed.weight", "transformer.word_embeddings.weight"),
    *norm("blocks.{n}.join.norm_in", f"{LAYER}input_layernorm"),
    *module("blocks.{n}.attention.qkv", f"{LAYER}self_attention.query_key_value", form=GROUPED),
    *module("blocks.{n}.attention.o", f"{LAYER}self_attention.dense"),
    *module("blocks.{n}.ffn.up", f"{LAYER}mlp.dense_h_to_4h"),
    *module("blocks.{n}.ffn.down", f"{LAYER}mlp.dense_4h_to_h"),
    *norm("final_norm", "transformer.ln_f"),
    key("head.weight", "lm_head.weight"),
]


def keys(architecture: Architecture) -> Sequence[Key]:
    """The norms have other names where the sublayers stand side by side."""
    serial = isinstance(architecture.arrangement, Serial)
    names = ("input_layernorm", "post_attention_layernorm") if serial else ("ln_attn", "ln_mlp")
    joins = ("attention_join", "ffn_join")
    own = [norm(f"blocks.{{n}}.{join}.norm_in", LAYER + name) for join, name in zip(joins, names, strict=True)]
    return [*KEYS, *(one for each in own for one in each)]


def read(config: Config) -> Table:
    width, heads = config.need("hidden_size"), config.need("num_attention_heads")
    if width % heads:
        raise SpecError.at("num_attention_heads", f"must divide hidden_size {width} in this family, came {heads}")
    config.only("alibi", (False,), "the slopes of this family are rounded to bf16")
    bias = config.get("bias", False)
    return {
        "vocab": config.need("vocab_size"),
        "width": width,
        "depth": config.need("num_hidden_layers"),
        "position": rope(config),
        "norm": {"kind": "layer", "eps": config.get("layer_norm_epsilon", 1e-5)},
        "arrangement": _arrangement(config),
        "attention": {
            "heads": heads,
            "kv_heads": _kv_heads(config, heads),
            "bias": bias,
            "dropout": config.get("attention_dropout", 0.0),
        },
        "ffn": {
            "activation": activation(config, "activation", "gelu"),
            "hidden": config.get("ffn_hidden_size", 4 * width),
            "bias": bias,
        },
        "dropout": config.get("hidden_dropout", 0.0),
        "init": {"kind": "normal", "std": config.get("initializer_range", 0.02)},
        "tie_head": config.get("tie_word_embeddings", True),
    }


def _arrangement(config: Config) -> Table:
    newer = config.get("new_decoder_architecture", False)
    norms = config.get("num_ln_in_parallel_attn", 2 if newer else 1)
    if not config.get("parallel_attn", True):
        if newer:
            raise SpecError.at("parallel_attn", "must be true with new_decoder_architecture, came False")
        return {"kind": "serial"}
    if not newer and norms != 1:
        raise SpecError.at("num_ln_in_parallel_attn", f"must be 1 without new_decoder_architecture, came {norms}")
    return {"kind": "parallel", "norms": "own" if norms == 2 else "shared"}


def _kv_heads(config: Config, heads: int) -> int:
    asked, one = config.get("num_kv_heads", heads), config.get("multi_query", True)
    kept = asked if config.get("new_decoder_architecture", False) else 1 if one else heads
    config.only("num_key_value_heads", (kept,), "follows from num_kv_heads, multi_query and new_decoder_architecture")
    return kept


def write(said: Said) -> Table:
    attention, ffn = said.first["attention"], said.first["ffn"]
    kv_heads, arrangement = attention["kv_heads"], said.first["arrangement"]
    own = arrangement.get("norms") == "own"
    newer = own or kv_heads not in (1, attention.get("heads"))
    return {
        "vocab_size": said.top["vocab"],
        "hidden_size": said.top["width"],
        "num_hidden_layers": said.top["depth"],
        "num_attention_heads": attention.get("heads"),
        "num_kv_heads": kv_heads,
        "new_decoder_architecture": newer,
        "num_ln_in_parallel_attn": 2 if own else 1,
        "multi_query": kv_heads == 1,
        "parallel_attn": arrangement["kind"] == "parallel",
        "bias": attention.get("bias") is True,
        "alibi": False,
        "ffn_hidden_size": ffn.get("hidden"),
        "activation": activation_name(ffn, "gelu"),
        "layer_norm_epsilon": said.top["norm"].get("eps"),
        "attention_dropout": attention.get("dropout"),
        "hidden_dropout": said.first["dropout"],
        "initializer_range": said.top["init"].get("std"),
        "tie_word_embeddings": said.top["tie_head"],
        **rope_keys(said.first["position"]),
    }


FALCON = Family("falcon", "FalconForCausalLM", read, write, keys, "transformer.")
