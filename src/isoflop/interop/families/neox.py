"""GPT-NeoX: sublayers side by side, rotary positions on a part of each head, q, k and v by head."""

from __future__ import annotations

from isoflop.interop.config import Config
from isoflop.interop.families.common import Table, activation, activation_name, rope_of, rope_parameters
from isoflop.interop.family import Family, Said
from isoflop.interop.keymap import GROUPED, key, module, norm
from isoflop.spec import SpecError

LAYER = "gpt_neox.layers.{n}."
KEYS = [
    key("embed.weight", "gpt_neox.embed_in.weight"),
    *norm("blocks.{n}.attention_join.norm_in", f"{LAYER}input_layernorm"),
    *norm("blocks.{n}.ffn_join.norm_in", f"{LAYER}post_attention_layernorm"),
    *module("blocks.{n}.attention.qkv", f"{LAYER}attention.query_key_value", form=GROUPED),
    *module("blocks.{n}.attention.o", f"{LAYER}attention.dense"),
    *module("blocks.{n}.ffn.up", f"{LAYER}mlp.dense_h_to_4h"),
    *module("blocks.{n}.ffn.down", f"{LAYER}mlp.dense_4h_to_h"),
    *norm("final_norm", "gpt_neox.final_layer_norm"),
    key("head.weight", "embed_out.weight"),
]


def read(config: Config) -> Table:
    width, heads = config.need("hidden_size"), config.need("num_attention_heads")
    if width % heads:
        raise SpecError.at("num_attention_heads", f"must divide hidden_size {width} in this family, came {heads}")
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta, fraction = config.get("rotary_emb_base", 10_000.0), config.get("rotary_pct", 0.25)
    parallel = config.get("use_parallel_residual", True)
    config.ignore("rope_theta", "partial_rotary_factor")  # what older files say by rotary_emb_base and rotary_pct
    return {
        "vocab": config.need("vocab_size"),
        "width": width,
        "depth": config.need("num_hidden_layers"),
        "position": rope_of(scaling, theta, fraction, config.get("max_position_embeddings", 2048)),
        "norm": {"kind": "layer", "eps": config.get("layer_norm_eps", 1e-5)},
        "arrangement": {"kind": "parallel", "norms": "own"} if parallel else "serial",
        "attention": {
            "heads": heads,
            "bias": config.get("attention_bias", True),
            "dropout": config.get("attention_dropout", 0.0),
        },
        "ffn": {
            "activation": activation(config, "hidden_act", "gelu"),
            "hidden": config.need("intermediate_size"),
            "bias": True,
        },
        "dropout": config.get("hidden_dropout", 0.0),
        "init": {"kind": "normal", "std": config.get("initializer_range", 0.02)},
        "tie_head": config.get("tie_word_embeddings", False),
    }


def write(said: Said) -> Table:
    attention, ffn = said.first["attention"], said.first["ffn"]
    parameters = rope_parameters(said.first["position"]) or {}
    older = {
        "rotary_emb_base": parameters.get("rope_theta"),
        "rotary_pct": parameters.get("partial_rotary_factor", 1.0),
    }
    return {
        "vocab_size": said.top["vocab"],
        "hidden_size": said.top["width"],
        "num_hidden_layers": said.top["depth"],
        "num_attention_heads": attention.get("heads"),
        "intermediate_size": ffn.get("hidden"),
        "hidden_act": activation_name(ffn, "gelu"),
        "layer_norm_eps": said.top["norm"].get("eps"),
        "use_parallel_residual": said.first["arrangement"]["kind"] == "parallel",
        "attention_bias": attention.get("bias") is True,
        "attention_dropout": attention.get("dropout"),
        "hidden_dropout": said.first["dropout"],
        "initializer_range": said.top["init"].get("std"),
        "tie_word_embeddings": said.top["tie_head"],
        "rope_parameters": {"partial_rotary_factor": older["rotary_pct"], **parameters},
        **older,
    }


BUFFERS = ("*.attention.bias", "*.attention.masked_bias", "*.attention.rotary_emb.inv_freq")
GPT_NEOX = Family("gpt_neox", "GPTNeoXForCausalLM", read, write, lambda _: KEYS, "gpt_neox.", BUFFERS)
