"""GPT-2: learned positions, LayerNorm, matrices held as (in, out)."""

from __future__ import annotations

from isoflop.interop.config import Config
from isoflop.interop.families.common import Table, activation, activation_name
from isoflop.interop.family import Family, Said, changes
from isoflop.interop.keymap import TRANSPOSED, key, module, norm

LAYER = "transformer.h.{n}."
KEYS = [
    key("embed.weight", "transformer.wte.weight"),
    key("positions.0.table.weight", "transformer.wpe.weight"),
    *norm("blocks.{n}.attention_join.norm_in", f"{LAYER}ln_1"),
    *module("blocks.{n}.attention.qkv", f"{LAYER}attn.c_attn", form=TRANSPOSED),
    *module("blocks.{n}.attention.o", f"{LAYER}attn.c_proj", form=TRANSPOSED),
    *norm("blocks.{n}.ffn_join.norm_in", f"{LAYER}ln_2"),
    *module("blocks.{n}.ffn.up", f"{LAYER}mlp.c_fc", form=TRANSPOSED),
    *module("blocks.{n}.ffn.down", f"{LAYER}mlp.c_proj", form=TRANSPOSED),
    *norm("final_norm", "transformer.ln_f"),
    key("head.weight", "lm_head.weight"),
]


def read(config: Config) -> Table:
    config.only("scale_attn_by_inverse_layer_idx", (False,), "scores are not scaled by depth")
    config.ignore("n_ctx", "reorder_and_upcast_attn")
    config.ignore(
        *(f"summary_{name}" for name in ("type", "use_proj", "activation", "proj_to_labels", "first_dropout"))
    )
    width, depth = config.need("n_embd"), config.need("n_layer")
    scaled = config.get("scale_attn_weights", True)
    embedding, rest = config.get("embd_pdrop", 0.1), config.get("resid_pdrop", 0.1)
    return {
        "vocab": config.need("vocab_size"),
        "width": width,
        "depth": depth,
        "position": {"kind": "learned", "length": config.get("n_positions", 1024)},
        "norm": {"kind": "layer", "eps": config.get("layer_norm_epsilon", 1e-5)},
        "attention": {
            "heads": config.need("n_head"),
            "bias": True,
            "dropout": config.get("attn_pdrop", 0.1),
            **({} if scaled else {"scale": 1.0}),
        },
        "ffn": {
            "activation": activation(config, "activation_function", "gelu_new"),
            "hidden": config.get("n_inner", 4 * width),
            "bias": True,
        },
        "dropout": embedding,
        "blocks": [] if embedding == rest else changes(range(depth), depth, {"dropout": rest}),
        "init": {"kind": "gpt2", "std": config.get("initializer_range", 0.02)},
        "tie_head": config.get("tie_word_embeddings", True),
    }


def write(said: Said) -> Table:
    attention, ffn = said.first["attention"], said.first["ffn"]
    (position, *_) = said.first["position"]
    return {
        "vocab_size": said.top["vocab"],
        "n_embd": said.top["width"],
        "n_layer": said.top["depth"],
        "n_head": attention.get("heads"),
        "n_positions": position.get("length"),
        "n_inner": ffn.get("hidden"),
        "activation_function": activation_name(ffn, "gelu_new"),
        "layer_norm_epsilon": said.top["norm"].get("eps"),
        "scale_attn_weights": attention["scale"] != 1.0,
        "attn_pdrop": attention.get("dropout"),
        "resid_pdrop": said.first["dropout"],
        "embd_pdrop": said.first["dropout"],
        "initializer_range": said.top["init"].get("std"),
        "tie_word_embeddings": said.top["tie_head"],
    }


MASKS = ("transformer.h.*.attn.bias", "transformer.h.*.attn.masked_bias")
GPT2 = Family("gpt2", "GPT2LMHeadModel", read, write, lambda _: KEYS, "transformer.", MASKS)
