"""MPT: linear biases by distance, no bias in any linear map or norm."""

from __future__ import annotations

from isoflop.interop.config import Config
from isoflop.interop.families.common import Table
from isoflop.interop.family import Family, Said
from isoflop.interop.keymap import key, module, norm
from isoflop.spec import SpecError

LAYER = "transformer.blocks.{n}."
KEYS = [
    key("embed.weight", "transformer.wte.weight"),
    *norm("blocks.{n}.attention_join.norm_in", f"{LAYER}norm_1"),
    *module("blocks.{n}.attention.qkv", f"{LAYER}attn.Wqkv"),
    *module("blocks.{n}.attention.o", f"{LAYER}attn.out_proj"),
    *norm("blocks.{n}.ffn_join.norm_in", f"{LAYER}norm_2"),
    *module("blocks.{n}.ffn.up", f"{LAYER}ffn.up_proj"),
    *module("blocks.{n}.ffn.down", f"{LAYER}ffn.down_proj"),
    *norm("final_norm", "transformer.norm_f"),
    key("head.weight", "lm_head.weight"),
]
TRAINING = (
    "init_device",
    "init_config",
    "verbose",
    "embedding_fraction",
    "use_cache",
    "learned_pos_emb",
    "max_seq_len",
)


def read(config: Config) -> Table:
    config.only("logit_scale", (), "logits are not scaled")
    config.only("no_bias", (True,), "no map of this family has a bias")
    config.only("norm_type", ("low_precision_layernorm", "layernorm"), "no other norm is in this family")
    config.only("expansion_ratio", (4,), "their library makes a feed-forward of four times the width")
    config.ignore(*TRAINING)
    width, heads = config.need("d_model"), config.need("n_heads")
    return {
        "vocab": config.need("vocab_size"),
        "width": width,
        "depth": config.need("n_layers"),
        "position": "alibi",
        "norm": {"kind": "layer", "eps": config.get("layer_norm_epsilon", 1e-5), "bias": False},
        "attention": {"heads": heads, **_attention(config.get("attn_config", {}))},
        "ffn": {"activation": "gelu", "hidden": 4 * width},
        "dropout": config.get("resid_pdrop", config.get("emb_pdrop", 0.0)),
        "init": {"kind": "normal", "std": config.get("initializer_range", 0.02)},
        "tie_head": config.get("tie_word_embeddings", True),
    }


def _attention(table: Table) -> Table:
    config = Config(table)
    try:
        config.only("attn_type", ("multihead_attention",), "keys and values of one head are said by another family")
        config.only("clip_qkv", (), "queries, keys and values are not clipped")
        config.only("prefix_lm", (False,), "no position sees a later one")
        config.only("qk_ln", (False,), "their library leaves these norms out")
        config.only("alibi", (True,), "their library gives positions in no other way")
        config.only("alibi_bias_max", (8,), "slopes are powers of 2^-8")
        config.ignore("attn_impl", "attn_uses_sequence_id", "softmax_scale")
        found = {"dropout": config.get("attn_pdrop", 0.0)}
        scale = config.get("softmax_scale")
        config.finish()
    except SpecError as error:
        raise error.under("attn_config") from None
    return {**found, **({"scale": scale} if scale else {})}


def write(said: Said) -> Table:
    attention = said.first["attention"]
    usual = attention["head_width"] ** -0.5
    scale = {"softmax_scale": attention["scale"]} if attention["scale"] != usual else {}
    return {
        "vocab_size": said.top["vocab"],
        "d_model": said.top["width"],
        "n_layers": said.top["depth"],
        "n_heads": attention.get("heads"),
        "layer_norm_epsilon": said.top["norm"].get("eps"),
        "attn_config": {"alibi": True, **scale},
        "resid_pdrop": said.first["dropout"],
        "emb_pdrop": said.first["dropout"],
        "initializer_range": said.top["init"].get("std"),
        "tie_word_embeddings": said.top["tie_head"],
    }


MPT = Family("mpt", "MptForCausalLM", read, write, lambda _: KEYS, "transformer.")
